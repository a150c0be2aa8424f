"""Benchmarks: one file per path, each beside a prediction, a limit or a peer of the same run."""
