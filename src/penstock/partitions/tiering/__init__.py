"""Tiered storage: closed segments of local partitions are copied to the archive and read there."""
