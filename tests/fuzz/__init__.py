"""Thousands of command lines, suites and run folders that a person could get wrong, from fixed seeds."""
