"""Metrics of the outbox's writer (by partition id), consumer and sweeper.

Callers choose partition ids, so their number is unlimited. The first 100 ids of a writer have their
own time series. All later ids share the label `(other)`, which is not a valid id. A label never
changes its meaning, which would make rates wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metrics, Sample, counter, counters, gauge, histogram

OTHER: Final = "(other)"
PARTITION_LABELS_MAX: Final = 100
"""Partition ids of a writer that have their own time series."""
PREFIX: Final = "penstock_outbox_"


class PartitionCounts(Metrics, prefix=PREFIX, labels=("partition_id",)):
    succeeded = counter(
        "writes_succeeded_total",
        "Writes that ended with a complete file, also one of an earlier attempt.",
    )
    failed = counter("writes_failed_total", "Writes that failed after their last attempt.")
    existing = counter("writes_existing_total", "Writes that found the file of an earlier attempt.")
    written_bytes = counter("written_bytes_total", "Bytes of written files.")
    retries = counter("write_retries_total", "Repeated attempts of writes.")
    timed_out = counter(
        "writes_timed_out_total", "Callers whose timeout passed. Their write may have succeeded."
    )
    latency = histogram(
        "write_latency_seconds", "Time from the call to the complete file, including admission."
    )
    inline = counter("inline_records_total", "Payloads that were sent in the record itself.")
    published = counter("published_records_total", "Records acknowledged by the topic.")
    publish_failed = counter("publish_failed_total", "Records that were not acknowledged.")
    in_flight_bytes = gauge("in_flight_bytes", "Payload bytes of writes in progress.")
    in_flight_operations = gauge("in_flight_operations", "Writes in progress.")
    pending = gauge("backpressure_pending", "Writes that wait for admission.")


class WriterCounts:
    """Metrics of one writer. They belong to the thread of its event loop."""

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
    publishes = counter("publishes_total", "Writes to the topic, each of up to 1,024 records.")


class ConsumerCounters(Metrics, prefix=PREFIX):
    __slots__ = ("remembered",)

    messages = counter("consumed_batches_total", "Batches that were processed.")
    payload_bytes = counter("consumed_bytes_total", "Bytes of payloads that the consumer returned.")
    inline = counter("consumed_inline_total", "Processed inline batches.")
    duplicates = counter(
        "duplicates_total", "Batches skipped because they had been processed before."
    )
    conflicts = counter(
        "conflicts_total", "Records skipped because their batch was processed with another payload."
    )
    retries = counter("read_retries_total", "Repeated reads of payloads.")
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
        """Batches that were added to the dedup window at the start."""

    @property
    def dead_letters(self) -> int:
        return sum(self.dead_letters_by_reason.values())


class SweeperCounts(Metrics, prefix=PREFIX):
    sweeps = counter("sweeps_total", "Completed sweeps.")
    payloads = counter("swept_payloads_total", "Payloads removed.")
    payload_bytes = counter("swept_bytes_total", "Bytes of payloads removed.")
    temporaries = counter("swept_temporaries_total", "Temporary files removed.")
    failures = counter("sweep_failures_total", "Reads and removals that failed.")
    waiting = gauge("waiting_payloads", "Payloads that a group has yet to read.")
    unreferenced = gauge(
        "unreferenced_payloads", "Payloads without a pointer, older than retention and grace."
    )
