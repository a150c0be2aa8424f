"""Records of group and transaction coordinators, saved by compare-and-set."""
