"""Metrics of compaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metric, Sample
from penstock.diskless.compaction.counters import CompactionCounters


def _counter(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_diskless_compaction_{name}", kind="counter", doc=doc)


PASSES: Final = _counter("passes_total", "Completed passes over diskless partitions.")
SEGMENTS: Final = _counter("segments_total", "Segments that replaced extents.")
SEGMENT_BYTES: Final = _counter("segment_bytes_total", "Bytes of those segments.")
READ_BYTES: Final = _counter("read_bytes_total", "Bytes that passes read.")
READ_RECORDS: Final = _counter("read_records_total", "Records that passes read.")
KEPT_RECORDS: Final = _counter("kept_records_total", "Records that passes kept.")
RACES: Final = _counter(
    "races_lost_total", "Passes that ended because another broker changed the extents."
)
FAILURES: Final = _counter("failures_total", "Passes that ended at a damaged or missing object.")
PASSES_FAILED: Final = _counter("rounds_failed_total", "Rounds that ended with an error.")


def samples(counters: CompactionCounters) -> Iterator[Sample]:
    yield Sample(PASSES, counters.passes)
    yield Sample(SEGMENTS, counters.segments)
    yield Sample(SEGMENT_BYTES, counters.segment_bytes)
    yield Sample(READ_BYTES, counters.read_bytes)
    yield Sample(READ_RECORDS, counters.read_records)
    yield Sample(KEPT_RECORDS, counters.kept_records)
    yield Sample(RACES, counters.races)
    yield Sample(FAILURES, counters.failures)
    yield Sample(PASSES_FAILED, counters.passes_failed)
