"""Runs: the Python API, run folders, checkpoints, metrics, progress and the program cache."""
