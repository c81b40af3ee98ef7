"""Experiments: suites as data, the state of each environment on disk, and engines that run suites."""
