"""What all handlers share: settings, the control plane, the store, and the image in memory.

`BrokerState` belongs to the event-loop thread. Its image is replaced as a whole: a handler that
changes metadata awaits its call of the control plane and then `refresh()`, which opens, creates
and deletes partition logs until they match what this broker leads, and tells the listeners of
`on_image` (caches of encoded answers, fetch waiters). Reads of the image never wait.

Logs are made and deleted a few at a time, with a turn of the loop for everyone else in between:
those of new partitions before the image is replaced, those that are gone after it. Refreshes wait
for each other.

A diskless topic has no logs here: every broker serves all of its partitions, through the
`DisklessService`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.diskless import Placement, is_diskless
from penstock.broker.errors import (
    DisklessUnsupported,
    NoObjectStore,
    NotLeader,
    UnknownTopicOrPartition,
)
from penstock.broker.limits import LOGS_CHANGED_PER_TURN
from penstock.broker.metrics import RequestMetrics
from penstock.broker.switching import TopicSwitches
from penstock.partitions import GroupCommits, LocalPartition

if TYPE_CHECKING:
    from penstock.base.metrics import Registry
    from penstock.base.system import Clock, Randomness
    from penstock.broker.coordination.groups import Coordinator
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.fetch.sessions import FetchSessions
    from penstock.broker.handlers.metadata import MetadataCache
    from penstock.broker.handlers.producer_ids import ProducerIds
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.sinks import SinkService
    from penstock.control import ControlPlane, MetadataImage, Topic
    from penstock.control import Partition as PartitionRow
    from penstock.diskless.service import DisklessService
    from penstock.partitions import Partition
    from penstock.storage import LogStore, PartitionLog

logger = logging.getLogger(__name__)


class Expiring(Protocol):
    """A produce request that waits for its sync."""

    deadline: float

    def expire(self) -> None: ...


class TopicState:
    """A topic and its partitions, by index; None for one that this broker does not serve.

    It serves local ones that it leads, and all diskless ones where there is an object store.
    """

    __slots__ = ("diskless", "encoded_name", "partitions", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.encoded_name = topic.name.encode()
        self.diskless = is_diskless(topic)
        self.partitions: list[Partition | None] = [None] * len(topic.partitions)


class BrokerState:
    """The broker's shared state; see the module's text for who may change it."""

    # Services of single families of handlers, set by the server before it accepts requests.
    fetch_hub: FetchHub
    fetch_sessions: FetchSessions
    metadata_cache: MetadataCache
    producer_ids: ProducerIds
    coordinator: Coordinator
    sinks: SinkService | None
    """None where no directory for staged blobs is set."""
    diskless: DisklessService | None
    """None where no object store is set."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        store: LogStore,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
    ) -> None:
        self.settings = settings
        self.sinks = None
        self.diskless = None
        self.node_id = settings.node_id
        self.control = control
        self.store = store
        self.clock = clock
        self.randomness = randomness
        self.registry = registry
        self.advertised: tuple[str, int] = ("", 0)
        self.image: MetadataImage | None = None
        self.image_count = 0
        self._settled: MetadataImage | None = None
        self.topics: dict[str, TopicState] = {}
        self.topics_by_name: dict[bytes, TopicState] = {}
        self.topics_by_id: dict[bytes, TopicState] = {}
        self.on_image: list[Callable[[], None]] = []
        self.stopping = False
        self.metrics = RequestMetrics()
        self.produce_waiting: dict[Expiring, None] = {}
        self.commits = GroupCommits(store)
        self._refreshing = asyncio.Lock()
        self._placements: dict[str, Placement] = {}
        self._placed_for: MetadataImage | None = None
        self.switches = TopicSwitches(self)

    @property
    def metadata(self) -> MetadataImage:
        """The image; only before `refresh` has run once is there none."""
        if self.image is None:
            raise PenstockError("the broker has not loaded its metadata yet")
        return self.image

    async def refresh(self) -> None:
        """Load the newest image and bring the partition logs in line with it."""
        if self._is_current(await self.control.image()):
            return
        async with self._refreshing:
            image = await self.control.image()
            if self._is_current(image):
                return
            await self._make_logs(image)
            self.image = image
            self.image_count += 1
            self._apply(image)
            for listener in self.on_image:
                listener()
            await self._delete_gone(image)
            self._settled = image

    def _is_current(self, image: MetadataImage) -> bool:
        return image is self._settled

    def shown(self, topic: Topic, rack: str = "") -> Sequence[PartitionRow]:
        """A topic's partitions as clients are told of them.

        Of a diskless topic any live broker leads any partition: one of `rack`, if there is one.
        """
        if not is_diskless(topic):
            return topic.partitions
        image = self.metadata
        if self._placed_for is not image:
            self._placed_for, self._placements = image, {}
        placement = self._placements.get(rack)
        if placement is None:
            placement = self._placements[rack] = Placement(image.brokers, rack)
        return placement.partitions(topic)

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker serves.

        Raises:
            UnknownTopicOrPartition: no such topic, or no such partition.
            NotLeader, NoObjectStore: as `partition_of`.
        """
        state = self.topics.get(topic)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        return self.partition_of(state, index)

    def partition_of(self, state: TopicState, index: int) -> Partition:
        """One partition of a topic.

        Raises:
            UnknownTopicOrPartition: no such partition.
            NotLeader: it is local, and another broker leads it.
            NoObjectStore: it is diskless, and this broker serves no diskless topics.
        """
        name, partitions = state.topic.name, state.partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopicOrPartition(
                f"topic {name!r} has partitions 0 to {len(partitions) - 1}, not {index}"
            )
        partition = partitions[index]
        if partition is not None:
            return partition
        if state.diskless:
            raise NoObjectStore(f"topic {name!r} is diskless, and this broker has no object store")
        leader = state.topic.partitions[index].leader
        raise NotLeader(f"broker {leader}, not {self.node_id}, leads {name}-{index}")

    def local_log(self, topic: str, index: int, what: str = "this call") -> PartitionLog:
        """The log of a partition, for `what` needs one.

        Raises:
            DisklessUnsupported: it is diskless; and as `partition`.
        """
        partition = self.partition(topic, index)
        if not isinstance(partition, LocalPartition):
            raise DisklessUnsupported(
                f"topic {topic!r} is diskless (diskless.enable = true):"
                f" {what} does not serve such topics yet"
            )
        return partition.log

    async def _make_logs(self, image: MetadataImage) -> None:
        """Make the logs of partitions that are new here, a few in each turn of the loop.

        What fails is tried again, and told of, when the image is applied.
        """
        count = 0
        if self.diskless is not None:
            await self.diskless.prepare(image)
        for name, topic in image.topics.items():
            known = self.topics.get(name)
            if (known is not None and known.topic == topic) or is_diskless(topic):
                continue
            for partition in topic.partitions:
                where = TopicPartition(name, partition.index)
                if partition.leader != self.node_id or where in self.store.partitions:
                    continue
                with suppress(PenstockError):
                    self._log(topic, partition.index)
                count += 1
                if count % LOGS_CHANGED_PER_TURN == 0:
                    await _next_turn()

    def _apply(self, image: MetadataImage) -> None:
        topics: dict[str, TopicState] = {}
        for name, topic in image.topics.items():
            known = self.topics.get(name)
            topics[name] = (
                known if known is not None and known.topic == topic else self._open(topic)
            )
        self.topics = topics
        self.topics_by_name = {state.encoded_name: state for state in topics.values()}
        self.topics_by_id = {state.topic.topic_id.bytes: state for state in topics.values()}

    def _open(self, topic: Topic) -> TopicState:
        state = TopicState(topic)
        if state.diskless:
            if self.diskless is not None:
                state.partitions[:] = self.diskless.partitions_of(topic)
            return state
        for partition in topic.partitions:
            if partition.leader != self.node_id:
                continue
            try:
                log = self._log(topic, partition.index)
            except PenstockError:
                logger.exception("cannot open the log of %s-%d", topic.name, partition.index)
                continue
            state.partitions[partition.index] = LocalPartition(
                log, self.commits, in_sync=len(partition.isr)
            )
        return state

    def _log(self, topic: Topic, index: int) -> PartitionLog:
        epoch = topic.partitions[index].leader_epoch
        where = TopicPartition(topic.name, index)
        log = self.store.partitions.get(where)
        if log is not None and log.topic_id != topic.topic_id:
            self.store.delete(where)
            log = None
        if log is None:
            return self.store.create(where, topic_id=topic.topic_id, leader_epoch=epoch)
        if log.leader_epoch != epoch:
            log.set_leader_epoch(epoch)
        return log

    async def _delete_gone(self, image: MetadataImage) -> None:
        """Delete the logs of partitions that there are no more, a few in each turn of the loop."""
        if self.diskless is not None:
            self.diskless.forget_gone(image)
        count = 0
        for where in list(self.store.partitions):
            topic = image.topics.get(where.topic)
            if topic is None or is_diskless(topic) or where.partition >= len(topic.partitions):
                self.store.delete(where)
                count += 1
                if count % LOGS_CHANGED_PER_TURN == 0:
                    await _next_turn()


async def _next_turn() -> None:
    """Let everyone else have a turn of the loop."""
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    await turn.wait()
