"""Which partitions this broker leads in vain, while others may reach each other. No I/O.

Who reaches fewer copies than must acknowledge refuses writes, and nobody takes its place while it
is registered. So after a while it has the next of the replicas lead, in the order of their list
and from the last to the first: who of them does not reach enough does the same. None is asked
where those that are registered would be too few without this broker: then waiting is as good.
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
    """See the module's text. `patience_seconds` is how long links may be lost before."""

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
        """What to give up now, at most as much as one call takes.

        `now` are monotonic seconds, `live` the registered brokers; `row_of` says what the image has
        of a partition.
        """
        before, self._since = self._since, {}
        found: dict[ReplicatedLog, Resignation] = {}
        for log in logs:
            row = row_of(log)
            heir = None if row is None else self._heir(log, row, live)
            if row is None or heir is None:
                continue
            since = self._since[log] = before.get(log, now)
            late = now - since >= self._patience_seconds
            if late and len(found) < EPOCH_PARTITIONS_PER_CALL_MAX:
                topic_id, number = log.key
                found[log] = Resignation(UUID(bytes=topic_id), number, row.leader_epoch, heir)
        return found

    def _heir(self, log: ReplicatedLog, row: PartitionRow, live: Container[int]) -> int | None:
        """Who should try to lead instead; None while this broker can, or nobody else could."""
        leading, own = log.leading, self._node_id
        if row.leader != own or leading is None or leading.core.phase is Phase.STOPPED:
            return None
        acks = leading.core.quorum.acks
        if leading.reachable() >= acks:
            return None
        place = row.replicas.index(own) + 1 if own in row.replicas else 0
        ordered = row.replicas[place:] + row.replicas[:place]
        others = [one for one in ordered if one != own and one in live]
        return others[0] if len(others) >= acks else None
