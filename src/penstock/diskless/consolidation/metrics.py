"""Metrics of consolidation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metric, Sample
from penstock.diskless.consolidation.counters import ConsolidationCounters


def _counter(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_diskless_consolidation_{name}", kind="counter", doc=doc)


SEGMENTS: Final = _counter("segments_total", "Sealed segments that replaced extents.")
SEGMENT_BYTES: Final = _counter("segment_bytes_total", "Bytes of those segments.")
EXTENTS: Final = _counter("extents_total", "Write-ahead extents that segments were made of.")
RACES: Final = _counter(
    "races_lost_total", "Discarded segments: the extents had changed, or the key was swept."
)
FAILURES: Final = _counter("failures_total", "Segments that failed at a damaged or missing object.")
PASSES_FAILED: Final = _counter("passes_failed_total", "Passes that ended with an error.")


def samples(counters: ConsolidationCounters) -> Iterator[Sample]:
    yield Sample(SEGMENTS, counters.segments)
    yield Sample(SEGMENT_BYTES, counters.segment_bytes)
    yield Sample(EXTENTS, counters.extents)
    yield Sample(RACES, counters.races)
    yield Sample(FAILURES, counters.failures)
    yield Sample(PASSES_FAILED, counters.passes_failed)
