"""The part of the control plane that diskless topics need: the batch index and its objects.

Every change is one transaction and a compare-and-set; `ControlUnavailable` leaves it unknown
whether the change took effect, and every method may be repeated: a repeated commit of an object
returns the first answer.

An object's row goes PENDING → COMMITTED → DELETING → gone, or PENDING → DELETING → gone. Keys
never come again. Ages of rows are measured by the clock of the plane itself (the database's own,
where there is one), never by a broker's.

A partition is what its own row says: its high watermark rises in the transaction that adds extents
below it, so what else goes on in the database never holds readers up.

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
from penstock.control.metadata.plane import Metadata
from penstock.control.sink_commits.object_rules import SinkAnswer, check_sink_objects
from penstock.control.values import SinkCommit, Topic
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer, ProducerState


class DisklessPlane(Metadata):
    """Objects and the batch index. Partitions come to be with the first commit to them."""

    _randomness: Randomness

    def _tell(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Tell other brokers of partitions that have changed."""

    # Objects

    async def store_identity(self) -> StoreIdentity | None:
        """The store that the objects lie in; None until one is adopted."""
        return await self._database.read(objects.store)

    async def adopt_store(self, identity: StoreIdentity) -> StoreIdentity:
        """Adopt a store if none is; returns the one that is, which never changes again."""
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
        """Reserve the key of a sealed segment that begins at an offset, as a row PENDING.

        Whoever asks gets one: a segment takes effect by the compare-and-set of `swap_extents`.
        """
        nonce = self._randomness.bits(32)
        return await self._database.change(
            partial(commits.lease_segment, nonce, (topic_id, partition), base_offset)
        )

    async def renew_leases(self, object_ids: Sequence[int]) -> None:
        """Let rows PENDING be as young as new ones, where writing what they are for takes long.

        Raises:
            ObjectLeaseLost: one is not PENDING any more.
        """
        await self._database.change(partial(maintenance.renew_leases, object_ids))

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        """Give the entries of a written object their offsets, all in one transaction.

        An entry is refused on its own, by the rules of idempotent producers and of transactions,
        or because its topic, which must have `diskless.enable`, or its partition is not there. An
        object of which nothing was accepted is marked DELETING.

        Raises:
            ObjectLeaseLost: its row is DELETING or gone; the object is to be written anew under
                another key.
            TooLarge: more than `OBJECT_ENTRIES_MAX` entries.
        """
        check_commit(commit)
        answer = await self._database.change(
            partial(commits.commit_object, self._images, commit), lock=Lock.TOPICS
        )
        self._tell(answer.watermarks)
        return answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        """Commit all objects of a sink's batch, and save its row as done: both or nothing.

        The row is saved as by `ControlPlane.save_sink_commit`, with the offsets that its targets
        got. Objects are placed in their order. A repetition gets the first answer.

        Raises:
            StaleSink: the row is at another version, or `record` cannot follow on it.
            EntryRefused: a topic or partition is not there, or not diskless.
            ObjectLeaseLost: an object is DELETING or gone; all are to be written anew.
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
        for one in answer.answers:
            self._tell(one.watermarks)
        return answer

    async def highest_object_id(self) -> int:
        """The highest id that was ever leased; 0 before the first.

        A store that holds a higher one shows that the database was restored from a backup.
        """
        return await self._database.read(objects.highest_object_id)

    async def object_totals(self) -> list[ObjectTotals]:
        """How many objects and bytes there are, by state and kind."""
        return await self._database.read(objects.totals)

    async def referenced_keys(self, *, after: str, limit: int) -> list[tuple[str, ObjectLease]]:
        """All rows by key, from the first above `after`: (state, lease); for `verify`."""
        return await self._database.read(partial(objects.keys, after, limit))

    async def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> list[MarkedObject]:
        """Mark objects DELETING that nobody can need any more, and name all that are so marked.

        Those are rows PENDING for longer than `pending_grace_ms`, and COMMITTED objects that no
        extent has referred to for longer than `unreferenced_grace_ms`. A commit that comes later
        finds the mark and loses.
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
        """Drop the rows of objects that are DELETING and whose bytes are gone; repeatable."""
        await self._database.change(partial(maintenance.forget_objects, object_ids))

    # Extents

    async def find(self, requests: Sequence[FindRequest]) -> list[Found]:
        """The extents that each request needs; one answer per request, in their order."""
        if not requests:
            return []
        find = partial(finds.find, self._images, requests)
        found = await self._database.read(find)
        if found is None:  # others have changed topics since
            await self.image()
            found = await self._database.read(partial(find, self._images.published))
        return found or []

    async def watermarks(self, partitions: Sequence[PartitionKey]) -> list[Watermarks]:
        """Where partitions begin and end; a partition without a commit is empty at 0."""
        return await self._database.read(partial(finds.watermarks, partitions))

    async def extents(
        self, topic_id: UUID, partition: int, *, start: int, end: int, limit: int
    ) -> list[Extent]:
        """The extents that hold offsets of [start, end), by offset, at most `limit` of them."""
        key = (topic_id, partition)
        return await self._database.read(partial(extents.between, key, start, end, limit))

    async def aborted(self, topic_id: UUID, partition: int, *, offset: int, limit: int) -> Aborted:
        """The aborted transactions that end at or behind an offset, at most `limit`, by marker."""
        read = partial(aborted.aborted_from, (topic_id, partition), offset, limit)
        return await self._database.read(read)

    async def extent_at_time(
        self, topic_id: UUID, partition: int, timestamp: int | None
    ) -> Extent | None:
        """The first extent whose highest timestamp is at or after a time.

        None for the time asks for the first extent that has the partition's highest timestamp.
        """
        return await self._database.read(partial(extents.at_time, (topic_id, partition), timestamp))

    async def diskless_producers(self, topic_id: UUID, partition: int) -> list[ProducerState]:
        """The idempotent producers that a partition remembers, by producer id."""
        return await self._database.read(partial(finds.producers, (topic_id, partition)))

    async def remembered_producers(
        self, topic_id: UUID, partition: int
    ) -> list[tuple[int, Producer]]:
        """The same with their batches, for the logs that a partition gets."""
        return await self._database.read(partial(partitions.producers_of, (topic_id, partition)))

    async def backlogs(self, *, min_extents: int, limit: int) -> list[Backlog]:
        """Partitions with at least so many extents in write-ahead objects, the most first."""
        return await self._database.read(partial(partitions.backlogs, min_extents, limit))

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> Watermarks:
        """Move a partition's start up to an offset; -1 is the high watermark. Never moves back.

        Raises:
            OffsetBeyondEnd: above the high watermark, or below -1.
            NotWritable: the topic is not diskless any more, or is getting replicas.
        """
        key = (topic_id, partition)
        watermarks = await self._database.change(
            partial(maintenance.delete_records, self._images, key, before_offset),
            lock=Lock.TOPICS,
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
        """Drop whole extents from the start: those below it, older than a time, beyond a size.

        The extent that holds the log start stays whole; the start moves to the first extent that
        is kept. At most `limit` extents in one call.
        """
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
        """Commit a sealed segment in the place of the extents that it was made of.

        Raises:
            StaleExtents: one of them is not there any more, or not as it was.
            ObjectLeaseLost: as in `commit_object`.
        """
        await self._database.change(partial(maintenance.swap_extents, swap))

    async def clean_offset(self, topic_id: UUID, partition: int) -> int:
        """Below which offset no key of a partition has two records; 0 where nothing is known."""
        return await self._database.read(partial(partitions.clean_offset, (topic_id, partition)))

    async def note_clean(
        self, topic_id: UUID, partition: int, offset: int, *, newest: Extent
    ) -> None:
        """Note that a pass of compaction has come to an offset; it never falls.

        `newest` is the extent that holds the offset before, as the pass has left it.

        Raises:
            StaleExtents: it is not there any more.
        """
        await self._database.change(
            partial(maintenance.note_clean, (topic_id, partition), offset, newest)
        )

    async def forget_partitions(self, *, limit: int) -> int:
        """Drop extents, producers and rows of partitions whose topic is deleted; how many rows.

        Zero when there is nothing left to drop.
        """
        return await self._database.change(partial(maintenance.forget_partitions, limit))

    async def forget_producers(self, *, idle_ms: int, limit: int) -> int:
        """Forget producers that have not appended for a time; how many."""
        return await self._database.change(partial(maintenance.forget_producers, idle_ms, limit))

    # Topics that become diskless

    async def open_migration(
        self, request: MigrationRequest, targets: Targets = ()
    ) -> MigrationRequest:
        """Ask the brokers that lead a topic's partitions for their shares in its switch.

        With `targets`, of a diskless topic that is to get replicas, those that are to have them.

        What is asked for from then on: this request, or the one of another broker that lives.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            StaleTopic: it is diskless, or is not, and nobody would bring a share; or there are
                other partitions than targets.
            InvalidReplicas: a target is none.
            UnknownTopic: no topic of this id.
        """
        return await self._apply(partial(migrating.open_migration, self._images, request, targets))

    async def running_migrations(self) -> list[RunningMigration]:
        """All requests that are open."""
        return await self._database.change(migrations.running, lock=Lock.SNAPSHOT)

    async def join_migration(
        self, request: MigrationRequest, participant: MigrationParticipant
    ) -> None:
        """Store a broker's share in the place of its earlier one.

        Raises:
            StaleMigration: the request is over.
            MigrationRefused, InvalidCommit: as `migrate_topic`, of this share alone.
        """
        await self._database.change(partial(migrating.join_migration, request, participant))

    async def close_migration(self, request: MigrationRequest) -> None:
        """Delete a request and its shares; one that is over does not matter.

        On return no commit of it can take effect any more, unless it has. A diskless topic may be
        appended to again.
        """
        await self._apply(partial(migrating.close_migration, self._images, request))

    async def migrate_topic(self, migration: TopicMigration) -> Topic:
        """Make a local topic diskless: its objects, extents, producers, configs, all at once.

        The leader epoch of every partition rises. The shares of other brokers are those under the
        request of `migration_id`, which is deleted. A topic that has become diskless by these
        objects already is answered with as it is.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic of this id.
            StaleTopic: its configs, partitions or leader epochs are not as the shares say.
            StaleMigration: the request is over.
            ObjectLeaseLost: as in `commit_object`.
            MigrationRefused: an exactly-once sink has an unfinished commit to it, too much would
                have to be stored, or a broker with a share was restarted.
            InvalidCommit: the extents do not add up to the log.
        """
        check_partitions(migration.topic_id, migration.partitions)
        return await self._apply(partial(migrating.migrate_topic, self._images, migration))

    async def fence_topic(self, request: MigrationRequest) -> None:
        """Let nothing be appended to, or deleted from, a diskless topic that is to get replicas.

        Until the request is closed; its partitions end then where `watermarks` says.

        Raises:
            StaleMigration: the request is over.
            StaleBroker, UnknownTopic: as `open_migration`.
            StaleTopic: it has got partitions since.
            MigrationRefused: an exactly-once sink has an unfinished commit to it.
        """
        await self._apply(partial(replicating.fence_topic, self._images, request))

    async def replicate_topic(self, replication: TopicReplication) -> Topic:
        """Give a fenced topic the replicas that are ordered, in the epoch of their logs.

        All of them have shares under the request that are FENCED, but for the caller's own, which
        need not be stored. The batch index of the topic is dropped. A topic that has replicas
        already is answered with as it is.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic of this id.
            StaleTopic: its configs are not those that are expected.
            StaleMigration: the request is over.
            MigrationRefused: one has no such share, or was restarted since; or as `fence_topic`.
            InvalidQuorum: `min.insync.replicas` is above the number of replicas.
        """
        return await self._apply(partial(replicating.replicate_topic, self._images, replication))
