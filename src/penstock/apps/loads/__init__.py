"""Loads of benchmarks and their figures, for `penstock bench`, other commands and `benchmarks/`."""
