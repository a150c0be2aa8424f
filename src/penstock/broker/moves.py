"""How this broker carries out orders for other replicas of partitions that it leads.

| a leader finds                         | then                                         |
|----------------------------------------|----------------------------------------------|
| brokers that are to become replicas    | they learn the log                           |
| not all of them hold what is committed | it waits                                     |
| they do, and it is to stay             | it claims an epoch with the replicas ordered |
| it is to go, and not all replicas are  | one that stays shall lead, and do the rest   |
| it is to go, as all replicas are       | it claims one with those ordered and itself  |

To claim, it appends no more until all that it has appended is committed, and those that learn have
it (`Leadership.hand_over`, to itself). An order that nobody has to learn for is carried out by any
claim. Who gets no epoch in time keeps the replicas that there are, and tries again: safety is not
decided here (`replication/epoch.py`, and the compare-and-set of the control plane).

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
    """See the module's text. Belongs to the event loop."""

    def __init__(
        self, replication: Replication, row_of: Callable[[PartitionKey], PartitionRow | None]
    ) -> None:
        self._replication = replication
        self._row_of = row_of
        self._ordered: dict[ReplicatedLog, None] = {}
        """The partitions of which other replicas are ordered, or learn."""
        self._begun: dict[PartitionKey, int] = {}
        """The orders that this broker's next claims carry out."""

    def look_at(self, log: ReplicatedLog, row: PartitionRow) -> None:
        """A partition of a new image."""
        if row.move:
            self._ordered[log] = None

    def go_on(self) -> None:
        """Do what can be done now; called now and then."""
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
        if leading is None or not leading.leads or leading.heir is not None:
            return
        if leading.learn(row.adding):
            self._replication.stir(log)
        if not row.move or log.claiming or not leading.has_learnt():
            return
        own = self._replication.broker_id
        staying = [one for one in row.target if one in row.replicas]
        if own in staying or not staying:
            self._begun[log.key] = row.move
            self._replication.hand_over(log, own)
            return
        heir = next(filter(leading.may_inherit, staying), None)
        if heir is not None:
            self._replication.hand_over(log, heir)

    def placement(
        self, key: PartitionKey, row: PartitionRow, before: tuple[int, ...]
    ) -> tuple[tuple[int, ...], int]:
        """The replicas of an epoch that this broker claims after those, and the order for them."""
        own, begun = self._replication.broker_id, self._begun.pop(key, 0)
        stays = own in row.target
        if row.move and (begun == row.move or (stays and {*row.target} <= {*before})):
            return (row.target if stays else (*row.target, own)), row.move
        return (row.replicas if {*row.replicas} == {*before} else before), 0
