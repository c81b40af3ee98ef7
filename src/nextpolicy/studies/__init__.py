"""Studies: the paper's theory, and SV-PPO on Four Rooms with exact quantities."""
