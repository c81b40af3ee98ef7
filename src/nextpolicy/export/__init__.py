"""Trained policies as folders that other programs can use without this package."""
