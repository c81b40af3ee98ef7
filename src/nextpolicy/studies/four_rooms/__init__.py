"""PPO and SV-PPO on Four Rooms, with every round computed exactly."""
