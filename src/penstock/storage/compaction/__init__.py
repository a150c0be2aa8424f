"""Compaction: of each key a log keeps the newest record, and tombstones for a while."""
