"""Metrics of reading diskless partitions; those of the fetch paths are in `penstock.objects`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metric, Sample

KNOWN: Final = Metric(
    name="penstock_diskless_coordinates_known_total",
    kind="counter",
    doc="Reads of a diskless partition whose extents were cached.",
)
FINDS: Final = Metric(
    name="penstock_diskless_coordinates_asked_total",
    kind="counter",
    doc="Reads of a diskless partition whose extents were read from the control plane.",
)
BATCHES: Final = Metric(
    name="penstock_diskless_read_bytes_total",
    kind="counter",
    doc="Bytes of batches that were loaded for consumers of diskless partitions.",
)
FAILURES: Final = Metric(
    name="penstock_diskless_read_failures_total",
    kind="counter",
    doc="Reads of a diskless partition that ended at unreadable bytes.",
)
EXTENTS: Final = Metric(
    name="penstock_diskless_known_extents",
    kind="gauge",
    doc="Cached extents of diskless partitions.",
)
READY: Final = Metric(
    name="penstock_diskless_ready_bytes",
    kind="gauge",
    doc="Bytes of loaded batches that wait for their fetch.",
)
LOADING: Final = Metric(
    name="penstock_diskless_loading_bytes",
    kind="gauge",
    doc="Bytes of objects that are being loaded for consumers.",
)


class ReadCounters:
    __slots__ = ("batches_bytes", "failures", "finds", "known")

    def __init__(self) -> None:
        self.known = self.finds = self.batches_bytes = self.failures = 0


def samples(
    counters: ReadCounters, *, extents: int, ready_bytes: int, loading_bytes: int
) -> Iterator[Sample]:
    yield Sample(KNOWN, counters.known)
    yield Sample(FINDS, counters.finds)
    yield Sample(BATCHES, counters.batches_bytes)
    yield Sample(FAILURES, counters.failures)
    yield Sample(EXTENTS, extents)
    yield Sample(READY, ready_bytes)
    yield Sample(LOADING, loading_bytes)
