"""Records of coordinators: rows by kind, key and member, each saved by compare-and-set."""
