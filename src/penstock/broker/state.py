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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.diskless import Placement, is_diskless
from penstock.broker.errors import (
    DisklessUnsupported,
    NoObjectStore,
    NotLeader,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from penstock.broker.limits import LOGS_CHANGED_PER_TURN
from penstock.broker.metrics import RequestMetrics
from penstock.broker.switching import TopicSwitches

if TYPE_CHECKING:
    from penstock.base.metrics import Registry
    from penstock.base.system import Clock, Randomness
    from penstock.broker.coordinator import Coordinator
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.fetch.sessions import FetchSessions
    from penstock.broker.handlers.metadata import MetadataCache
    from penstock.broker.handlers.producer_ids import ProducerIds
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.sinks import SinkService
    from penstock.control import ControlPlane, MetadataImage, Partition, Topic
    from penstock.diskless.partition import DisklessPartition
    from penstock.diskless.service import DisklessService
    from penstock.storage import LogStore, PartitionLog

    Log = PartitionLog | DisklessPartition

logger = logging.getLogger(__name__)


class Expiring(Protocol):
    """A produce request that waits for its sync."""

    deadline: float

    def expire(self) -> None: ...


class TopicState:
    """A topic and the logs of its partitions, by index; None where another broker leads.

    A diskless topic has `remotes` instead, all of them on every broker.
    """

    __slots__ = ("diskless", "encoded_name", "logs", "remotes", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.encoded_name = topic.name.encode()
        self.logs: list[PartitionLog | None] = [None] * len(topic.partitions)
        self.diskless = is_diskless(topic)
        self.remotes: list[DisklessPartition] = []

    @property
    def views(self) -> Sequence[Log | None]:
        """What is known here of each partition, wherever its data lies."""
        return self.remotes or self.logs


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
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._commit_scheduled = False
        self._refreshing = asyncio.Lock()
        self._placements: dict[str, Placement] = {}
        self._placed_for: MetadataImage | None = None
        self.switches = TopicSwitches(self)

    def attach(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Tell the state the loop that owns it."""
        self._call_soon = call_soon

    def commit_soon(self) -> None:
        """Have the store write and sync what this loop iteration appends, once, at its end."""
        if self._commit_scheduled:
            return
        if self._call_soon is None:
            self.store.commit_pending()
            return
        self._commit_scheduled = True
        self._call_soon(self._commit)

    def _commit(self) -> None:
        self._commit_scheduled = False
        self.store.commit_pending()

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

    def shown(self, topic: Topic, rack: str = "") -> Sequence[Partition]:
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

    def log(self, topic: str, partition: int) -> Log:
        """The log of a partition that this broker leads, or a diskless partition.

        Raises:
            UnknownTopicOrPartition: no such topic, or no such partition.
            NotLeader: another broker leads it.
        """
        state = self.topics.get(topic)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        return self.log_of(state, partition)

    def local_log(self, topic: str, partition: int, what: str = "this call") -> PartitionLog:
        """The local log of a partition that this broker leads; raises as `local_log_of`."""
        state = self.topics.get(topic)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        return self.local_log_of(state, partition, what)

    def log_by_id(self, topic_id: UUID | None, partition: int) -> Log:
        """As `log`, for a topic named by its id.

        Raises:
            UnknownTopicId: no topic has this id.
            UnknownTopicOrPartition, NotLeader: as `log`.
        """
        state = None if topic_id is None else self.topics_by_id.get(topic_id.bytes)
        if state is None:
            raise UnknownTopicId(f"there is no topic of id {topic_id}")
        return self.log_of(state, partition)

    def log_of(self, state: TopicState, partition: int) -> Log:
        """The log of one partition of a topic, or its diskless partition; raises as `log`."""
        if state.diskless:
            return self.remote_of(state, partition)
        return self.local_log_of(state, partition, "this call")

    def remote_of(self, state: TopicState, partition: int) -> DisklessPartition:
        """A partition of a diskless topic.

        Raises:
            UnknownTopicOrPartition: no such partition.
            NoObjectStore: this broker serves no diskless topics.
        """
        if not 0 <= partition < len(state.logs):
            raise _no_partition(state, partition)
        if not state.remotes:
            raise NoObjectStore(
                f"topic {state.topic.name!r} is diskless, and this broker has no object store"
            )
        return state.remotes[partition]

    def local_log_of(self, state: TopicState, partition: int, what: str) -> PartitionLog:
        """The log of one partition of a topic that is not diskless; raises as `log`.

        Raises:
            DisklessUnsupported: it is diskless, which `what` does not serve.
        """
        if not 0 <= partition < len(state.logs):
            raise _no_partition(state, partition)
        log = state.logs[partition]
        if log is not None:
            return log
        if state.diskless:
            raise DisklessUnsupported(
                f"topic {state.topic.name!r} is diskless (diskless.enable = true):"
                f" {what} does not serve such topics yet"
            )
        leader = state.topic.partitions[partition].leader
        raise NotLeader(
            f"broker {leader}, not {self.node_id}, leads {state.topic.name}-{partition}"
        )

    async def look_up_marks(self, topics: Iterable[TopicState]) -> None:
        """Have the control plane say where the partitions of diskless topics begin and end."""
        remotes = [remote for topic in topics for remote in topic.remotes]
        if remotes and self.diskless is not None:
            await self.diskless.look_up_marks(remotes)

    def led_logs(self) -> Iterator[PartitionLog]:
        """The local logs of all partitions that this broker leads."""
        for state in self.topics.values():
            for log in state.logs:
                if log is not None:
                    yield log

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
                state.remotes = self.diskless.partitions_of(topic)
            return state
        for partition in topic.partitions:
            if partition.leader != self.node_id:
                continue
            try:
                state.logs[partition.index] = self._log(topic, partition.index)
            except PenstockError:
                logger.exception("cannot open the log of %s-%d", topic.name, partition.index)
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


def _no_partition(state: TopicState, partition: int) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(
        f"topic {state.topic.name!r} has partitions 0 to {len(state.logs) - 1}, not {partition}"
    )


async def _next_turn() -> None:
    """Let everyone else have a turn of the loop."""
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    await turn.wait()
