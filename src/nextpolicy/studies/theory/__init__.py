"""Tests of the paper's theory on random and adversarial cases, and its algorithms with a noisy critic."""
