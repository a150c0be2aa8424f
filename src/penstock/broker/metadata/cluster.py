"""Newest metadata image of this broker, in memory.

Reads never wait. An image is replaced as a whole by `refresh()`, which a handler awaits after it
has changed the metadata in the control plane. A refresh passes the changes to the applier (the
partition registry), which creates, opens and deletes partitions. Then it calls the listeners in
`on_image`. Only one refresh runs at a time. Belongs to the event-loop thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from operator import is_not
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.broker.metadata.leaders import Placement, is_diskless

if TYPE_CHECKING:
    from penstock.control import ControlPlane, MetadataImage, Partition, Topic


# Changes from one image of the metadata to the next.
#
# An image knows which topics have changed since an earlier image, so the cost of a delta depends
# only on the number of changes. If that is unknown, after a read from the database or many changes,
# all topics are compared by identity. Unchanged topics are the same objects in both images.


class ImageDelta(Struct, frozen=True, kw_only=True):
    """Changes from a previous image to `image`.

    `changed` are new and changed topics. `gone` are removed topics, including those whose name a
    new topic has now. `whole` means that the previous image is unknown. Then `changed` has all
    topics, and `gone` none.
    """

    image: MetadataImage
    changed: Sequence[Topic]
    gone: Sequence[Topic] = ()
    whole: bool = False


def delta_of(before: MetadataImage | None, image: MetadataImage) -> ImageDelta:
    """Return the changes from image `before` to `image`; `before` is None if it is unknown."""
    new = image.topics
    if before is None:
        return ImageDelta(image=image, changed=tuple(new.values()), whole=True)
    old = before.topics
    names = image.changed_since(before)
    if names is None:
        differ = compress(new, map(is_not, new.values(), map(old.get, new)))
        names = [*differ, *(name for name in old if name not in new)]
    pairs = [(old.get(name), new.get(name)) for name in names]
    return ImageDelta(
        image=image,
        changed=[now for was, now in pairs if now is not None and now != was],
        gone=[
            was
            for was, now in pairs
            if was is not None and (now is None or now.topic_id != was.topic_id)
        ],
    )


LOOK_SECONDS: Final = 1.0
"""Longest time that a response waits for changes made by other brokers. While the database is
unavailable, the image in memory is used."""

Leaders = Mapping[tuple[UUID, int], tuple[int, int]]
"""Leaders and their epochs, by topic id and partition."""


class ImageApplier(Protocol):
    """Port that applies a metadata image to the partitions of this broker."""

    async def prepare(self, delta: ImageDelta) -> None:
        """Create the logs of new partitions, before the image takes effect."""

    def apply(self, delta: ImageDelta) -> None:
        """Open and close partitions as the image requires; the image takes effect now."""

    async def clean_up(self, delta: ImageDelta) -> None:
        """Delete the logs of removed partitions, after the listeners were called."""


async def _nothing(_: MetadataImage) -> None:
    return


class ClusterMetadata:
    """Topics, brokers and configurations of the cluster, as of the newest image."""

    def __init__(
        self,
        control: ControlPlane,
        applier: ImageApplier,
        *,
        check: Callable[[MetadataImage], Awaitable[None]] = _nothing,
        unreachable: Callable[[], frozenset[int]] = frozenset,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`check` raises an error if this broker must not use an image."""
        self.loaded: MetadataImage | None = None
        """Current image; None until the first `refresh`."""
        self._check = check
        self.on_image: list[Callable[[], None]] = []
        self.unreachable = unreachable
        """Function that returns the registered brokers that cannot be reached."""
        self.alone = alone
        """Function: whether this broker is isolated, so that others may have replaced it."""
        self.control = control
        self._applier = applier
        self._applied: MetadataImage | None = None
        self._refreshing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        """Future that completes when the next image takes effect."""
        self._placements: dict[str, Placement] = {}
        self._placed_for: MetadataImage | None = None

    @property
    def image(self) -> MetadataImage:
        """Current image. Raises PenstockError before the first `refresh`."""
        if self.loaded is None:
            raise PenstockError("the broker has not loaded its metadata yet")
        return self.loaded

    @property
    def live(self) -> frozenset[int]:
        """Ids of the registered brokers that can be reached, to which clients may be directed."""
        brokers = frozenset([broker.broker_id for broker in self.image.brokers])
        return brokers - self.unreachable()

    async def refresh(self) -> None:
        """Load the newest image and apply it to this broker."""
        if await self.control.image() is self._applied:
            return
        async with self._refreshing:
            image = await self.control.image()
            if image is self._applied:
                return
            await self._check(image)
            delta = delta_of(self._applied, image)
            self._applied = None
            await self._applier.prepare(delta)
            self._in_force(delta)
            await self._applier.clean_up(delta)
            self._applied = image

    def apply_leaders(self, leaders: Leaders) -> None:
        """Use leaders that have newer epochs than the image, until the next image.

        A broker that cannot reach the control plane learns about new leaders only in this way.
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
            image = dataclasses.replace(image, topics={**image.topics, **topics})
            self._in_force(ImageDelta(image=image, changed=tuple(topics.values())))

    def _in_force(self, delta: ImageDelta) -> None:
        self.loaded = delta.image
        self._applier.apply(delta)
        for listener in self.on_image:
            listener()
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    async def look(self, seconds: float = LOOK_SECONDS) -> None:
        """Try to load the newest image, so that a handler responds with current metadata.

        Return after at most `seconds`. If the control plane fails or is slow, the current image
        remains.
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
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=seconds)

    def shown(self, topic: Topic, rack: str = "") -> Sequence[Partition]:
        """Return a topic's partitions as clients see them.

        Leaders of diskless partitions are brokers in the client's `rack`, if there are any.
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
