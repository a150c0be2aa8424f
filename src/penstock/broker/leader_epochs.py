"""The checks of what a client knows of leader epochs against a partition (KIP-320, KIP-595)."""

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
    """Return the leader epoch of a partition for clients.

    Clients get the epoch that the leader of a new partition is about to open, so that it does not
    change under them when the leader has opened it.
    """
    return FIRST_EPOCH + 1 if is_unopened(topic, row) else row.leader_epoch


def is_unopened(topic: Topic, row: PartitionRow) -> bool:
    """Return whether a partition has several replicas, and no leader yet.

    It is in the epoch in which it was created, which no leader serves.
    """
    created = row.leader_epoch == FIRST_EPOCH and len(row.replicas) > 1
    return created and not is_diskless(topic)


def check_epoch(partition: Partition, epoch: int) -> None:
    """Compare the leader epoch that a client knows; -1 means it does not say.

    Raises:
        FencedLeaderEpoch: the client's is older.
        UnknownLeaderEpoch: the client's is newer.
    """
    if epoch < 0 or epoch == partition.leader_epoch:
        return
    known = partition.leader_epoch
    text = f"{partition.topic_partition} is at leader epoch {known}, the client at {epoch}"
    raise FencedLeaderEpoch(text) if epoch < known else UnknownLeaderEpoch(text)


def parts_from(partition: Partition, epoch: int, offset: int) -> tuple[int, int] | None:
    """Where a partition's log parts from one whose record before `offset` is of an epoch.

    As the largest epoch not above that one, and where it ends; None if it does not part from it, as
    far as is known. An epoch of -1 means that the client does not say. Diskless partitions are
    never cut.

    Raises:
        NotLeading: what this broker has says nothing, as it does not lead the partition.
    """
    if epoch < 0 or partition.everywhere:
        return None
    known, end = partition.end_offset_for_epoch(epoch)
    return (known, end) if known >= 0 and (known < epoch or end < offset) else None
