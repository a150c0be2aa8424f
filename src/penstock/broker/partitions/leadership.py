"""Core that resigns leadership of partitions whose acknowledgement quorum this broker cannot reach.

A leader without a quorum of reachable replicas rejects writes, but keeps leadership while its
broker is registered. It therefore resigns after `patience_seconds`. Its successor is the next live
replica in the partition's list of replicas, after the last one the first. A successor without a
quorum resigns in the same way. A leader does not resign if the live replicas without it are fewer
than a quorum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.broker.metadata.leaders import is_diskless
from penstock.control.values.epochs import InSyncReplicas, Resignation
from penstock.control.values.errors import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.replication.epoch import Epoch, Phase

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.control import MetadataImage, Partition
    from penstock.control import Partition as PartitionRow
    from penstock.replication.peer_format import PartitionKey
    from penstock.replication.service import ReplicatedLog, Replication


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


# Core that computes the in-sync replicas of the partitions that this broker leads.
#
# A replica is in sync if its broker is registered and it had the leader's whole log at some time
# within the last `replica.lag.time.max.ms`. Each check records the end offset of the log. A replica
# that later has all records up to this offset was caught up at the time of that check. A replica
# that is always slightly behind thus stays in sync. Partitions without changes are not checked.
#
# Source: `Replica.updateFetchStateOrThrow` and `isCaughtUp` of Kafka.


class _Seen:
    """State of a partition when its in-sync replicas were last checked.

    `end` is the end offset of the log at that time. `caught_up_ms` is the last time at which each
    replica had the whole log.
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
        """Return the new in-sync replicas of partitions for which they have changed.

        Only partitions in `touched`, and partitions that had a lagging replica at the last check,
        are checked.
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


# Gradual return of leadership to the preferred replicas of partitions.
#
# The first replica of a partition is its preferred leader. A leader hands a partition back to the
# preferred leader under two conditions. The preferred leader has the whole log. And its broker
# leads too few of the partitions that prefer it, which means that other brokers lead more than
# `leader.imbalance.per.broker.percentage` percent of them.
#
# Source: `ReplicationControlManager.maybeBalancePartitionLeaders` of Apache Kafka, and its
# settings.


BATCH_MAX: Final = 10
"""Largest number of partitions that a broker hands back at a time; each briefly has no leader."""
BATCH_SECONDS: Final = 1.0
"""Pause between two batches."""


class LeaderBalance:
    """Choice of the partitions whose leadership this broker returns to their preferred leaders."""

    def __init__(self, settings: BrokerSettings, now: float) -> None:
        self._enabled = settings.auto_leader_rebalance_enable
        self._interval = settings.leader_imbalance_check_interval_seconds
        self._percentage = settings.leader_imbalance_per_broker_percentage
        self._next = now + self._interval

    def due(
        self,
        now: float,
        image: MetadataImage | None,
        led: Iterable[tuple[ReplicatedLog, Partition | None]],
    ) -> Mapping[ReplicatedLog, int]:
        """Return the partitions to hand back at `now`, each with its preferred leader.

        Returns none until the check interval has passed. `now` is monotonic seconds.
        """
        if not self._enabled or image is None or now < self._next:
            return {}
        self._next = now + self._interval
        ready = {log: row.replicas[0] for log, row in led if row and _can_go_back(log, row)}
        if not ready:
            return {}
        preferring = imbalanced(image, self._percentage)
        chosen = [log for log, preferred in ready.items() if preferred in preferring]
        if len(chosen) > BATCH_MAX:
            self._next = now + BATCH_SECONDS
        return {log: ready[log] for log in chosen[:BATCH_MAX]}


def _can_go_back(log: ReplicatedLog, row: Partition) -> bool:
    leading, preferred = log.leading, row.replicas[0]
    if leading is None or not leading.leads or leading.successor is not None or row.move:
        return False
    return row.leader != preferred and preferred in row.isr and leading.may_inherit(preferred)


def imbalanced(image: MetadataImage, percentage: int) -> frozenset[int]:
    """Return the brokers that lead too few of the partitions whose preferred leader they are.

    Too few means that other brokers lead more than `percentage` percent of those partitions.
    """
    preferred: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for topic in image.topics.values():
        if is_diskless(topic):
            continue
        for row in topic.partitions:
            preferred[row.replicas[0]] += 1
            elsewhere[row.replicas[0]] += row.leader != row.replicas[0]
    return frozenset(
        broker_id
        for broker_id, count in elsewhere.items()
        if count * 100 > percentage * preferred[broker_id]
    )


# Reassignment of the replicas of partitions that this broker leads.
#
# | state of the reassignment                         | action of the leader                       |
# |---------------------------------------------------|--------------------------------------------|
# | replicas must be added                            | sends them the log                         |
# | an added replica lacks committed records          | waits                                      |
# | the added replicas have all committed records:    |                                            |
# | - the leader is one of the target replicas        | claims an epoch with the target replicas   |
# | - another current replica is a target replica     | hands leadership to it; it continues       |
# | - no current replica is a target replica          | claims an epoch with the target and itself |
#
# Before a claim the leader stops appending until all its appends are committed and the added
# replicas have them (`Leadership.hand_over`, to itself). A reassignment that adds no replicas is
# completed by the next claim of any kind. A leader that gets no new epoch in time keeps its
# replicas and retries. Safety depends only on `replication/epoch.py` and the control plane's
# compare-and-set.
#
# Source: KIP-455; `docs/decisions/0027-replicas-learn-before-they-count.md`.


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
