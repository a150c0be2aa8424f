"""Core that resigns leadership of partitions whose acknowledgement quorum this broker cannot reach.

A leader without a quorum of reachable replicas rejects writes, but keeps leadership while its
broker is registered. It therefore resigns after `patience_seconds`. Its successor is the next live
replica in the partition's list of replicas, after the last one the first. A successor without a
quorum resigns in the same way. A leader does not resign if the live replicas without it are fewer
than a quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.control.epochs.values import Resignation
from penstock.control.limits import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.replication.epoch import Phase

if TYPE_CHECKING:
    from penstock.control import Partition as PartitionRow
    from penstock.replication.service import ReplicatedLog


class CutOff:
    """Partitions whose quorum this broker cannot reach, and when it was first missing.

    `patience_seconds` is the time without a quorum before a resignation.
    """

    def __init__(self, node_id: int, patience_seconds: float) -> None:
        self._node_id = node_id
        self._patience_seconds = patience_seconds
        self._since: dict[ReplicatedLog, float] = {}

    def look(
        self,
        logs: Iterable[ReplicatedLog],
        *,
        now: float,
        live: Container[int],
        row_of: Callable[[ReplicatedLog], PartitionRow | None],
    ) -> dict[ReplicatedLog, Resignation]:
        """Return the resignations that are due, as many as one call of the control plane takes.

        `now` is monotonic seconds; `live` are the ids of live brokers.
        """
        before, self._since = self._since, {}
        found: dict[ReplicatedLog, Resignation] = {}
        for log in logs:
            row = row_of(log)
            successor = None if row is None else self._successor(log, row, live)
            if row is None or successor is None:
                continue
            since = self._since[log] = before.get(log, now)
            late = now - since >= self._patience_seconds
            if late and len(found) < EPOCH_PARTITIONS_PER_CALL_MAX:
                topic_id, number = log.key
                found[log] = Resignation(UUID(bytes=topic_id), number, row.leader_epoch, successor)
        return found

    def _successor(self, log: ReplicatedLog, row: PartitionRow, live: Container[int]) -> int | None:
        """Return the broker that should lead instead of this one; None to keep leading."""
        leading, own = log.leading, self._node_id
        if row.leader != own or leading is None or leading.core.phase is Phase.STOPPED:
            return None
        acks = leading.core.quorum.acks
        if leading.reachable() >= acks:
            return None
        place = row.replicas.index(own) + 1 if own in row.replicas else 0
        ordered = row.replicas[place:] + row.replicas[:place]
        others = [broker_id for broker_id in ordered if broker_id != own and broker_id in live]
        return others[0] if len(others) >= acks else None
