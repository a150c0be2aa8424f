"""Registry of the partitions that this broker serves: opens, closes and finds them.

A local partition is served by its leader, from a log of the store. A diskless partition is served
by every broker that has an object store, through `DisklessService`. Changes of the metadata arrive
as deltas (`ClusterMetadata`). Unchanged partitions keep the objects that serve them.

Logs are created before a metadata image takes effect and deleted afterwards, a few in each turn of
the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.broker.metadata.leaders import is_diskless, serving_epoch
from penstock.broker.net.errors import NoObjectStore, NotLeader, UnknownTopicOrPartition
from penstock.control.rules.metadata import is_linked, link_epoch
from penstock.partitions import LocalPartition, ReplicatedPartition

if TYPE_CHECKING:
    from penstock.broker.metadata import ImageDelta
    from penstock.broker.partitions.replicas import Replicas
    from penstock.control import Partition as PartitionRow
    from penstock.control import Topic
    from penstock.diskless.topics.service import DisklessService
    from penstock.partitions import GroupCommits, Partition
    from penstock.partitions.tiering import TierService
    from penstock.replication.service import ReplicatedLog
    from penstock.storage import LogStore, PartitionLog


LOGS_CHANGED_PER_TURN: Final = 8
"""Limit of logs created or deleted in one turn of the event loop, which take milliseconds."""

logger = logging.getLogger(__name__)


class ServedTopic:
    """Topic with its partitions on this broker, by index.

    `partitions` are those that this broker serves to clients, `followed` those of which it is a
    follower. All others are None.
    """

    __slots__ = ("diskless", "encoded_name", "followed", "partitions", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.encoded_name = topic.name.encode()
        self.diskless = is_diskless(topic)
        self.partitions: list[Partition | None] = [None] * len(topic.partitions)
        self.followed: list[Partition | None] = [None] * len(topic.partitions)


class PartitionRegistry:
    """Topics, and the partitions that this broker serves. Belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        node_id: int,
        store: LogStore,
        commits: GroupCommits,
        diskless: DisklessService | None = None,
        replicas: Replicas | None = None,
        tiers: TierService | None = None,
    ) -> None:
        self.topics: dict[str, ServedTopic] = {}
        self.topics_by_name: dict[bytes, ServedTopic] = {}
        self.topics_by_id: dict[bytes, ServedTopic] = {}
        self.linked: dict[str, ServedTopic] = {}
        """Topics that follow topics of other clusters, by name."""
        self.generation = 0
        """Number that grows when partitions that were looked up before may have been replaced."""
        self.may_be_gone: Callable[[], bool] = lambda: False
        """Function: whether other brokers may have expired this one and lead its partitions."""
        self._node_id = node_id
        self._store = store
        self._commits = commits
        self.diskless = diskless
        self._replicas = replicas
        self._tiers = tiers
        self._filled: dict[TopicPartition, bool] = {}
        """Logs that are filled because their diskless topic becomes local; true once complete.
        Images in which the topic is still diskless do not delete them."""

    # -- look-ups ----------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """Return a served partition; raises UnknownTopicOrPartition, NotLeader, NoObjectStore."""
        served = self.topics.get(topic)
        if served is None:
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist")
        return self.partition_of(served, index)

    def partition_of(self, served: ServedTopic, index: int) -> Partition:
        """Return partition `index` of a topic; raises the errors of `partition`."""
        name, partitions = served.topic.name, served.partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopicOrPartition(
                f"topic {name!r} has partitions 0 to {len(partitions) - 1}, not {index}"
            )
        partition = partitions[index]
        if partition is not None:
            return partition
        if served.diskless:
            raise NoObjectStore(f"topic {name!r} is diskless, but this broker has no object store")
        row = served.topic.partitions[index]
        leader = f"its leader is {row.leader}" if row.leader >= 0 else "it has no leader"
        raise NotLeader(
            f"broker {self._node_id} does not lead partition {name}-{index}; {leader}",
            leader=(row.leader, serving_epoch(served.topic, row)) if row.leader >= 0 else None,
        )

    def followed(self, topic: str, index: int) -> LocalPartition | None:
        """Return this broker's follower replica of a partition; None without one."""
        served = self.topics.get(topic)
        if served is None or not 0 <= index < len(served.followed):
            return None
        copy = served.followed[index] if served.partitions[index] is None else None
        return copy if isinstance(copy, LocalPartition) else None

    def with_log(self, topic: str, index: int) -> LocalPartition:
        """Return a local partition that this broker leads.

        Raises:
            NotLeader: another broker leads it, or it is diskless.
            UnknownTopicOrPartition, NoObjectStore: as `partition`.
        """
        partition = self.partition(topic, index)
        if not isinstance(partition, LocalPartition):
            raise NotLeader(f"topic {topic!r} is diskless: {topic}-{index} has no log on brokers")
        return partition

    def high_watermark(self, topic: str, index: int) -> int | None:
        """Return a partition's high watermark; None if this broker does not know it."""
        served = self.topics.get(topic)
        if served is None or not 0 <= index < len(served.partitions):
            return None
        log = served.partitions[index]
        return None if log is None or log.high_watermark < 0 else log.high_watermark

    # -- logs of topics that get replicas ----------------------------------------------------

    async def begin_logs(self, topic: Topic, indexes: Sequence[int]) -> list[PartitionLog]:
        """Create empty logs for partitions of a diskless topic that becomes local.

        Existing logs of these partitions are deleted.

        Raises:
            StorageError: a log cannot be created or deleted.
        """
        topic_partitions = [TopicPartition(topic.name, index) for index in indexes]
        for count, where in enumerate(topic_partitions, 1):
            self._store.delete(where)
            self._filled[where] = False
            if count % LOGS_CHANGED_PER_TURN == 0:
                await _next_turn()
        logs = []
        for count, where in enumerate(topic_partitions, 1):  # after one checkpoint for all
            logs.append(self._store.create(where, topic_id=topic.topic_id, leader_epoch=-1))
            if count % LOGS_CHANGED_PER_TURN == 0:
                await _next_turn()
        return logs

    def finish_log(self, where: TopicPartition) -> None:
        """Record that a log of `begin_logs` is complete and may become a replica."""
        self._filled[where] = True

    async def drop_logs(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Delete logs of `begin_logs`, except those that have become replicas."""
        left = [where for where in topic_partitions if self._filled.pop(where, None) is not None]
        for count, where in enumerate(left, 1):
            self._delete(where)
            if count % LOGS_CHANGED_PER_TURN == 0:
                await _next_turn()

    # -- a new image -------------------------------------------------------------------------

    async def prepare(self, delta: ImageDelta) -> None:
        """Create the logs of new partitions. `apply` tries failed ones again and logs the error."""
        count = 0
        if self.diskless is not None:
            await self.diskless.prepare(delta.image, delta.changed)
        for topic in delta.changed:
            for row in self._rows_to_open(topic, self._kept(topic)):
                if TopicPartition(topic.name, row.index) in self._store.partitions:
                    continue
                with suppress(PenstockError):
                    self._log(topic, row)
                count += 1
                if count % LOGS_CHANGED_PER_TURN == 0:
                    await _next_turn()

    def apply(self, delta: ImageDelta) -> None:
        gone = delta.gone
        if delta.whole:
            there = delta.image.topics
            gone = [served.topic for name, served in self.topics.items() if name not in there]
        for topic in gone:
            self.linked.pop(topic.name, None)
            self.topics_by_id.pop(topic.topic_id.bytes, None)
            if topic.name not in delta.image.topics:
                self.topics_by_name.pop(topic.name.encode(), None)
                self.topics.pop(topic.name, None)
        for topic in delta.changed:
            known = self.topics.get(topic.name)
            if known is not None:
                if known.topic == topic:
                    continue
                self.topics_by_id.pop(known.topic.topic_id.bytes, None)
            served = self._open(topic)
            self.topics[topic.name] = self.topics_by_name[served.encoded_name] = served
            self.topics_by_id[topic.topic_id.bytes] = served
            if is_linked(topic):
                self.linked[topic.name] = served
            else:
                self.linked.pop(topic.name, None)
        if gone or delta.changed:
            self.generation += 1
        if self._replicas is not None:
            self._replicas.follow(delta)

    async def clean_up(self, delta: ImageDelta) -> None:
        """Delete the logs of removed partitions, a few in each turn of the loop."""
        if self.diskless is not None:
            left = [topic for topic in delta.changed if not is_diskless(topic)]
            self.diskless.forget_gone(delta.image, None if delta.whole else (*delta.gone, *left))
        store, count = self._store, 0
        for where in list(store.partitions) if delta.whole else list(_logs_to_look_at(delta)):
            topic = delta.image.topics.get(where.topic)
            gone = topic is None or is_diskless(topic) or where.partition >= len(topic.partitions)
            if topic is not None and is_diskless(topic) and where in self._filled:
                continue
            if topic is not None and not gone:
                gone = self._is_removed(topic.partitions[where.partition])
            if gone and where in store.partitions:
                self._delete(where)
                count += 1
                if count % LOGS_CHANGED_PER_TURN == 0:
                    await _next_turn()

    def _delete(self, where: TopicPartition) -> None:
        try:
            self._store.delete(where)
        except PenstockError as error:
            logger.error(
                "could not delete the log of %s, retrying at the next start: %s", where, error
            )

    def _kept(self, topic: Topic) -> ServedTopic | None:
        """Return the served topic whose partitions may be reused: same id, not diskless."""
        known = self.topics.get(topic.name)
        same = (
            known is not None
            and known.topic.topic_id == topic.topic_id
            and is_linked(known.topic) == is_linked(topic)
        )
        return known if same and known is not None and not known.diskless else None

    def _rows_to_open(self, topic: Topic, kept: ServedTopic | None) -> list[PartitionRow]:
        """Return the partitions of a local topic that are new or changed on this broker."""
        if is_diskless(topic):
            return []
        rows = [row for row in topic.partitions if self._is_here(row)]
        if kept is None:
            return rows
        before, served = kept.topic.partitions, kept.partitions
        return [
            row
            for row in rows
            if row.index >= len(before) or row != before[row.index] or served[row.index] is None
        ]

    def _open(self, topic: Topic) -> ServedTopic:
        served, kept = ServedTopic(topic), self._kept(topic)
        if served.diskless:
            if self.diskless is not None:
                served.partitions[:] = self.diskless.partitions_of(topic)
            return served
        if kept is not None:
            for row, partition in zip(topic.partitions, kept.partitions, strict=False):
                served.partitions[row.index] = partition if row.leader == self._node_id else None
        for row in self._rows_to_open(topic, kept):
            before, served.partitions[row.index] = served.partitions[row.index], None
            try:
                log = self._log(topic, row)
            except PenstockError as error:
                logger.error("cannot serve partition %s-%d: %s", topic.name, row.index, error)
                continue
            if self._replicas is not None and row.has_epochs:
                replica = self._replica(self._replicas.open(row, log))
                replica.image_says(serving_epoch(topic, row), row.isr)
                leads = row.leader == self._node_id
                (served.partitions if leads else served.followed)[row.index] = replica
            elif not isinstance(before, LocalPartition) or before.log is not log:
                served.partitions[row.index] = self._over(topic, log)
            else:
                served.partitions[row.index] = before
        _serve_linked(served)
        if self._tiers is not None:
            self._tiers.follow(topic, (*served.partitions, *served.followed))
        return served

    def _over(self, topic: Topic, log: PartitionLog) -> LocalPartition:
        log.state.committed_offset = LONG_MAX  # also if it was a replica before
        if not is_linked(topic):
            return LocalPartition(log, self._commits)
        from penstock.partitions.linked import LinkedPartition

        return LinkedPartition(log, self._commits)

    def _is_here(self, row: PartitionRow) -> bool:
        if row.has_epochs and self._replicas is not None:
            return self._node_id in row.copies
        return row.leader == self._node_id

    def _is_removed(self, row: PartitionRow) -> bool:
        """Return whether this broker is no longer a replica, so that its log is deleted."""
        return row.has_epochs and self._replicas is not None and not self._is_here(row)

    def _replica(self, replicated: ReplicatedLog) -> ReplicatedPartition:
        owner = replicated.owner
        if isinstance(owner, ReplicatedPartition):
            return owner
        return ReplicatedPartition(replicated, self._commits)

    def _log(self, topic: Topic, row: PartitionRow) -> PartitionLog:
        where = TopicPartition(topic.name, row.index)
        if self._filled.pop(where, True) is False:
            self._store.delete(where)  # an incomplete log must not become a replica
        log = self._store.partitions.get(where)
        if log is not None and log.topic_id != topic.topic_id:
            self._store.delete(where)
            log = None
        replicated = self._replicas is not None and row.has_epochs
        if log is None:
            epoch = -1 if replicated or is_linked(topic) else row.leader_epoch
            return self._store.create(where, topic_id=topic.topic_id, leader_epoch=epoch)
        epoch = max(row.leader_epoch, link_epoch(topic))
        if log.leader_epoch != epoch and not replicated and not is_linked(topic):
            log.set_leader_epoch(epoch)
        return log


def _serve_linked(served: ServedTopic) -> None:
    """Set the leader epochs that clients get, if the topic is linked."""
    if not is_linked(served.topic):
        return
    from penstock.partitions.linked import LinkedPartition

    for row, partition in zip(served.topic.partitions, served.partitions, strict=True):
        if isinstance(partition, LinkedPartition):
            partition.serve(serving_epoch(served.topic, row))


def _logs_to_look_at(delta: ImageDelta) -> Iterator[TopicPartition]:
    for topic in (*delta.gone, *filter(is_diskless, delta.changed)):
        for row in topic.partitions:
            yield TopicPartition(topic.name, row.index)
    for topic in delta.changed:
        for row in topic.partitions:
            if row.has_epochs:
                yield TopicPartition(topic.name, row.index)


async def _next_turn() -> None:
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    await turn.wait()
