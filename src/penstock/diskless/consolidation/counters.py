"""What consolidation has done, for metrics."""

from __future__ import annotations


class ConsolidationCounters:
    """Plain integers, counted by the job of one broker."""

    __slots__ = ("extents", "failures", "passes_failed", "races", "segment_bytes", "segments")

    def __init__(self) -> None:
        self.segments = self.segment_bytes = self.extents = 0
        self.races = self.failures = self.passes_failed = 0
