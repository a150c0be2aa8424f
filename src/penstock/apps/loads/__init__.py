"""Loads, and what they took: one room for `penstock bench`, its kin, and `benchmarks/`."""
