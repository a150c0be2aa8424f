"""Reassignment of the replicas of partitions that this broker leads.

| state of the reassignment                          | action of the leader                       |
|----------------------------------------------------|--------------------------------------------|
| replicas must be added                             | sends them the log                         |
| an added replica lacks committed records           | waits                                      |
| the added replicas have all committed records:     |                                            |
| - the leader is one of the target replicas         | claims an epoch with the target replicas   |
| - another current replica is a target replica      | hands leadership to it; it continues       |
| - no current replica is a target replica           | claims an epoch with the target and itself |

Before a claim the leader stops appending until all its appends are committed and the added replicas
have them (`Leadership.hand_over`, to itself). A reassignment that adds no replicas is completed by
the next claim of any kind. A leader that gets no new epoch in time keeps its replicas and retries.
Safety depends only on `replication/epoch.py` and the control plane's compare-and-set.

Source: KIP-455; `docs/decisions/0027-replicas-learn-before-they-count.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.control import Partition as PartitionRow
    from penstock.replication.peer_format import PartitionKey
    from penstock.replication.service import ReplicatedLog, Replication


class Moves:
    """Reassignments in progress of partitions on this broker. Belongs to the event loop."""

    def __init__(
        self, replication: Replication, row_of: Callable[[PartitionKey], PartitionRow | None]
    ) -> None:
        self._replication = replication
        self._row_of = row_of
        self._ordered: dict[ReplicatedLog, None] = {}
        """Partitions with a reassignment."""
        self._begun: dict[PartitionKey, int] = {}
        """Ids of the reassignments that this broker's next claims complete."""

    def look_at(self, log: ReplicatedLog, row: PartitionRow) -> None:
        """Add a partition of a new metadata image if it has a reassignment."""
        if row.move:
            self._ordered[log] = None

    def go_on(self) -> None:
        """Take the next step of every reassignment; called periodically."""
        for log in list(self._ordered):
            row = self._row_of(log.key)
            gone = self._replication.logs.get(log.key) is not log
            if gone or row is None or not row.move:
                del self._ordered[log]
                self._begun.pop(log.key, None)
            if not gone and row is not None:
                self._go_on(log, row)

    def _go_on(self, log: ReplicatedLog, row: PartitionRow) -> None:
        leading = log.leading
        if leading is None or not leading.leads or leading.successor is not None:
            return
        if leading.learn(row.adding):
            self._replication.stir(log)
        if not row.move or log.claiming or not leading.has_learnt():
            return
        own = self._replication.broker_id
        staying = [broker_id for broker_id in row.target if broker_id in row.replicas]
        if own in staying or not staying:
            self._begun[log.key] = row.move
            self._replication.hand_over(log, own)
            return
        successor = next(filter(leading.may_inherit, staying), None)
        if successor is not None:
            self._replication.hand_over(log, successor)

    def placement(
        self, key: PartitionKey, row: PartitionRow, before: tuple[int, ...]
    ) -> tuple[tuple[int, ...], int]:
        """Return the replicas of the next epoch, and the id of the reassignment that it completes.

        The id is 0 if the epoch completes none. `before` are the replicas of the previous epoch.
        """
        own, begun = self._replication.broker_id, self._begun.pop(key, 0)
        stays = own in row.target
        if row.move and (begun == row.move or (stays and {*row.target} <= {*before})):
            return (row.target if stays else (*row.target, own)), row.move
        return (row.replicas if {*row.replicas} == {*before} else before), 0
