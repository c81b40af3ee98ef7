"""Experiments: suites as data, the state of each of their environments on disk, and engines that run them."""
