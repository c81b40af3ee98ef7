"""The statements of the theory tried on random and on adversarial cases, and the algorithms with a noisy critic."""
