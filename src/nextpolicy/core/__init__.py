"""Pure functions on arrays: estimators, the gate, losses, statistics, minibatches."""
