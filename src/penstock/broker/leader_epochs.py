"""Checks of a client's leader epoch against a partition (KIP-320, KIP-595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.diskless import is_diskless
from penstock.broker.errors import FencedLeaderEpoch, UnknownLeaderEpoch
from penstock.control.epochs.values import FIRST_EPOCH

if TYPE_CHECKING:
    from penstock.control import Partition as PartitionRow
    from penstock.control import Topic
    from penstock.partitions import Partition


def serving_epoch(topic: Topic, row: PartitionRow) -> int:
    """Return the epoch for clients: that of a new partition is the one about to be opened."""
    return FIRST_EPOCH + 1 if is_unopened(topic, row) else row.leader_epoch


def is_unopened(topic: Topic, row: PartitionRow) -> bool:
    """Return whether a partition has several replicas and is in its initial, leaderless epoch."""
    created = row.leader_epoch == FIRST_EPOCH and len(row.replicas) > 1
    return created and not is_diskless(topic)


def check_epoch(partition: Partition, epoch: int) -> None:
    """Check the client's leader epoch; raises FencedLeaderEpoch, UnknownLeaderEpoch."""
    if epoch < 0 or epoch == partition.leader_epoch:
        return
    known = partition.leader_epoch
    text = f"{partition.topic_partition} is at leader epoch {known}, the client at {epoch}"
    raise FencedLeaderEpoch(text) if epoch < known else UnknownLeaderEpoch(text)


def parts_from(partition: Partition, epoch: int, offset: int) -> tuple[int, int] | None:
    """Return the point where a partition's log diverges from a client's log.

    The client's record before `offset` has leader epoch `epoch`; -1 means that the client sends
    none. The result is the largest epoch not above it and that epoch's end offset; None if no
    divergence is known. Diskless partitions are never truncated.

    Raises:
        NotLeading: this broker does not lead the partition.
    """
    if epoch < 0 or partition.everywhere:
        return None
    known, end = partition.end_offset_for_epoch(epoch)
    return (known, end) if known >= 0 and (known < epoch or end < offset) else None
