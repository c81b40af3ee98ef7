"""PPO and SV-PPO on Four Rooms, with exact values, visitations and bounds of every round."""
