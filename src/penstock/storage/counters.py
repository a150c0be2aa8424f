"""Counters of a store: plain integers, read at scrape time."""

from __future__ import annotations

from msgspec import Struct


class Counters(Struct):
    checkpoints: int = 0
    compaction_kept_records: int = 0
    compaction_read_bytes: int = 0
    compaction_read_records: int = 0
    compaction_written_bytes: int = 0
    compactions: int = 0
    corruptions: int = 0
    damaged_ranges: int = 0
    disk_full: int = 0
    duplicates: int = 0
    groups: int = 0
    inline_groups: int = 0
    mended_bytes: int = 0
    read_bytes: int = 0
    reads: int = 0
    removed_segments: int = 0
    rolled_segments: int = 0
    written_bytes: int = 0
    tail_reads: int = 0
