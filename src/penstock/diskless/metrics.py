"""Metrics of writing and garbage collection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Histogram, Metric, Sample

if TYPE_CHECKING:
    from penstock.diskless.gc.counters import CollectionCounters
    from penstock.diskless.writing.accumulator import Accumulator

WRITE_BOUNDS_SECONDS: Final = (
    0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0014, 0.002, 0.003, 0.004, 0.005, 0.007, 0.01,
    0.014, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Fine enough for the computations of `penstock.planner.latency`."""
BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
BYTE_BOUNDS: Final = tuple(1 << shift for shift in range(10, 27, 2))


def _counter(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_diskless_{name}", kind="counter", doc=doc)


def _gauge(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_diskless_{name}", kind="gauge", doc=doc)


def _histogram(name: str, doc: str) -> Metric:
    return Metric(name=f"penstock_diskless_{name}", kind="histogram", doc=doc)


OBJECTS: Final = _counter("objects_committed_total", "Write-ahead objects committed.")
OBJECT_BYTES: Final = _counter("object_committed_bytes_total", "Bytes of committed objects.")
OBJECTS_FAILED: Final = _counter(
    "objects_failed_total", "Objects that failed; their producers got an error."
)
OBJECTS_FULL: Final = _counter(
    "objects_closed_full_total", "Objects that closed because they were full."
)
SUBMISSIONS: Final = _counter("submissions_total", "Accepted appends.")
REFUSED: Final = _counter("submissions_refused_total", "Appends rejected because too many wait.")
PUT_RETRIES: Final = _counter("put_retries_total", "Objects written again, under another key.")
COMMIT_RETRIES: Final = _counter(
    "commit_retries_total", "Repeated commits, whose outcome was unknown."
)
LEASES_LOST: Final = _counter("leases_lost_total", "Keys that were swept before their commit.")
PENDING_BYTES: Final = _gauge("pending_bytes", "Appended bytes that wait for their object.")
PENDING: Final = _gauge("pending_submissions", "Appends that wait for their object.")
IN_FLIGHT: Final = _gauge("objects_in_flight", "Closed objects that are not committed.")
LEASES: Final = _gauge("leases", "Reserved keys that are unused.")
PUT_SECONDS: Final = _histogram("put_seconds", "Time of a successful write of an object.")
COMMIT_SECONDS: Final = _histogram("commit_seconds", "Time of a successful commit of an object.")
OBJECT_BATCHES: Final = _histogram("object_batches", "Batches in a committed object.")
OBJECT_SIZE: Final = _histogram("object_size_bytes", "Size of a committed object.")

SWEPT: Final = _counter("swept_objects_total", "Objects deleted by the sweeper.")
SWEPT_BYTES: Final = _counter("swept_bytes_total", "Bytes of objects deleted by the sweeper.")
FAILURES: Final = _counter("collection_failures_total", "Passes that ended with an error.")
ORPHANS_DELETED: Final = _counter("orphans_deleted_total", "Deleted objects without a row.")
ORPHANS: Final = _gauge("orphans", "Objects without a row in the last comparison.")
ORPHAN_BYTES: Final = _gauge("orphan_bytes", "Bytes of objects without a row.")
RETAINED_EXTENTS: Final = _counter(
    "retention_dropped_extents_total", "Extents that retention dropped."
)
RETAINED_BYTES: Final = _counter("retention_dropped_bytes_total", "Bytes that retention dropped.")
RETENTION_FAILURES: Final = _counter(
    "retention_failures_total", "Partitions whose retention failed in a pass."
)
PARTITIONS_FORGOTTEN: Final = _counter(
    "forgotten_partitions_total", "Dropped rows of deleted topics."
)
PRODUCERS_FORGOTTEN: Final = _counter("forgotten_producers_total", "Idle producers forgotten.")
MARK: Final = _gauge(
    "marked_object_id", "Highest object id that this broker recorded in the store."
)


class WriteTimes:
    __slots__ = ("batches", "bytes_total", "commit", "put", "size")

    def __init__(self) -> None:
        self.put = Histogram(WRITE_BOUNDS_SECONDS)
        self.commit = Histogram(WRITE_BOUNDS_SECONDS)
        self.batches = Histogram(BATCH_BOUNDS)
        self.size = Histogram(BYTE_BOUNDS)
        self.bytes_total = 0


def writing_samples(core: Accumulator, times: WriteTimes) -> Iterator[Sample]:
    counters = core.counters
    yield Sample(OBJECTS, counters.objects)
    yield Sample(OBJECT_BYTES, times.bytes_total)
    yield Sample(OBJECTS_FAILED, counters.objects_failed)
    yield Sample(OBJECTS_FULL, counters.closed_full)
    yield Sample(SUBMISSIONS, counters.submissions)
    yield Sample(REFUSED, counters.refused_backlog)
    yield Sample(PUT_RETRIES, counters.put_retries)
    yield Sample(COMMIT_RETRIES, counters.commit_retries)
    yield Sample(LEASES_LOST, counters.leases_lost)
    yield Sample(PENDING_BYTES, core.pending_bytes)
    yield Sample(PENDING, core.pending_submissions)
    yield Sample(IN_FLIGHT, core.objects_in_flight)
    yield Sample(LEASES, core.leases)
    yield Sample(PUT_SECONDS, times.put)
    yield Sample(COMMIT_SECONDS, times.commit)
    yield Sample(OBJECT_BATCHES, times.batches)
    yield Sample(OBJECT_SIZE, times.size)


def collection_samples(counters: CollectionCounters) -> Iterator[Sample]:
    yield Sample(SWEPT, counters.swept_objects)
    yield Sample(SWEPT_BYTES, counters.swept_bytes)
    yield Sample(FAILURES, counters.failures)
    yield Sample(ORPHANS_DELETED, counters.orphans_deleted)
    yield Sample(ORPHANS, counters.orphans)
    yield Sample(ORPHAN_BYTES, counters.orphan_bytes)
    yield Sample(RETAINED_EXTENTS, counters.dropped_extents)
    yield Sample(RETAINED_BYTES, counters.dropped_bytes)
    yield Sample(RETENTION_FAILURES, counters.retention_failures)
    yield Sample(PARTITIONS_FORGOTTEN, counters.partitions_forgotten)
    yield Sample(PRODUCERS_FORGOTTEN, counters.producers_forgotten)
    yield Sample(MARK, counters.marked_object_id)
