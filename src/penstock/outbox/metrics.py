"""Metrics of the outbox's writer (by partition id), consumer and sweeper.

Callers choose partition ids, so their number is unbounded: the first 100 ids of a writer have their
own series, all later ones share the label `(other)`, which is not a valid id. (A label never
changes its meaning, which would break rates.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.base.metrics import Histogram, Metric, Sample
from penstock.outbox import limits

OTHER: Final = "(other)"
_BY: Final = ("partition_id",)


def _counter(name: str, doc: str, labels: tuple[str, ...] = _BY) -> Metric:
    return Metric(name=f"penstock_outbox_{name}", kind="counter", doc=doc, labels=labels)


def _gauge(name: str, doc: str, labels: tuple[str, ...] = _BY) -> Metric:
    return Metric(name=f"penstock_outbox_{name}", kind="gauge", doc=doc, labels=labels)


SUCCEEDED: Final = _counter("writes_succeeded_total", "Complete files, including existing ones.")
FAILED: Final = _counter("writes_failed_total", "Writes that failed after their last attempt.")
EXISTING: Final = _counter(
    "writes_existing_total", "Writes that found the file of an earlier attempt."
)
WRITTEN: Final = _counter("written_bytes_total", "Bytes of written files.")
RETRIES: Final = _counter("write_retries_total", "Attempts after the first one of a write.")
TIMED_OUT: Final = _counter(
    "writes_timed_out_total", "Callers that stopped waiting; their write may have succeeded."
)
LATENCY: Final = Metric(
    name="penstock_outbox_write_latency_seconds",
    kind="histogram",
    doc="Time from call to file, including admission and all attempts.",
    labels=_BY,
)
INLINE: Final = _counter("inline_records_total", "Payloads that were sent inline in their record.")
PUBLISHED: Final = _counter("published_records_total", "Records acknowledged by the topic.")
PUBLISH_FAILED: Final = _counter("publish_failed_total", "Records that were not acknowledged.")
IN_FLIGHT_BYTES: Final = _gauge("in_flight_bytes", "Payload bytes of writes in progress.")
IN_FLIGHT_OPERATIONS: Final = _gauge("in_flight_operations", "Writes in progress.")
PENDING: Final = _gauge("backpressure_pending", "Writes that wait for admission.")
QUEUED: Final = _gauge("publish_queue_records", "Records that wait to be published.", ())
QUEUED_BYTES: Final = _gauge(
    "publish_queue_bytes", "Bytes of keys and values that wait to be published.", ()
)
PUBLISHES: Final = _counter("publishes_total", "Writes to the topic; each has many records.", ())


@dataclass(slots=True, kw_only=True)
class PartitionCounts:
    succeeded: int = 0
    failed: int = 0
    existing: int = 0
    written_bytes: int = 0
    retries: int = 0
    timed_out: int = 0
    inline: int = 0
    published: int = 0
    publish_failed: int = 0
    in_flight_bytes: int = 0
    in_flight_operations: int = 0
    pending: int = 0
    latency: Histogram = field(default_factory=Histogram)


class WriterCounts:
    """Counts of one writer; they belong to its loop's thread."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[str, PartitionCounts] = {}

    def of(self, partition_id: str) -> PartitionCounts:
        counts = self._by_partition.get(partition_id)
        if counts is None:
            if len(self._by_partition) >= limits.PARTITION_LABELS_MAX:
                partition_id = OTHER
            counts = self._by_partition.setdefault(partition_id, PartitionCounts())
        return counts

    def samples(self) -> Iterator[Sample]:
        for label, counts in self._by_partition.items():
            labels = (label,)
            yield Sample(SUCCEEDED, counts.succeeded, labels)
            yield Sample(FAILED, counts.failed, labels)
            yield Sample(EXISTING, counts.existing, labels)
            yield Sample(WRITTEN, counts.written_bytes, labels)
            yield Sample(RETRIES, counts.retries, labels)
            yield Sample(TIMED_OUT, counts.timed_out, labels)
            yield Sample(LATENCY, counts.latency, labels)
            yield Sample(INLINE, counts.inline, labels)
            yield Sample(PUBLISHED, counts.published, labels)
            yield Sample(PUBLISH_FAILED, counts.publish_failed, labels)
            yield Sample(IN_FLIGHT_BYTES, counts.in_flight_bytes, labels)
            yield Sample(IN_FLIGHT_OPERATIONS, counts.in_flight_operations, labels)
            yield Sample(PENDING, counts.pending, labels)


CONSUMED: Final = _counter("consumed_batches_total", "Batches that were processed.", ())
CONSUMED_BYTES: Final = _counter("consumed_bytes_total", "Bytes of returned payloads.", ())
CONSUMED_INLINE: Final = _counter("consumed_inline_total", "Processed inline batches.", ())
DUPLICATES: Final = _counter("duplicates_total", "Batches skipped as processed before.", ())
CONFLICTS: Final = _counter(
    "conflicts_total", "Records skipped, as their batch was processed with another payload.", ()
)
READ_RETRIES: Final = _counter("read_retries_total", "Reads of a payload after its first one.", ())
DEAD_LETTERS: Final = _counter(
    "dead_letters_total", "Records sent to the dead-letter topic.", ("reason",)
)
COMMITS: Final = _counter("commits_total", "Commits of the group's offsets.", ())
LOST: Final = _counter(
    "lost_records_total", "Offsets that retention removed before they were read.", ()
)
SWEEPS: Final = _counter("sweeps_total", "Completed sweeps.", ())
SWEPT: Final = _counter("swept_payloads_total", "Payloads removed.", ())
SWEPT_BYTES: Final = _counter("swept_bytes_total", "Bytes of payloads removed.", ())
SWEPT_TEMPORARIES: Final = _counter("swept_temporaries_total", "Temporary files removed.", ())
SWEEP_FAILURES: Final = _counter("sweep_failures_total", "Failed reads and removals.", ())
WAITING: Final = _gauge("waiting_payloads", "Payloads that a group has yet to read.", ())
UNREFERENCED: Final = _gauge("unreferenced_payloads", "Old payloads without a pointer.", ())


@dataclass(slots=True)
class ConsumerCounters:
    messages: int = 0
    payload_bytes: int = 0
    inline: int = 0
    duplicates: int = 0
    conflicts: int = 0
    retries: int = 0
    dead_letters: int = 0
    dead_letters_by_reason: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    lost_records: int = 0
    """Offsets that retention removed before they were read."""
    remembered: int = 0
    """Batches added to the dedup window at the start."""

    def samples(self) -> Iterator[Sample]:
        yield Sample(CONSUMED, self.messages)
        yield Sample(CONSUMED_BYTES, self.payload_bytes)
        yield Sample(CONSUMED_INLINE, self.inline)
        yield Sample(DUPLICATES, self.duplicates)
        yield Sample(CONFLICTS, self.conflicts)
        yield Sample(READ_RETRIES, self.retries)
        yield Sample(COMMITS, self.commits)
        yield Sample(LOST, self.lost_records)
        for reason, count in self.dead_letters_by_reason.items():
            yield Sample(DEAD_LETTERS, count, (reason,))


@dataclass(slots=True)
class SweeperCounts:
    sweeps: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    temporaries: int = 0
    failures: int = 0
    waiting: int = 0
    unreferenced: int = 0

    def samples(self) -> Iterator[Sample]:
        yield Sample(SWEEPS, self.sweeps)
        yield Sample(SWEPT, self.payloads)
        yield Sample(SWEPT_BYTES, self.payload_bytes)
        yield Sample(SWEPT_TEMPORARIES, self.temporaries)
        yield Sample(SWEEP_FAILURES, self.failures)
        yield Sample(WAITING, self.waiting)
        yield Sample(UNREFERENCED, self.unreferenced)
