"""MirrorMaker 2, with which the suite and benchmarks compare `penstock mirror`."""
