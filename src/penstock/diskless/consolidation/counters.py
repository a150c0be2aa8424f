"""Counters of consolidation."""

from __future__ import annotations


class ConsolidationCounters:
    __slots__ = ("extents", "failures", "passes_failed", "races", "segment_bytes", "segments")

    def __init__(self) -> None:
        self.segments = self.segment_bytes = self.extents = 0
        self.races = self.failures = self.passes_failed = 0
