"""Tiered storage: the archived segments of local partitions."""
