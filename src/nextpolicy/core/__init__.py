"""Pure functions on arrays: value targets and advantages, losses, running statistics, minibatches."""
