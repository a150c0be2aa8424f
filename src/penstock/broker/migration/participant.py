"""What this broker brings into a topic's migration: the partitions that it leads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.errors import BugError, PenstockError
from penstock.broker.errors import NotLeader
from penstock.broker.limits import SWITCH_FENCE_SECONDS, SWITCH_PASSES_MAX, SWITCH_TAIL_BYTES
from penstock.broker.migration.errors import MigrationFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.control import MigrationParticipant, Topic
    from penstock.diskless.migration import MigrationPart, TopicCopy
    from penstock.diskless.service import DisklessService
    from penstock.partitions import LocalPartition
    from penstock.records.appends import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationParts:
    """What the migrations of a broker use; `posts_ended` waits for the sinks' open commits."""

    node_id: int
    clock: Clock
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    diskless: DisklessService | None
    posts_ended: Callable[[], Awaitable[None]]


def is_of_living(parts: MigrationParts, participant: MigrationParticipant) -> bool:
    """Whether the process that brought a part still owns its broker's id, as far as is known."""
    found = parts.cluster.image.broker(participant.broker_id)
    return found is not None and found.incarnation == participant.incarnation


class LocalParticipant:
    """What it leads, which may be nothing: copied while it is used, fenced, copied to its end.

    `state` is copying, ready, fenced, or what follows on that.
    """

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

    async def stop_producers(self) -> None:
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

    def let_producers_in(self) -> None:
        """Lift the fence: the migration can never take effect any more."""
        self.state = "copying"
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
