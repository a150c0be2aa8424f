"""Checks of the leader epoch in a request against the epoch of the partition (KIP-320, KIP-595)."""

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
    """Return the leader epoch that clients get; for a new partition the one about to be opened."""
    return FIRST_EPOCH + 1 if is_unopened(topic, row) else row.leader_epoch


def is_unopened(topic: Topic, row: PartitionRow) -> bool:
    """Return whether a new partition with several replicas has not had a leader yet."""
    created = row.leader_epoch == FIRST_EPOCH and len(row.replicas) > 1
    return created and not is_diskless(topic)


def check_epoch(partition: Partition, epoch: int) -> None:
    """Check the leader epoch of a request; a negative epoch is always accepted.

    Raises:
        FencedLeaderEpoch: it is older than the partition's epoch.
        UnknownLeaderEpoch: it is newer than the partition's epoch.
    """
    if epoch < 0 or epoch == partition.leader_epoch:
        return
    known = partition.leader_epoch
    text = f"{partition.topic_partition} has leader epoch {known}, but the request has {epoch}"
    raise FencedLeaderEpoch(text) if epoch < known else UnknownLeaderEpoch(text)


def parts_from(partition: Partition, epoch: int, offset: int) -> tuple[int, int] | None:
    """Return where a partition's log diverges from a client's log: a leader epoch and its end.

    `epoch` is the leader epoch of the client's record before `offset`, -1 if the client sent none.
    The returned epoch is the largest in the partition that does not exceed `epoch`. None means that
    no divergence is known. Diskless logs never diverge, because they are never truncated.

    Raises:
        NotLeading: this broker does not lead the partition.
    """
    if epoch < 0 or partition.everywhere:
        return None
    known, end = partition.end_offset_for_epoch(epoch)
    return (known, end) if known >= 0 and (known < epoch or end < offset) else None
