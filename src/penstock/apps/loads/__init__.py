"""Loads and their figures, shared by `penstock bench`, similar commands and `benchmarks/`."""
