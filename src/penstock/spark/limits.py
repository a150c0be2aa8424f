"""Limits of one trigger: pure arithmetic over backlogs.

A limit is shared over the partitions in proportion to their backlogs, so that event time stays
aligned between them. Every partition with a backlog advances by at least one record. As in Spark's
Kafka source the record limit counts offsets, which is the number of records unless the topic is
compacted.

Source: the rate limit of Spark's `KafkaMicroBatchStream`.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.ids import TopicPartition

Offsets = Mapping[TopicPartition, int]


def backlog(start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Return the offsets not yet read per partition; never negative."""
    return {at: max(0, end - start[at]) for at, end in latest.items()}


def share_records(start: Offsets, latest: Offsets, records_max: int) -> dict[TopicPartition, int]:
    """Return end offsets with about `records_max` offsets between start and end in all."""
    waiting = backlog(start, latest)
    total = sum(waiting.values())
    if total <= records_max:
        return dict(latest)
    ends: dict[TopicPartition, int] = {}
    allowance = records_max
    for at in sorted(waiting):
        count = waiting[at]
        fair = max(1, count * records_max // total) if count else 0
        taken = min(count, fair, allowance)
        allowance -= taken
        ends[at] = start[at] + taken
    return ends


def share_bytes(
    start: Offsets, latest: Offsets, sizes_bytes: Mapping[TopicPartition, int], bytes_max: int
) -> dict[TopicPartition, int]:
    """Return end offsets with about `bytes_max` bytes of log between start and end in all.

    `sizes_bytes` are the stored (compressed) sizes of [start, latest) of each partition; records
    are assumed to have equal size. Every partition with a backlog advances.
    """
    total = sum(sizes_bytes.values())
    if total <= bytes_max:
        return dict(latest)
    waiting = backlog(start, latest)
    return {
        at: start[at] + min(count, max(1, count * bytes_max // total) if count else 0)
        for at, count in waiting.items()
    }


def worth_waiting(
    start: Offsets, latest: Offsets, *, records_min: int, waited_ms: int, delay_max_ms: int
) -> bool:
    """Whether to skip a trigger because its backlog is small and it is early."""
    return sum(backlog(start, latest).values()) < records_min and waited_ms < delay_max_ms
