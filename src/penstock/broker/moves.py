"""Reassignment of the replicas of partitions that this broker leads.

| a leader finds                             | then                                              |
|--------------------------------------------|---------------------------------------------------|
| adding replicas                            | they copy the log                                 |
| not all of them have all committed records | it waits                                          |
| they have, and the leader stays            | it claims an epoch with the target replicas       |
| the leader goes, target not all replicas   | a staying replica becomes leader and does the rest|
| the leader goes, target are all replicas   | it claims an epoch with the target and itself     |

Before a claim the leader stops appending until all its appends are committed and the adding
replicas have them (`Leadership.hand_over`, to itself). A reassignment without adding replicas is
carried out by any claim. A leader that gets no epoch in time retains its replicas and retries.
Safety depends on `replication/epoch.py` and the control plane's compare-and-set only.

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
    """Reassignments in progress. Belongs to the event loop."""

    def __init__(
        self, replication: Replication, row_of: Callable[[PartitionKey], PartitionRow | None]
    ) -> None:
        self._replication = replication
        self._row_of = row_of
        self._ordered: dict[ReplicatedLog, None] = {}
        """Partitions with a reassignment."""
        self._begun: dict[PartitionKey, int] = {}
        """Reassignments that this broker's next claims carry out."""

    def look_at(self, log: ReplicatedLog, row: PartitionRow) -> None:
        """Register a partition of a new image."""
        if row.move:
            self._ordered[log] = None

    def go_on(self) -> None:
        """Continue all reassignments; called periodically."""
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
        """Return the replicas of the next epoch, and the reassignment that it carries out."""
        own, begun = self._replication.broker_id, self._begun.pop(key, 0)
        stays = own in row.target
        if row.move and (begun == row.move or (stays and {*row.target} <= {*before})):
            return (row.target if stays else (*row.target, own)), row.move
        return (row.replicas if {*row.replicas} == {*before} else before), 0
