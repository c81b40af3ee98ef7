"""Everything around training that touches the world: folders, checkpoints, metrics, progress, the command line."""
