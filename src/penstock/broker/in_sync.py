"""Core that computes the in-sync replicas of the partitions that this broker leads.

A replica is in sync if its broker is registered and it had the leader's whole log at some time
within the last `replica.lag.time.max.ms`. Each check records the end offset of the log. A replica
that later has all records up to this offset was caught up at the time of that check. A replica that
is always slightly behind thus stays in sync. Partitions without changes are not checked.

Source: `Replica.updateFetchStateOrThrow` and `isCaughtUp` of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.control.epochs.values import InSyncReplicas
from penstock.control.limits import EPOCH_PARTITIONS_PER_CALL_MAX

if TYPE_CHECKING:
    from penstock.control import Partition as PartitionRow
    from penstock.replication.epoch import Epoch
    from penstock.replication.service import ReplicatedLog


class _Seen:
    """State of a partition at its last check.

    `end` is the log's end offset then, `caught_up_ms` the last time at which each replica had the
    whole log.
    """

    __slots__ = ("caught_up_ms", "end", "epoch", "looked_ms")

    def __init__(self, epoch: int, end: int, now_ms: int, in_sync: Iterable[int]) -> None:
        self.epoch = epoch
        self.end = end
        self.looked_ms = now_ms
        self.caught_up_ms = dict.fromkeys(in_sync, now_ms)


class InSync:
    """Computation of in-sync replicas; `lag_ms` is `replica.lag.time.max.ms`."""

    def __init__(self, lag_ms: int) -> None:
        self._lag_ms = lag_ms
        self._seen: dict[ReplicatedLog, _Seen] = {}
        self._behind: dict[ReplicatedLog, None] = {}
        self._looked_ms = 0

    def look(
        self,
        touched: Iterable[ReplicatedLog],
        *,
        now_ms: int,
        live: Container[int],
        row_of: Callable[[ReplicatedLog], PartitionRow | None],
    ) -> list[InSyncReplicas]:
        """Return the partitions whose in-sync replicas have changed, with the new ones.

        Partitions in `touched` are checked, and those with a lagging replica at the last check.
        """
        changes: list[InSyncReplicas] = []
        behind, self._behind = self._behind, {}
        for log in {**behind, **dict.fromkeys(touched)}:
            if len(changes) == EPOCH_PARTITIONS_PER_CALL_MAX:
                self._behind[log] = None
                continue
            row, leading = row_of(log), log.leading
            if row is None or leading is None or not leading.leads:
                self._seen.pop(log, None)
                continue
            core = leading.core
            seen = self._seen.get(log)
            if seen is None or seen.epoch != core.epoch:
                seen = self._seen[log] = _Seen(core.epoch, core.end, now_ms, row.isr)
            elif log not in behind:  # all replicas had the whole log until the last check
                seen.looked_ms = self._looked_ms
                seen.caught_up_ms = dict.fromkeys(row.isr, self._looked_ms)
            found, waits = self._found(core, seen, now_ms, live)
            if waits or set(found) != set(row.isr):
                self._behind[log] = None
            own = log.broker_id
            if set(found) != set(row.isr) and own in found:
                topic_id, partition = log.key
                ordered = tuple([replica for replica in row.replicas if replica in found])
                changes.append(InSyncReplicas(UUID(bytes=topic_id), partition, core.epoch, ordered))
        self._looked_ms = now_ms
        return changes

    def _found(
        self, core: Epoch, seen: _Seen, now_ms: int, live: Container[int]
    ) -> tuple[list[int], bool]:
        found, waits = [], False
        caught_up_ms = seen.caught_up_ms
        for replica, follower in core.followers.items():
            has_all = follower.joined and follower.durable >= core.end
            if has_all:
                caught_up_ms[replica] = now_ms
            elif follower.joined and follower.durable >= seen.end:
                caught_up_ms[replica] = seen.looked_ms
            last_ms = caught_up_ms.get(replica)
            since_ms = min(now_ms - self._lag_ms + 1, seen.looked_ms)
            if replica in live and last_ms is not None and last_ms >= since_ms:
                found.append(replica)
                waits = waits or not has_all
        seen.end, seen.looked_ms = core.end, now_ms
        return found, waits
