"""Counters of the compaction of diskless topics."""

from __future__ import annotations


class CompactionCounters:
    __slots__ = (
        "failures", "kept_records", "passes", "passes_failed", "races", "read_bytes",
        "read_records", "segment_bytes", "segments",
    )  # fmt: skip

    def __init__(self) -> None:
        self.passes = self.passes_failed = self.races = self.failures = 0
        self.segments = self.segment_bytes = self.read_bytes = 0
        self.read_records = self.kept_records = 0
