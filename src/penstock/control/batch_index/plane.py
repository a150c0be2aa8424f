"""The part of the control plane that is a `DisklessPlane`, over either database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.batch_index import (
    commits,
    extents,
    finds,
    maintenance,
    migrating,
    migrations,
    objects,
    partitions,
)
from penstock.control.batch_index.commit_rules import check_commit
from penstock.control.batch_index.commits import commit_sink_objects
from penstock.control.batch_index.migration_rules import check_partitions
from penstock.control.batch_index.migration_values import (
    MigrationParticipant,
    MigrationRequest,
    RunningMigration,
    TopicMigration,
)
from penstock.control.batch_index.values import (
    Backlog,
    CommitAnswer,
    FindRequest,
    Found,
    MarkedObject,
    ObjectCommit,
    ObjectLease,
    ObjectTotals,
    PartitionKey,
    Retained,
    SegmentSwap,
    StoreIdentity,
    Watermarks,
)
from penstock.control.drivers.statements import Lock, Operation
from penstock.control.metadata.plane import Metadata
from penstock.control.sink_commits.object_rules import SinkAnswer, check_sink_objects
from penstock.control.values import SinkCommit, Topic
from penstock.records.extents import Extent
from penstock.records.idempotence import ProducerState


class Diskless(Metadata):
    """Methods of `DisklessPlane`."""

    _randomness: Randomness

    def _tell(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Tell other brokers of partitions that have changed."""

    # Objects

    async def store_identity(self) -> StoreIdentity | None:
        return await self._database.read(objects.store)

    async def adopt_store(self, identity: StoreIdentity) -> StoreIdentity:
        return await self._database.change(partial(objects.adopt_store, identity))

    async def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> list[ObjectLease]:
        def make() -> Operation[list[ObjectLease]]:
            return commits.lease_objects(
                self._images,
                self._randomness.bits(32),
                broker_id=broker_id,
                incarnation=incarnation,
                count=count,
            )

        return await self._database.change(make, lock=Lock.TOPICS)

    async def lease_segment(
        self, topic_id: UUID, partition: int, *, base_offset: int
    ) -> ObjectLease:
        nonce = self._randomness.bits(32)
        return await self._database.change(
            partial(commits.lease_segment, nonce, (topic_id, partition), base_offset)
        )

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        await self._database.change(partial(maintenance.renew_leases, object_ids))

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        check_commit(commit)
        answer = await self._database.change(
            partial(commits.commit_object, self._images, commit), lock=Lock.TOPICS
        )
        self._tell(answer.watermarks)
        return answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        check_sink_objects(record, commits)
        answer = await self._database.change(
            partial(
                commit_sink_objects,
                self._images,
                record,
                commits,
                expected_version=expected_version,
            ),
            lock=Lock.TOPICS,
        )
        for one in answer.answers:
            self._tell(one.watermarks)
        return answer

    async def highest_object_id(self) -> int:
        return await self._database.read(objects.highest_object_id)

    async def object_totals(self) -> list[ObjectTotals]:
        return await self._database.read(objects.totals)

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        return await self._database.read(partial(objects.keys, after, limit))

    async def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[MarkedObject]:
        return await self._database.change(
            partial(
                maintenance.mark_for_deletion,
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
        find = partial(finds.find, self._images, requests)
        found = await self._database.read(find)
        if found is None:  # others have changed topics since
            await self.image()
            found = await self._database.read(partial(find, self._images.published))
        return found or []

    async def watermarks(self, partitions: Sequence[PartitionKey]) -> list[Watermarks]:
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
    ) -> Watermarks:
        key = (topic_id, partition)
        watermarks = await self._database.change(
            partial(maintenance.delete_records, key, before_offset)
        )
        self._tell({key: watermarks})
        return watermarks

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
            self._tell({key: retained.watermarks})
        return retained

    async def swap_extents(self, swap: SegmentSwap) -> None:
        await self._database.change(partial(maintenance.swap_extents, swap))

    async def forget_partitions(self, *, limit: int) -> int:
        return await self._database.change(partial(maintenance.forget_partitions, limit))

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        return await self._database.change(partial(maintenance.forget_producers, idle_ms, limit))

    # Topics that become diskless

    async def open_migration(self, request: MigrationRequest) -> MigrationRequest:
        return await self._apply(partial(migrating.open_migration, self._images, request))

    async def running_migrations(self) -> list[RunningMigration]:
        return await self._database.change(migrations.running, lock=Lock.SNAPSHOT)

    async def join_migration(
        self, request: MigrationRequest, participant: MigrationParticipant
    ) -> None:
        await self._database.change(partial(migrating.join_migration, request, participant))

    async def close_migration(self, request: MigrationRequest) -> None:
        await self._database.change(partial(migrating.close_migration, request))

    async def migrate_topic(self, migration: TopicMigration) -> Topic:
        check_partitions(migration.topic_id, migration.partitions)
        return await self._apply(partial(migrating.migrate_topic, self._images, migration))
