"""Training: state, collection, the learning round, the loops around it, evaluation."""
