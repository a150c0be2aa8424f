"""Metrics of the outbox's writer (by partition id), consumer and sweeper.

Callers choose partition ids, so their number is unbounded: the first 100 ids of a writer have their
own series, all later ones share the label `(other)`, which is not a valid id. (A label never
changes its meaning, which would break rates.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metrics, Sample, counter, counters, gauge, histogram

OTHER: Final = "(other)"
PARTITION_LABELS_MAX: Final = 100
"""Partition ids of a writer that have series of their own."""
PREFIX: Final = "penstock_outbox_"


class PartitionCounts(Metrics, prefix=PREFIX, labels=("partition_id",)):
    succeeded = counter("writes_succeeded_total", "Complete files, including existing ones.")
    failed = counter("writes_failed_total", "Writes that failed after their last attempt.")
    existing = counter("writes_existing_total", "Writes that found the file of an earlier attempt.")
    written_bytes = counter("written_bytes_total", "Bytes of written files.")
    retries = counter("write_retries_total", "Attempts after the first one of a write.")
    timed_out = counter(
        "writes_timed_out_total", "Callers that stopped waiting; their write may have succeeded."
    )
    latency = histogram(
        "write_latency_seconds", "Time from call to file, including admission and all attempts."
    )
    inline = counter("inline_records_total", "Payloads that were sent inline in their record.")
    published = counter("published_records_total", "Records acknowledged by the topic.")
    publish_failed = counter("publish_failed_total", "Records that were not acknowledged.")
    in_flight_bytes = gauge("in_flight_bytes", "Payload bytes of writes in progress.")
    in_flight_operations = gauge("in_flight_operations", "Writes in progress.")
    pending = gauge("backpressure_pending", "Writes that wait for admission.")


class WriterCounts:
    """Counts of one writer; they belong to its loop's thread."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[str, PartitionCounts] = {}

    def of(self, partition_id: str) -> PartitionCounts:
        counts = self._by_partition.get(partition_id)
        if counts is None:
            if len(self._by_partition) >= PARTITION_LABELS_MAX:
                partition_id = OTHER
            counts = self._by_partition.setdefault(partition_id, PartitionCounts())
        return counts

    def samples(self) -> Iterator[Sample]:
        for label, counts in self._by_partition.items():
            yield from counts.samples(label)


class PublisherCounts(Metrics, prefix=PREFIX):
    waiting_records = gauge("publish_queue_records", "Records that wait to be published.")
    waiting_bytes = gauge(
        "publish_queue_bytes", "Bytes of keys and values that wait to be published."
    )
    publishes = counter("publishes_total", "Writes to the topic; each has many records.")


class ConsumerCounters(Metrics, prefix=PREFIX):
    __slots__ = ("remembered",)

    messages = counter("consumed_batches_total", "Batches that were processed.")
    payload_bytes = counter("consumed_bytes_total", "Bytes of returned payloads.")
    inline = counter("consumed_inline_total", "Processed inline batches.")
    duplicates = counter("duplicates_total", "Batches skipped as processed before.")
    conflicts = counter(
        "conflicts_total", "Records skipped, as their batch was processed with another payload."
    )
    retries = counter("read_retries_total", "Reads of a payload after its first one.")
    commits = counter("commits_total", "Commits of the group's offsets.")
    lost_records = counter(
        "lost_records_total", "Offsets that retention removed before they were read."
    )
    dead_letters_by_reason: dict[str, int] = counters(
        "dead_letters_total", "Records sent to the dead-letter topic.", "reason"
    )

    def __init__(self) -> None:
        super().__init__()
        self.remembered = 0
        """Batches added to the dedup window at the start."""

    @property
    def dead_letters(self) -> int:
        return sum(self.dead_letters_by_reason.values())


class SweeperCounts(Metrics, prefix=PREFIX):
    sweeps = counter("sweeps_total", "Completed sweeps.")
    payloads = counter("swept_payloads_total", "Payloads removed.")
    payload_bytes = counter("swept_bytes_total", "Bytes of payloads removed.")
    temporaries = counter("swept_temporaries_total", "Temporary files removed.")
    failures = counter("sweep_failures_total", "Failed reads and removals.")
    waiting = gauge("waiting_payloads", "Payloads that a group has yet to read.")
    unreferenced = gauge("unreferenced_payloads", "Old payloads without a pointer.")
