"""The command line. It imports every other package; no package imports it."""
