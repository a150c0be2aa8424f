"""Control-plane interface of diskless topics: the batch index and its objects.

Every change is one transaction and a compare-and-set. After `ControlUnavailable` it is unknown
whether the change took effect. Every method may be repeated: a repeated commit of an object returns
the first answer.

An object's row goes PENDING → COMMITTED → DELETING → gone, or PENDING → DELETING → gone. Keys are
never reused. Ages of rows are measured by the control plane's clock (the database's, if there is
one), never by a broker's.

A partition's high watermark rises in the transaction that adds the extents below it, so concurrent
transactions never block readers.

Source: Aiven's Inkless (`ControlPlane`), `reference/hot-cold-fetch.txt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.batch_index import (
    aborted,
    commits,
    extents,
    finds,
    maintenance,
    migrating,
    migrations,
    objects,
    partitions,
    replicating,
)
from penstock.control.batch_index.commit_rules import check_commit
from penstock.control.batch_index.commits import commit_sink_objects
from penstock.control.batch_index.migration_rules import check_partitions
from penstock.control.batch_index.migration_values import (
    MigrationParticipant,
    MigrationRequest,
    RunningMigration,
    TopicMigration,
    TopicReplication,
)
from penstock.control.batch_index.replicating_rules import Targets
from penstock.control.batch_index.values import (
    Aborted,
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
from penstock.control.metadata.operations import Metadata
from penstock.control.sink_commits.rules import SinkAnswer, check_sink_objects
from penstock.control.values import SinkCommit, Topic
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer, ProducerState


class DisklessPlane(Metadata):
    """Objects and the batch index. The first commit to a partition creates its row."""

    _randomness: Randomness

    def _notify(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Notify other brokers of changed partitions."""

    # Objects

    async def store_identity(self) -> StoreIdentity | None:
        """Return the identity of the adopted object store; None before the adoption."""
        return await self._database.read(objects.store)

    async def adopt_store(self, identity: StoreIdentity) -> StoreIdentity:
        """Adopt a store unless one is adopted; return the adopted one, which never changes."""
        return await self._database.change(partial(objects.adopt_store, identity))

    async def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> list[ObjectLease]:
        """Reserve keys for objects, as rows PENDING.

        Raises:
            StaleBroker: another incarnation owns the broker's id, or it is not registered.
            TooLarge: more than `OBJECT_LEASES_PER_CALL_MAX`.
        """

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
        """Reserve the key of a sealed segment that begins at an offset, as a PENDING row."""
        nonce = self._randomness.bits(32)
        return await self._database.change(
            partial(commits.lease_segment, nonce, (topic_id, partition), base_offset)
        )

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        """Reset the age of PENDING rows whose objects take long to write.

        Raises:
            ObjectLeaseLost: a row is not PENDING any more.
        """
        await self._database.change(partial(maintenance.renew_leases, object_ids))

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        """Assign offsets to the entries of a written object, all in one transaction.

        An entry is rejected on its own, by the rules of idempotent producers and of transactions,
        or because its topic (which must have `diskless.enable`) or its partition does not exist. An
        object without accepted entries is marked DELETING.

        Raises:
            ObjectLeaseLost: its row is DELETING or gone; write the object again under another key.
            TooLarge: more than `OBJECT_ENTRIES_MAX` entries.
        """
        check_commit(commit)
        answer = await self._database.change(
            partial(commits.commit_object, self._images, commit), lock=Lock.TOPICS
        )
        self._notify(answer.watermarks)
        return answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        """Commit all objects of a sink's batch and save its row as done: both or nothing.

        The row is saved as by `ControlPlane.save_sink_commit`, with the offsets of its targets.
        Objects are placed in their order. A repetition gets the first answer.

        Raises:
            StaleSink: the row is at another version, or `record` cannot follow it.
            EntryRefused: a topic or partition does not exist, or is not diskless.
            ObjectLeaseLost: an object is DELETING or gone; write all objects again.
            TooLarge: more than `SINK_OBJECTS_MAX` objects, or as `commit_object`.
            InvalidCommit: no object, or entries of an idempotent producer.
        """
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
        for committed in answer.answers:
            self._notify(committed.watermarks)
        return answer

    async def highest_object_id(self) -> int:
        """Return the highest id that was ever leased; 0 before the first."""
        return await self._database.read(objects.highest_object_id)

    async def object_totals(self) -> list[ObjectTotals]:
        """Return the number and bytes of objects, by state and kind."""
        return await self._database.read(objects.totals)

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        """Return (state, lease) of up to `limit` rows with a key above `after`, by key."""
        return await self._database.read(partial(objects.keys, after, limit))

    async def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[MarkedObject]:
        """Mark expired PENDING rows, and COMMITTED objects long without extents, as DELETING.

        Returns all marked objects. A later commit of a marked object is rejected.
        """
        return await self._database.change(
            partial(
                maintenance.mark_for_deletion,
                pending_grace_ms=pending_grace_ms,
                unreferenced_grace_ms=unreferenced_grace_ms,
                limit=limit,
            )
        )

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        """Drop the rows of DELETING objects whose bytes are deleted; repeatable."""
        await self._database.change(partial(maintenance.forget_objects, object_ids))

    # Extents

    async def find(self, requests: Sequence[FindRequest]) -> list[Found]:
        """Return the extents that each request needs, in the order of the requests."""
        if not requests:
            return []
        find = partial(finds.find, self._images, requests)
        found = await self._database.read(find)
        if found is None:  # other brokers have changed topics since
            await self.image()
            found = await self._database.read(partial(find, self._images.published))
        return found or []

    async def watermarks(self, partitions: Sequence[PartitionKey]) -> list[Watermarks]:
        """Return the watermarks of partitions; a partition without a commit is empty at 0."""
        return await self._database.read(partial(finds.watermarks, partitions))

    async def extents(
        self, topic_id: UUID, partition: int, *, start: int, end: int, limit: int
    ) -> list[Extent]:
        """Return up to `limit` extents that hold offsets of [start, end), by offset."""
        key = (topic_id, partition)
        return await self._database.read(partial(extents.between, key, start, end, limit))

    async def aborted(self, topic_id: UUID, partition: int, *, offset: int, limit: int) -> Aborted:
        """Return up to `limit` aborted transactions whose markers are at or above an offset."""
        read = partial(aborted.aborted_from, (topic_id, partition), offset, limit)
        return await self._database.read(read)

    async def extent_at_time(
        self, topic_id: UUID, partition: int, timestamp: int | None
    ) -> Extent | None:
        """Return the first extent that reaches a time; None asks for the highest timestamp."""
        return await self._database.read(partial(extents.at_time, (topic_id, partition), timestamp))

    async def diskless_producers(self, topic_id: UUID, partition: int) -> list[ProducerState]:
        """Return the idempotent producers of a partition, by producer id."""
        return await self._database.read(partial(finds.producers, (topic_id, partition)))

    async def remembered_producers(
        self, topic_id: UUID, partition: int
    ) -> list[tuple[int, Producer]]:
        """Return the same producers with their batches, for logs made of a partition."""
        return await self._database.read(partial(partitions.producers_of, (topic_id, partition)))

    async def backlogs(self, *, min_extents: int, limit: int) -> list[Backlog]:
        """Return partitions with at least so many write-ahead extents, the most first."""
        return await self._database.read(partial(partitions.backlogs, min_extents, limit))

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> Watermarks:
        """Raise a partition's log start to an offset (-1: the high watermark). It never falls.

        Raises:
            OffsetBeyondEnd: above the high watermark, or below -1.
            NotWritable: the topic is not diskless any more, or is becoming replicated.
        """
        key = (topic_id, partition)
        watermarks = await self._database.change(
            partial(maintenance.delete_records, self._images, key, before_offset),
            lock=Lock.TOPICS,
        )
        self._notify({key: watermarks})
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
        """Drop up to `limit` whole extents from the start, by log start, age or total size."""
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
            self._notify({key: retained.watermarks})
        return retained

    async def swap_extents(self, swap: SegmentSwap) -> None:
        """Replace the extents that a sealed segment was made of by the segment.

        Raises:
            StaleExtents: one of them is gone, or has changed.
            ObjectLeaseLost: as in `commit_object`.
        """
        await self._database.change(partial(maintenance.swap_extents, swap))

    async def clean_offset(self, topic_id: UUID, partition: int) -> int:
        """Return the offset below which no key has two records; 0 if it is unknown."""
        return await self._database.read(partial(partitions.clean_offset, (topic_id, partition)))

    async def note_clean(
        self, topic_id: UUID, partition: int, offset: int, *, newest: Extent
    ) -> None:
        """Record the offset up to which a pass compacted a partition; it never falls.

        `newest` is the extent that holds the offset before, as the pass left it.

        Raises:
            StaleExtents: it is not there any more.
        """
        await self._database.change(
            partial(maintenance.note_clean, (topic_id, partition), offset, newest)
        )

    async def forget_partitions(self, *, limit: int) -> int:
        """Drop up to `limit` rows of deleted topics' partitions; return their number."""
        return await self._database.change(partial(maintenance.forget_partitions, limit))

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        """Forget producers that were idle for `idle_ms`; return their number."""
        return await self._database.change(partial(maintenance.forget_producers, idle_ms, limit))

    # Topics that become diskless

    async def open_migration(
        self, request: MigrationRequest, targets: Targets = ()
    ) -> MigrationRequest:
        """Ask the leaders of a topic's partitions for their shares in its migration.

        `targets` are the future replicas of a diskless topic that becomes replicated. Returns the
        open request: this one, or an earlier one of another live broker.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            StaleTopic: the topic already is, or is not, diskless; or its partition count differs
                from `targets`.
            InvalidReplicas: a target is empty, or names a broker twice.
            UnknownTopic: no topic of this id.
        """
        return await self._apply(partial(migrating.open_migration, self._images, request, targets))

    async def running_migrations(self) -> list[RunningMigration]:
        """Return all open requests."""
        return await self._database.change(migrations.running, lock=Lock.SNAPSHOT)

    async def join_migration(
        self, request: MigrationRequest, participant: MigrationParticipant
    ) -> None:
        """Store a broker's share, which replaces its earlier one.

        Raises:
            StaleMigration: the request is closed.
            MigrationRefused, InvalidCommit: as `migrate_topic`, for this share.
        """
        await self._database.change(partial(migrating.join_migration, request, participant))

    async def close_migration(self, request: MigrationRequest) -> None:
        """Delete a request, its shares and its fence; no commit of it can take effect later."""
        await self._apply(partial(migrating.close_migration, self._images, request))

    async def migrate_topic(self, migration: TopicMigration) -> Topic:
        """Make a local topic diskless: its objects, extents, producers, configs, all at once.

        Raises the leader epoch of every partition. Uses the shares of other brokers under the
        request of `migration_id`, and deletes the request. Returns the topic unchanged if it became
        diskless by these objects before.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic of this id.
            StaleTopic: its configs, partitions or leader epochs differ from the shares.
            StaleMigration: the request is closed.
            ObjectLeaseLost: as in `commit_object`.
            MigrationRefused: an exactly-once sink has an unfinished commit to it, too many rows
                would be stored, or a broker with a share was restarted.
            InvalidCommit: the extents do not add up to the log.
        """
        check_partitions(migration.topic_id, migration.partitions)
        return await self._apply(partial(migrating.migrate_topic, self._images, migration))

    async def fence_topic(self, request: MigrationRequest) -> None:
        """Reject appends to, and deletions from, a diskless topic that becomes replicated.

        The fence lasts until the request is closed; the watermarks do not change meanwhile.

        Raises:
            StaleMigration: the request is closed.
            StaleBroker, UnknownTopic: as `open_migration`.
            StaleTopic: partitions were added since.
            MigrationRefused: an exactly-once sink has an unfinished commit to it.
        """
        await self._apply(partial(replicating.fence_topic, self._images, request))

    async def replicate_topic(self, replication: TopicReplication) -> Topic:
        """Give a fenced topic the ordered replicas, in the epoch of their logs.

        Every replica needs a FENCED share under the request, except the caller, whose share need
        not be stored. The topic's batch index is dropped. Returns a topic that already has replicas
        unchanged.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic of this id.
            StaleTopic: its configs are not the expected ones.
            StaleMigration: the request is closed.
            MigrationRefused: a broker has no such share, or was restarted since; or as
                `fence_topic`.
            InvalidQuorum: `min.insync.replicas` is above the number of replicas.
        """
        return await self._apply(partial(replicating.replicate_topic, self._images, replication))
