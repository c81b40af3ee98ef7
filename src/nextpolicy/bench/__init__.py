"""Speed benchmarks: nextpolicy, the simulator alone, and other libraries if present, as ratios within one run."""
