"""Faults by the hundred, from a fixed catalogue: what was interrupted continues, what was damaged is noticed.

`python -m tests.faults.count` injects all of them and prints what came of each kind. `make test` injects a share.
"""
