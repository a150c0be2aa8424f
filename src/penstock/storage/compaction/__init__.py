"""Compaction: a log keeps the newest record of each key, and tombstones for a while."""
