"""The loop of training: rounds, two ways to collect, populations, evaluation."""
