"""Participants of migrations: each does the work of one broker in the migration of one topic.

`LocalParticipant` copies the partitions of a local topic that this broker leads, to make the topic
diskless. `FillingParticipant` fills logs on this broker, to make a diskless topic replicated.
"""

from __future__ import annotations

import asyncio
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from penstock.base.errors import BugError, PenstockError, RetriableError
from penstock.base.ids import TopicPartition
from penstock.broker.metadata.leaders import is_diskless
from penstock.broker.net.errors import NotLeader, UnknownTopicId
from penstock.control.rules.migrations import epoch_of_copies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.control import MigrationParticipant, MigrationRequest, Topic
    from penstock.control.values.diskless import ParticipantState
    from penstock.diskless.topics.migration import MigrationPart, TopicCopy, TopicFilling
    from penstock.diskless.topics.service import DisklessService
    from penstock.partitions import GroupCommits, LocalPartition
    from penstock.records.appends import Outcome
    from penstock.storage import LogStore


class MigrationFailed(RetriableError):
    """The migration failed, and the topic is unchanged."""

    code: ClassVar[str] = "kafka_storage_error"


SWITCH_PASSES_MAX: Final = 50
"""Maximum number of passes over the logs of a topic; after it, the producers count as too fast."""
SWITCH_TAIL_BYTES: Final = 4 << 20
"""Maximum bytes of the last pass before the fence; after a larger pass, another one follows."""
SWITCH_FENCE_SECONDS: Final = 10.0
"""Maximum time that producers are fenced for the last copy; after it, the migration fails."""


class MigrationContext(Struct, frozen=True, kw_only=True):
    """Dependencies of migrations; `posts_ended` waits for running commits of exactly-once sinks."""

    node_id: int
    clock: Clock
    store: LogStore
    commits: GroupCommits
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    topic_admin: TopicAdmin
    diskless: DisklessService | None
    posts_ended: Callable[[], Awaitable[None]]


def is_of_living(context: MigrationContext, participant: MigrationParticipant) -> bool:
    """Whether the incarnation of a participant is still registered, by the newest image."""
    found = context.cluster.image.broker(participant.broker_id)
    return found is not None and found.incarnation == participant.incarnation


class Work(Protocol):
    copied_bytes: int

    async def catch_up(self, *, at_once: bool = False) -> int: ...


WorkT = TypeVar("WorkT", bound=Work)


class Participant(ABC, Generic[WorkT]):
    """Base of the work of one broker in the migration of one topic.

    `state` is copying, ready, fenced or committing, and finally the `goal` (diskless or
    replicated); copying again after a failure.
    """

    goal: ClassVar[str]

    def __init__(self, context: MigrationContext, part: MigrationPart, topic: Topic) -> None:
        self.state = "copying"
        self.passes = 0
        self.started_ms = context.clock.now_ms()
        self.topic = topic
        self.part = part
        self._context = context
        self._work: WorkT | None = None

    @property
    def copied_bytes(self) -> int:
        return 0 if self._work is None else self._work.copied_bytes

    @property
    def work(self) -> WorkT:
        if self._work is None:
            raise BugError(f"the copy of topic {self.topic.name!r} has not begun")
        return self._work

    @property
    @abstractmethod
    def needs_request(self) -> bool:
        """Whether other brokers take part, so that they need a request in the control plane."""

    @abstractmethod
    def brokers(self) -> set[int]:
        """Return the ids of all participating brokers, once the request is open."""

    @abstractmethod
    def is_made(self, topic: Topic) -> bool:
        """Whether the topic has migrated."""

    @abstractmethod
    async def open(self, request: MigrationRequest) -> MigrationRequest:
        """Store a migration request, which other brokers read; return the open request.

        That may be an earlier request of another broker, which then coordinates the migration.
        """

    @abstractmethod
    async def begin(self) -> WorkT:
        """Create the copy of the partitions that this broker copies, or the filling of its logs."""

    async def catch_up(self) -> None:
        """Copy in passes until one has at most `SWITCH_TAIL_BYTES`.

        Raises:
            MigrationFailed: the producers are faster than the copy, or the disk is full.
            PenstockError: a log, the object store or the control plane failed.
        """
        self._work = await self.begin()
        while self.passes < SWITCH_PASSES_MAX:
            if await self.keep_up() <= SWITCH_TAIL_BYTES:
                self.state = "ready"
                return
        raise MigrationFailed(
            f"topic {self.topic.name!r} grows as fast as it is copied: {self.passes} passes were"
            f" not enough; raise diskless.switch.bytes.per.second, or slow down its producers"
        )

    async def keep_up(self) -> int:
        self.passes += 1
        return await self.work.catch_up()

    @abstractmethod
    async def stop_producers(self, request: MigrationRequest | None) -> None:
        """Stop appends, and copy the remaining records.

        Raises:
            MigrationFailed: the time limit passed.
            PenstockError: a log, the object store or the control plane failed, or the leader
                changed.
        """

    @asynccontextmanager
    async def fenced(self) -> AsyncIterator[None]:
        """Set the fenced state, and limit the time of the `with` block to `SWITCH_FENCE_SECONDS`.

        Raises:
            MigrationFailed: the time limit passed.
        """
        self.state = "fenced"
        try:
            async with asyncio.timeout(SWITCH_FENCE_SECONDS):
                yield
        except TimeoutError:
            raise MigrationFailed(
                f"topic {self.topic.name!r}: its last records were not copied within"
                f" {SWITCH_FENCE_SECONDS:g} s"
            ) from None

    @abstractmethod
    def share(self, state: ParticipantState, reason: str = "") -> MigrationParticipant:
        """Return the progress of this broker, for the coordinator; once fenced, with its result."""

    @abstractmethod
    async def commit(
        self, topic: Topic, configs: Mapping[str, str], request: MigrationRequest | None
    ) -> None:
        """Commit the migration with the results of all brokers."""

    @abstractmethod
    async def ended(self, *, made: bool) -> None:
        """Clean up after the migration; `made` is true if the topic has migrated."""


class LocalParticipant(Participant["TopicCopy"]):
    goal: ClassVar[str] = "diskless"

    def __init__(self, context: MigrationContext, part: MigrationPart, topic: Topic) -> None:
        super().__init__(context, part, topic)
        self._partitions: list[LocalPartition] = []

    @property
    def needs_request(self) -> bool:
        return bool(self.brokers() - {self._context.node_id})

    def brokers(self) -> set[int]:
        return {partition.leader for partition in self.topic.partitions}

    def is_made(self, topic: Topic) -> bool:
        return is_diskless(topic)

    async def open(self, request: MigrationRequest) -> MigrationRequest:
        return await self.part.plane.open_migration(request)

    async def begin(self) -> TopicCopy:
        name, me = self.topic.name, self._context.node_id
        self._partitions = [
            self._context.partitions.with_log(name, partition.index)
            for partition in self.topic.partitions
            if partition.leader == me
        ]
        return await self.part.copy_of(self.topic, self._partitions)

    async def stop_producers(self, request: MigrationRequest | None) -> None:
        """Reject appends from now on; wait until earlier ones are durable, and copy them."""
        name, copy = self.topic.name, self.work
        fence = NotLeader(f"topic {name!r} is becoming diskless: refresh its metadata")
        async with self.fenced():
            copy.fenced_in([partition.fence(fence) for partition in self._partitions])
            await self._context.posts_ended()
            await asyncio.gather(*map(_acknowledged, self._partitions))
            await copy.catch_up(at_once=True)
            await copy.renew()

    def share(self, state: ParticipantState, reason: str = "") -> MigrationParticipant:
        return self.part.participant(state, reason, self.work if state == "fenced" else None)

    async def commit(
        self, topic: Topic, configs: Mapping[str, str], request: MigrationRequest | None
    ) -> None:
        """Make the topic diskless; raises as `DisklessPlane.migrate_topic`."""
        await self.part.commit(topic, configs, self.work, request)

    async def ended(self, *, made: bool) -> None:
        """Lift the fence unless the topic has migrated."""
        self.state = self.goal if made else "copying"
        if not made:
            for partition in self._partitions:
                partition.unfence()


async def _acknowledged(partition: LocalPartition) -> None:
    acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(outcome: Outcome) -> None:
        if acknowledged.done():
            return
        if isinstance(outcome, PenstockError):
            acknowledged.set_exception(outcome)
        else:
            acknowledged.set_result(None)

    partition.when_committed(ended)
    await acknowledged


# Participant of a migration from diskless to replicated: fills the new logs of this broker.
#
# The logs are filled while the topic is in use. Then the control plane rejects all appends, and the
# remaining records are filled (`diskless/topics/migration.py`).


class FillingParticipant(Participant["TopicFilling"]):
    goal: ClassVar[str] = "replicated"
    needs_request: ClassVar[bool] = True

    def __init__(
        self,
        context: MigrationContext,
        part: MigrationPart,
        topic: Topic,
        targets: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Create the participant; at the coordinator, `targets` are the new replicas."""
        super().__init__(context, part, topic)
        self._targets = targets
        self._logs: list[TopicPartition] = []

    def brokers(self) -> set[int]:
        return {broker_id for row in self._now().partitions for broker_id in row.target}

    def is_made(self, topic: Topic) -> bool:
        return not is_diskless(topic)

    async def open(self, request: MigrationRequest) -> MigrationRequest:
        """Store a request with the new replicas; return the open request."""
        opened = await self.part.plane.open_migration(request, self._targets)
        await self._context.cluster.refresh()
        return opened

    async def begin(self) -> TopicFilling:
        from penstock.diskless.topics.migration import FilledLog

        topic, me, partitions = self._now(), self._context.node_id, self._context.partitions
        rows = [row for row in topic.partitions if me in row.target]
        self._logs = [TopicPartition(topic.name, row.index) for row in rows]
        made = await partitions.begin_logs(topic, [row.index for row in rows])
        logs = [FilledLog(log, epoch_of_copies(row)) for log, row in zip(made, rows, strict=True)]
        filling = await self.part.filling_of(logs, self._context.commits.flush_then)
        needed, directory = await filling.needed_bytes(), self._context.store.directory
        free = shutil.disk_usage(directory).free
        if needed > free:
            raise MigrationFailed(
                f"topic {topic.name!r}: its {len(rows)} partitions on this broker need {needed}"
                f" bytes, but {directory} has {free} bytes free"
            )
        return filling

    async def stop_producers(self, request: MigrationRequest | None) -> None:
        if request is None:
            raise BugError(f"topic {self.topic.name!r} is to get replicas without a request")
        async with self.fenced():
            await self.part.plane.fence_topic(request)
            await self.work.finish()
        for where in self._logs:
            self._context.partitions.finish_log(where)

    def share(self, state: ParticipantState, reason: str = "") -> MigrationParticipant:
        return self.part.participant(state, reason)

    async def commit(
        self, topic: Topic, configs: Mapping[str, str], request: MigrationRequest | None
    ) -> None:
        """Make the topic replicated; raises as `DisklessPlane.replicate_topic`."""
        if request is None:
            raise BugError(f"topic {topic.name!r} is to get replicas without a request")
        config = self._context.store.config_of(topic.name)
        await self.part.replicate(
            topic, configs, request, min_insync_replicas=config.min_insync_replicas
        )

    async def ended(self, *, made: bool) -> None:
        """Delete the filled logs that have not become replicas."""
        self.state = self.goal if made else "copying"
        await self._context.partitions.drop_logs(self._logs)

    def _now(self) -> Topic:
        found = self._context.partitions.topics_by_id.get(self.topic.topic_id.bytes)
        if found is None:
            raise UnknownTopicId(f"topic {self.topic.name!r} was deleted")
        return found.topic
