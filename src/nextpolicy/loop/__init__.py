"""The training loop: rounds, collection on the device and on the host, populations, evaluation."""
