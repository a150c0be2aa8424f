"""What this broker brings when a local topic becomes diskless: the partitions that it leads.

The other way round it is the logs that it is to hold: `filler.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from penstock.base.errors import BugError, PenstockError
from penstock.broker.diskless import is_diskless
from penstock.broker.errors import NotLeader
from penstock.broker.limits import SWITCH_FENCE_SECONDS, SWITCH_PASSES_MAX, SWITCH_TAIL_BYTES
from penstock.broker.migration.errors import MigrationFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.topic_admin import TopicAdmin
    from penstock.control import MigrationParticipant, MigrationRequest, Topic
    from penstock.control.batch_index.migration_values import ParticipantState
    from penstock.diskless.migration import MigrationPart, TopicCopy
    from penstock.diskless.service import DisklessService
    from penstock.partitions import GroupCommits, LocalPartition
    from penstock.records.appends import Outcome
    from penstock.storage import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationParts:
    """What the migrations of a broker use; `posts_ended` waits for the sinks' open commits."""

    node_id: int
    clock: Clock
    store: LogStore
    commits: GroupCommits
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    topic_admin: TopicAdmin
    diskless: DisklessService | None
    posts_ended: Callable[[], Awaitable[None]]


def is_of_living(parts: MigrationParts, participant: MigrationParticipant) -> bool:
    """Whether the process that brought a part still owns its broker's id, as far as is known."""
    found = parts.cluster.image.broker(participant.broker_id)
    return found is not None and found.incarnation == participant.incarnation


class Participant(Protocol):
    """What a broker has to do with a topic that moves, whichever way; it may be nothing.

    `state` is copying, ready, fenced, or what follows on that; in the end the `goal`.
    """

    goal: ClassVar[str]
    state: str
    passes: int
    started_ms: int
    topic: Topic
    part: MigrationPart

    @property
    def needs_request(self) -> bool:
        """Whether the other brokers, or the topic itself, must be told."""
        ...

    @property
    def copied_bytes(self) -> int: ...

    def brokers(self) -> set[int]:
        """All that have a part in it, once the request is open."""
        ...

    def is_made(self, topic: Topic) -> bool:
        """Whether the topic is what it is to be."""
        ...

    async def open(self, request: MigrationRequest) -> MigrationRequest:
        """Store a request; the one that is open then, which may be another broker's."""
        ...

    async def catch_up(self) -> None:
        """Copy all but what is appended within one short pass."""
        ...

    async def keep_up(self) -> int:
        """One more pass; the bytes that it copied."""
        ...

    async def stop_producers(self, request: MigrationRequest | None) -> None:
        """Have nothing appended any more, and all of it copied."""
        ...

    def share(self, state: ParticipantState, reason: str = "") -> MigrationParticipant:
        """How far this broker is, with what it brings once it is fenced."""
        ...

    async def commit(
        self, topic: Topic, configs: Mapping[str, str], request: MigrationRequest | None
    ) -> None:
        """Commit what all brokers bring."""
        ...

    async def ended(self, *, made: bool) -> None:
        """It is made, or can never take effect any more."""
        ...


class LocalParticipant:
    """What it leads: copied while it is used, fenced, copied to its end. See `Participant`."""

    goal: ClassVar[str] = "diskless"

    def __init__(self, parts: MigrationParts, part: MigrationPart, topic: Topic) -> None:
        self.state = "copying"
        self.passes = 0
        self.started_ms = parts.clock.now_ms()
        self.topic = topic
        self.part = part
        self._parts = parts
        self._copy: TopicCopy | None = None
        self._partitions: list[LocalPartition] = []

    @property
    def copied_bytes(self) -> int:
        return 0 if self._copy is None else self._copy.copied_bytes

    @property
    def needs_request(self) -> bool:
        return bool(self.brokers() - {self._parts.node_id})

    def brokers(self) -> set[int]:
        """All that lead a partition."""
        return {one.leader for one in self.topic.partitions}

    def is_made(self, topic: Topic) -> bool:
        return is_diskless(topic)

    async def open(self, request: MigrationRequest) -> MigrationRequest:
        return await self.part.plane.open_migration(request)

    @property
    def copy(self) -> TopicCopy:
        if self._copy is None:
            raise BugError(f"topic {self.topic.name!r} is not copied yet")
        return self._copy

    async def catch_up(self) -> None:
        """Copy all but what is appended within one short pass.

        Raises:
            MigrationFailed: producers are faster.
            PenstockError: as `MigrationPart.copy_of` and `TopicCopy.catch_up`.
        """
        name, me = self.topic.name, self._parts.node_id
        self._partitions = [
            self._parts.partitions.with_log(name, one.index)
            for one in self.topic.partitions
            if one.leader == me
        ]
        self._copy = await self.part.copy_of(self.topic, self._partitions)
        while self.passes < SWITCH_PASSES_MAX:
            if await self.keep_up() <= SWITCH_TAIL_BYTES:
                self.state = "ready"
                return
        raise MigrationFailed(
            f"topic {name!r} grows as fast as it is copied: {self.passes} passes were"
            f" not enough; raise diskless.switch.bytes.per.second, or slow its producers down"
        )

    async def keep_up(self) -> int:
        """One more pass; the bytes that it copied."""
        self.passes += 1
        return await self.copy.catch_up()

    async def stop_producers(self, request: MigrationRequest | None) -> None:
        """Fence; everything that was appended is committed and copied.

        Raises:
            MigrationFailed: it takes too long.
            PenstockError: store, log or control plane failed, or another broker leads by now.
        """
        self.state = "fenced"
        name = self.topic.name
        fence = NotLeader(f"topic {name!r} is becoming diskless: ask for its leader again")
        self.copy.fenced_in([one.fence(fence) for one in self._partitions])
        try:
            async with asyncio.timeout(SWITCH_FENCE_SECONDS):
                await self._parts.posts_ended()
                await asyncio.gather(*map(_settled, self._partitions))
                await self.copy.catch_up(at_once=True)
                await self.copy.renew()
        except TimeoutError:
            raise MigrationFailed(
                f"topic {name!r}: its last records were not copied within {SWITCH_FENCE_SECONDS} s"
            ) from None

    def share(self, state: ParticipantState, reason: str = "") -> MigrationParticipant:
        return self.part.participant(state, reason, self.copy if state == "fenced" else None)

    async def commit(
        self, topic: Topic, configs: Mapping[str, str], request: MigrationRequest | None
    ) -> None:
        """Make the topic diskless; raises as `DisklessPlane.migrate_topic`."""
        await self.part.commit(topic, configs, self.copy, request)

    async def ended(self, *, made: bool) -> None:
        """Lift the fence if it can never take effect any more."""
        self.state = self.goal if made else "copying"
        if not made:
            for one in self._partitions:
                one.unfence()


async def _settled(partition: LocalPartition) -> None:
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(outcome: Outcome) -> None:
        if settled.done():
            return
        if isinstance(outcome, PenstockError):
            settled.set_exception(outcome)
        else:
            settled.set_result(None)

    partition.when_settled(ended)
    await settled
