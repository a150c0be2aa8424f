"""The check of a client's leader epoch against a partition's (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.errors import FencedLeaderEpoch, UnknownLeaderEpoch

if TYPE_CHECKING:
    from penstock.broker.state import Log


def check_epoch(log: Log, epoch: int) -> None:
    """Compare the leader epoch that a client knows; -1 means it does not say.

    Raises:
        FencedLeaderEpoch: the client's is older.
        UnknownLeaderEpoch: the client's is newer.
    """
    if epoch < 0 or epoch == log.leader_epoch:
        return
    text = f"{log.topic_partition} is at leader epoch {log.leader_epoch}, the client at {epoch}"
    raise FencedLeaderEpoch(text) if epoch < log.leader_epoch else UnknownLeaderEpoch(text)
