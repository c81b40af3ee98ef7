"""Environments: one module per backend, and the interface that they share."""
