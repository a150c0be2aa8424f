"""Tiered storage: which segments of local partitions lie in the archive."""
