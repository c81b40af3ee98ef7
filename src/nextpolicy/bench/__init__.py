"""Speed, measured as ratios in one run: our algorithms, the simulator alone, and peers where they are present."""
