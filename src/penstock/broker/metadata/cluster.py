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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.base.errors import PenstockError
from penstock.broker.diskless import Placement, is_diskless
from penstock.broker.metadata.delta import ImageDelta, delta_of

if TYPE_CHECKING:
    from penstock.control import ControlPlane, MetadataImage, Partition, Topic


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
        self.on_image: list[Callable[[], None]] = []
        self.control = control
        self._follower = follower
        self._settled: MetadataImage | None = None
        self._refreshing = asyncio.Lock()
        self._placements: dict[str, Placement] = {}
        self._placed_for: MetadataImage | None = None

    @property
    def image(self) -> MetadataImage:
        """The image; only before `refresh` has run once is there none."""
        if self.loaded is None:
            raise PenstockError("the broker has not loaded its metadata yet")
        return self.loaded

    async def refresh(self) -> None:
        """Load the newest image and bring what this broker holds in line with it."""
        if await self.control.image() is self._settled:
            return
        async with self._refreshing:
            image = await self.control.image()
            if image is self._settled:
                return
            delta = delta_of(self._settled, image)
            self._settled = None
            await self._follower.prepare(delta)
            self.loaded = image
            self._follower.apply(delta)
            for listener in self.on_image:
                listener()
            await self._follower.clean_up(delta)
            self._settled = image

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
            placement = self._placements[rack] = Placement(image.brokers, rack)
        return placement.partitions(topic)
