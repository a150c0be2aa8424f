"""Tiered storage: the archived segments of local and replicated partitions."""
