"""Tiered storage: closed segments of local partitions are copied to the archive and read there.

The *archive* is an object store. The archived part of a partition is called its *tiers*.
"""
