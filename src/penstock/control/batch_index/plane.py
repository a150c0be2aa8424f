"""The part of the control plane that is a `DisklessPlane`, over either database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.batch_index import (
    extents,
    finds,
    maintenance,
    objects,
    partitions,
    rules,
)
from penstock.control.batch_index.values import (
    Backlog,
    Condemned,
    FindRequest,
    Found,
    ObjectLease,
    ObjectTotals,
    PartitionKey,
    PartitionMarks,
    Retained,
    SegmentSwap,
    StoreIdentity,
)
from penstock.control.drivers.statements import OverDatabase
from penstock.control.values import MetadataImage, Topic
from penstock.records.extents import Extent
from penstock.records.idempotence import ProducerState


class DisklessOperations(OverDatabase):
    """Methods of `DisklessPlane`."""

    _randomness: Randomness
    _topics: tuple[MetadataImage | None, Mapping[UUID, Topic]] = (None, {})

    @abstractmethod
    async def image(self) -> MetadataImage:
        """See `ControlPlane`."""

    @abstractmethod
    def _known_image(self, stamp: UUID | None) -> MetadataImage | None:
        """The image of a stamp that was read; None if it is not the newest that is known."""

    def _tell(self, marks: Mapping[PartitionKey, PartitionMarks]) -> None:
        """Tell other brokers of partitions that have changed."""

    def _by_id(self, image: MetadataImage) -> Mapping[UUID, Topic]:
        if self._topics[0] is not image:
            self._topics = (image, rules.topics_by_id(image))
        return self._topics[1]

    def _known_topics(self, stamp: UUID | None) -> Mapping[UUID, Topic] | None:
        image = self._known_image(stamp)
        return None if image is None else self._by_id(image)

    # Objects

    async def store_identity(self) -> StoreIdentity | None:
        return await self._database.read(objects.store)

    async def adopt_store(self, identity: StoreIdentity) -> StoreIdentity:
        return await self._database.change(partial(objects.adopt_store, identity))

    async def lease_segment(
        self, topic_id: UUID, partition: int, *, base_offset: int
    ) -> ObjectLease:
        nonce = self._randomness.bits(32)
        return await self._database.change(
            partial(maintenance.lease_segment, nonce, (topic_id, partition), base_offset)
        )

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        await self._database.change(partial(maintenance.renew_leases, object_ids))

    async def highest_object_id(self) -> int:
        return await self._database.read(objects.highest_object_id)

    async def object_totals(self) -> list[ObjectTotals]:
        return await self._database.read(objects.totals)

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        return await self._database.read(partial(objects.keys, after, limit))

    async def condemn(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[Condemned]:
        return await self._database.change(
            partial(
                maintenance.condemn,
                pending_grace_ms=pending_grace_ms,
                unreferenced_grace_ms=unreferenced_grace_ms,
                limit=limit,
            )
        )

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        await self._database.change(partial(maintenance.forget_objects, object_ids))

    # Extents

    async def find(self, requests: Sequence[FindRequest]) -> list[Found]:
        if not requests:
            return []
        found = await self._database.read(partial(finds.find, requests, self._known_topics))
        if found is None:
            topics = self._by_id(await self.image())
            found = await self._database.read(partial(finds.find, requests, lambda _: topics))
        return found or []

    async def marks(self, partitions: Sequence[PartitionKey]) -> list[PartitionMarks]:
        return await self._database.read(partial(finds.watermarks, partitions))

    async def extents(
        self, topic_id: UUID, partition: int, *, start: int, end: int, limit: int
    ) -> list[Extent]:
        key = (topic_id, partition)
        return await self._database.read(partial(extents.between, key, start, end, limit))

    async def extent_at_time(
        self, topic_id: UUID, partition: int, timestamp: int | None
    ) -> Extent | None:
        return await self._database.read(partial(extents.at_time, (topic_id, partition), timestamp))

    async def diskless_producers(self, topic_id: UUID, partition: int) -> list[ProducerState]:
        return await self._database.read(partial(finds.producers, (topic_id, partition)))

    async def backlogs(self, *, min_extents: int, limit: int) -> list[Backlog]:
        return await self._database.read(partial(partitions.backlogs, min_extents, limit))

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> PartitionMarks:
        key = (topic_id, partition)
        marks = await self._database.change(partial(maintenance.delete_records, key, before_offset))
        self._tell({key: marks})
        return marks

    async def retain(
        self,
        topic_id: UUID,
        partition: int,
        *,
        before_timestamp: int | None,
        max_bytes: int | None,
        limit: int,
    ) -> Retained:
        key = (topic_id, partition)
        retained = await self._database.change(
            partial(
                maintenance.retain,
                key,
                before_timestamp=before_timestamp,
                max_bytes=max_bytes,
                limit=limit,
            )
        )
        if retained.extents_dropped:
            self._tell({key: retained.marks})
        return retained

    async def swap_extents(self, swap: SegmentSwap) -> None:
        await self._database.change(partial(maintenance.swap_extents, swap))

    async def forget_partitions(self, *, limit: int) -> int:
        return await self._database.change(partial(maintenance.forget_partitions, limit))

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        return await self._database.change(partial(maintenance.forget_producers, idle_ms, limit))
