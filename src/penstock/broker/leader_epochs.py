"""The check of a client's leader epoch against a partition's (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.errors import FencedLeaderEpoch, UnknownLeaderEpoch

if TYPE_CHECKING:
    from penstock.partitions import Partition


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
