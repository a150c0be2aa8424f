"""Files of the log: segments, indexes, journal and checkpoints, with their formats."""
