"""The newest image of the metadata, held in memory; reads never wait.

The image is replaced as a whole: who changes metadata awaits the call of the control plane and
then `refresh()`, which has the follower (the partition registry) open, create and delete what the
delta asks for, and tells the listeners of `on_image` (caches of encoded answers, waiting fetches,
the coordinator). Refreshes wait for each other. One that is given up half-way leaves it unknown
what is done: the next one compares everything.

It belongs to the event-loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.broker.diskless import Placement, is_diskless
from penstock.broker.metadata.delta import ImageDelta, delta_of

if TYPE_CHECKING:
    from penstock.control import ControlPlane, MetadataImage, Partition, Topic

LOOK_SECONDS: Final = 1.0
"""How long an answer waits for metadata that others changed; while the database is unavailable the
image in memory is the newest one."""

Leaders = Mapping[tuple[UUID, int], tuple[int, int]]
"""Leaders and their epochs, by topic id and partition."""


class Follower(Protocol):
    """Who brings what this broker holds in line with an image."""

    async def prepare(self, delta: ImageDelta) -> None:
        """Before the image is in force: make what it needs."""

    def apply(self, delta: ImageDelta) -> None:
        """The image is in force."""

    async def clean_up(self, delta: ImageDelta) -> None:
        """After the listeners know: delete what is gone."""


class ClusterMetadata:
    """Topics, brokers and configurations of the cluster, as of the newest image."""

    def __init__(self, control: ControlPlane, follower: Follower) -> None:
        self.loaded: MetadataImage | None = None
        """None until `refresh` has run once."""
        self.check: Callable[[MetadataImage], Awaitable[None]] = _nothing
        """Raises if this broker must not go by an image."""
        self.on_image: list[Callable[[], None]] = []
        self.unreachable: Callable[[], frozenset[int]] = frozenset
        """Brokers that are registered and seem to be gone."""
        self.alone: Callable[[], bool] = lambda: False
        """Whether the others may have gone on without this broker."""
        self.control = control
        self._follower = follower
        self._settled: MetadataImage | None = None
        self._refreshing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        """Done with the next image."""
        self._placements: dict[str, Placement] = {}
        self._placed_for: MetadataImage | None = None

    @property
    def image(self) -> MetadataImage:
        """The image; only before `refresh` has run once is there none."""
        if self.loaded is None:
            raise PenstockError("the broker has not loaded its metadata yet")
        return self.loaded

    @property
    def live(self) -> frozenset[int]:
        """The ids of the brokers that clients may be sent to."""
        brokers = frozenset([broker.broker_id for broker in self.image.brokers])
        return brokers - self.unreachable()

    async def refresh(self) -> None:
        """Load the newest image and bring what this broker holds in line with it."""
        if await self.control.image() is self._settled:
            return
        async with self._refreshing:
            image = await self.control.image()
            if image is self._settled:
                return
            await self.check(image)
            delta = delta_of(self._settled, image)
            self._settled = None
            await self._follower.prepare(delta)
            self._in_force(delta)
            await self._follower.clean_up(delta)
            self._settled = image

    def heard(self, leaders: Leaders) -> None:
        """Go by leaders of epochs that are newer than those of the image, until there is another.

        A broker that cannot reach the control plane hears of them from themselves alone. Clients
        that ask it would be sent to whoever led before, again and again.
        """
        image = self.image
        changed: dict[str, list[Partition]] = {}
        for (topic_id, index), (leader, epoch) in leaders.items():
            topic = image.topic_by_id(topic_id)
            if topic is None or index >= len(topic.partitions):
                continue
            row = topic.partitions[index]
            if row.leader_epoch < epoch:
                isr = tuple(dict.fromkeys([*row.isr, leader]))
                rows = changed.setdefault(topic.name, list(topic.partitions))
                rows[index] = replace(row, leader=leader, leader_epoch=epoch, isr=isr)
        topics = {
            name: replace(image.topics[name], partitions=tuple(rows))
            for name, rows in changed.items()
        }
        if topics:
            image = replace(image, topics={**image.topics, **topics})
            self._in_force(ImageDelta(image=image, changed=tuple(topics.values())))

    def _in_force(self, delta: ImageDelta) -> None:
        self.loaded = delta.image
        self._follower.apply(delta)
        for listener in self.on_image:
            listener()
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    async def look(self, seconds: float = LOOK_SECONDS) -> None:
        """Load the newest image, or keep the present one if that takes longer than `seconds`.

        What others changed before this call is in the image then: a refresh that began before is
        waited for and made again.
        """
        before = self._looking
        if before is not None and not before.done():
            await asyncio.wait([before], timeout=seconds)
            if not before.done():
                return
        if self._looking is before:
            self._looking = asyncio.get_running_loop().create_task(self._try_to_refresh())
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=seconds)

    async def _try_to_refresh(self) -> None:
        with suppress(PenstockError):
            await self.refresh()

    async def next_image(self, seconds: float) -> None:
        """Wait until there is another image, or for so long."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=seconds)

    def shown(self, topic: Topic, rack: str = "") -> Sequence[Partition]:
        """A topic's partitions as clients are told of them.

        Of a diskless topic any live broker leads any partition: one of `rack`, if there is one.
        """
        if not is_diskless(topic):
            return topic.partitions
        image = self.image
        if self._placed_for is not image:
            self._placed_for, self._placements = image, {}
        placement = self._placements.get(rack)
        if placement is None:
            placement = self._placements[rack] = Placement(image.serving, rack)
        return placement.partitions(topic)


async def _nothing(_: MetadataImage) -> None:
    return
