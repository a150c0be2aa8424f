"""Methods of the control plane for the batch index, and for migrations of topics.

Every change is one transaction and a compare-and-set. After `ControlUnavailable` it is unknown
whether the change took effect. Every method may then be repeated; a repeated commit of an object
returns the first result.

A partition's high watermark rises in the transaction that adds the extents below it, so concurrent
transactions never block readers. A lookup is one lock-free statement that reads a partition and its
first extents in one snapshot. If these are too few, a second statement reads more.

Several brokers may run the same background job at once: each skips rows that another broker has
locked. Locks are taken in the order of `control/operations/commits.py`.

Source: Aiven's Inkless (`ControlPlane`), `reference/hot-cold-fetch.txt`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import UUID

from penstock.control.drivers.statements import Call, Lock, Operation, operation, query, uuid_of
from penstock.control.operations import commits, diskless_tables, epochs
from penstock.control.operations.commits import DisklessObjects
from penstock.control.operations.images import Images, StampedImage, image_operation
from penstock.control.operations.metadata import Metadata
from penstock.control.rules import diskless, migrations
from penstock.control.rules.diskless import EMPTY, TopicOf, write_refusal
from penstock.control.rules.migrations import Targets
from penstock.control.values.diskless import (
    Aborted,
    Backlog,
    FindRequest,
    Found,
    MigrationParticipant,
    MigrationRequest,
    PartitionKey,
    Retained,
    RunningMigration,
    SegmentSwap,
    TopicMigration,
    TopicReplication,
    Watermarks,
)
from penstock.control.values.errors import FIND_EXTENTS_MAX, NotWritable, ObjectLeaseLost
from penstock.control.values.topics import Topic
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer, ProducerState, described

# Methods of the control plane for topics that become diskless or replicated.
#
# `open_migration` stores a request. Brokers that copy partitions store their progress as
# participants of the request (`join_migration`). `migrate_topic` or `replicate_topic` then changes
# the topic, and deletes the request. `fence_topic` precedes `replicate_topic`.
#
# `replicate_topic` moves the topic's batch index to an id that no topic has. Retention jobs delete
# it later in steps, as they do after the deletion of a topic. The topic may become diskless again
# at once.
#
# Locks are taken in the order of all diskless transactions: metadata, a topic's migration, objects,
# partitions.


class TopicMigrations(Metadata):
    """Methods of `ControlPlane` for topics that become diskless or replicated."""

    @image_operation
    def open_migration(
        self, request: MigrationRequest, targets: Targets = ()
    ) -> Operation[tuple[MigrationRequest, StampedImage]]:
        """Store a request to make a topic diskless or replicated; return the topic's open request.

        If another live broker has an open request for the topic, that request is returned and
        stays. A diskless topic becomes replicated if `targets` is given: the future replicas of
        each partition.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            StaleTopic: the topic already is, or is not, diskless; or its partition count differs
                from `targets`.
            InvalidReplicas: a target is empty, or names a broker twice.
            UnknownTopic: no topic has this id.
        """
        known = yield from self._images.locked()
        found = yield from diskless_tables.lock_request(request.topic_id)
        if found == request:
            return found, known
        first = migrations.check_request(known.image, request, found, diskless=bool(targets))
        if first is not None:
            return first, known
        yield diskless_tables.delete_request(request.topic_id)
        yield diskless_tables.write_request(*request)
        image = migrations.order(known.image, request, targets) if targets else known.image
        return request, (yield from self._images.store(known, image))

    @operation(lock=Lock.SNAPSHOT)
    def running_migrations(self) -> Operation[list[RunningMigration]]:
        """Return all open requests and their participants."""
        return diskless_tables.running()

    @operation()
    def join_migration(
        self, request: MigrationRequest, participant: MigrationParticipant
    ) -> Operation[None]:
        """Store a broker as participant of a request, replacing what it stored before.

        Raises:
            StaleMigration: the request is closed.
            MigrationRefused, InvalidCommit: as in `migrate_topic`, for this participant's
                partitions.
        """
        found = yield from diskless_tables.lock_request(request.topic_id)
        migrations.check_participant(request, found, participant)
        yield diskless_tables.write_participant(request.topic_id, participant)

    @image_operation
    def close_migration(self, request: MigrationRequest) -> Operation[tuple[None, StampedImage]]:
        """Delete a request, its participants and the topic's fence.

        A later commit under it is rejected.
        """
        known = yield from self._images.locked()
        if (yield from diskless_tables.lock_request(request.topic_id)) != request:
            return None, known
        yield diskless_tables.delete_request(request.topic_id)
        image = migrations.without_order(known.image, request)
        return None, (yield from self._images.store(known, image))

    async def migrate_topic(self, migration: TopicMigration) -> Topic:
        """Make a local topic diskless, in one transaction.

        Stores its objects, extents, producers and configs, and raises the leader epoch of every
        partition. Includes the partitions of other brokers, which are participants of the request
        `migration_id`, and deletes the request. Returns the topic unchanged if it has become
        diskless by these objects before.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic has this id.
            StaleTopic: the topic's configs, partitions or leader epochs differ from those of the
                copies.
            StaleMigration: the request is closed.
            ObjectLeaseLost: as in `commit_object`.
            MigrationRefused: an exactly-once sink has an unfinished commit to the topic, too many
                rows would be stored, or a participating broker was restarted.
            InvalidCommit: the extents of a partition do not cover its log.
        """
        migrations.check_partitions(migration.topic_id, migration.partitions)

        def migrate() -> Operation[tuple[Topic, StampedImage]]:
            known = yield from self._images.locked()
            reserved = yield from _highest_reserved(known.topic(migration.topic_id))
            participants = migrations.all_participants(
                migration,
                (yield from diskless_tables.lock_request(migration.topic_id)),
                (yield from diskless_tables.participants(migration.topic_id)),
            )
            parts = [part for participant in participants for part in participant.partitions]
            written = migrations.objects_of(parts or migration.partitions)
            found = yield from diskless_tables.lock(
                [written_object.object_id for written_object in written]
            )
            plan = migrations.plan_migration(
                known.image,
                migration,
                participants,
                states={object_id: object_row.state for object_id, object_row in found.items()},
                sinks=(yield from commits.read_all()),
                reserved=reserved,
            )
            if plan.is_made:
                return plan.topic, known
            yield from _write(plan)
            yield diskless_tables.delete_request(migration.topic_id)
            return plan.topic, (yield from self._images.store(known, plan.image))

        return await self._apply(migrate)

    @image_operation
    def fence_topic(self, request: MigrationRequest) -> Operation[tuple[None, StampedImage]]:
        """Fence a diskless topic that becomes replicated: reject appends and DeleteRecords.

        The fence lasts until the request is closed. Retention may still raise log starts.

        Raises:
            StaleMigration: the request is closed.
            StaleBroker, UnknownTopic: as in `open_migration`.
            StaleTopic: partitions were added since the request, so they have no target replicas.
            MigrationRefused: an exactly-once sink has an unfinished commit to the topic.
        """
        known = yield from self._images.locked()
        found = yield from diskless_tables.lock_request(request.topic_id)
        image = migrations.fence(known.image, request, found, (yield from commits.read_all()))
        return None, (yield from self._images.store(known, image))

    @image_operation
    def replicate_topic(
        self, replication: TopicReplication
    ) -> Operation[tuple[Topic, StampedImage]]:
        """Make a fenced diskless topic replicated: give its partitions their target replicas.

        Opens the leader epoch of the copied logs. Every target replica must be a FENCED participant
        of the request, except the caller, whose own participant need not be stored. Drops the
        topic's batch index. Returns a topic that is replicated already unchanged.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic has this id.
            StaleTopic: the topic's configs are not the expected ones.
            StaleMigration: the request is closed.
            MigrationRefused: a target replica is not a FENCED participant, or was restarted since;
                or as in `fence_topic`.
            InvalidQuorum: `min.insync.replicas` is above the number of replicas.
        """
        known = yield from self._images.locked()
        plan = migrations.plan_replication(
            known.image,
            replication,
            (yield from diskless_tables.lock_request(replication.topic_id)),
            (yield from diskless_tables.participants(replication.topic_id)),
            (yield from commits.read_all()),
        )
        if not plan.epochs:
            return plan.topic, known
        yield from epochs.add_first(plan.epochs)
        yield diskless_tables.retire(plan.topic.topic_id, replication.migration_id)
        yield diskless_tables.delete_request(plan.topic.topic_id)
        return plan.topic, (yield from self._images.store(known, plan.image))


def _highest_reserved(topic: Topic | None) -> Operation[dict[int, int]]:
    keys = (
        []
        if topic is None
        else [(topic.topic_id, partition.index) for partition in topic.partitions]
    )
    found = yield from epochs.reservations(keys, lock=True)
    return {index: reservation.reserved for (_, index), reservation in found.items()}


def _write(plan: migrations.MigrationPlan) -> Operation[None]:
    yield diskless_tables.write_committed(
        [
            (object_id, "committed", "segment", size_bytes, references)
            for object_id, size_bytes, references in plan.objects
        ]
    )
    found = yield from diskless_tables.lock_or_add(plan.rows)
    ids = {key: row.partition_id for key, row in found.items()}
    yield diskless_tables.write_rows([(ids[key], *row[1:]) for key, row in plan.rows.items()])
    now_ms: int = yield diskless_tables.now()
    for part in plan.partitions:
        partition_id = ids[plan.topic.topic_id, part.partition]
        yield diskless_tables.insert_aborted(
            diskless_tables.aborted_rows_of(partition_id, part.aborted)
        )
        yield diskless_tables.insert(diskless_tables.rows_of(partition_id, part.extents))
        yield diskless_tables.write_producers(
            [
                diskless_tables.producer_row(
                    partition_id, producer_id, state._replace(seen_ms=now_ms)
                )
                for producer_id, state in part.producers.items()
            ]
        )


_FIRST: Final = 16
"""Extents that the first statement of a lookup reads for each partition."""

_TOTAL: Final = 2 * FIND_EXTENTS_MAX
"""Extents that the second statement of a lookup reads for all partitions together."""


class DisklessPlane(DisklessObjects, TopicMigrations):
    """Methods of `ControlPlane` for diskless topics.

    The first commit to a partition creates its row.
    """

    async def find(self, requests: Sequence[FindRequest]) -> list[Found]:
        """Return the extents for each request, in the order of the requests."""
        if not requests:
            return []
        find = partial(_find, self._images, requests)
        found = await self._database.read(find)
        if found is None:  # other brokers have changed topics since
            await self.image()
            found = await self._database.read(partial(find, self._images.published))
        return found or []

    @query
    def watermarks(self, partitions: Sequence[PartitionKey]) -> Operation[list[Watermarks]]:
        """Return the watermarks of partitions, in their order.

        A partition without a commit is empty at offset 0.
        """
        return _watermarks(partitions)

    @query
    def extents(
        self, topic_id: UUID, partition: int, *, start: int, end: int, limit: int
    ) -> Operation[list[Extent]]:
        """Return up to `limit` extents that hold offsets of [`start`, `end`), by offset."""
        found = yield diskless_tables.between(topic_id, partition, start, end, limit)
        return list(map(Extent._make, found))

    @query
    def aborted(
        self, topic_id: UUID, partition: int, *, offset: int, limit: int
    ) -> Operation[Aborted]:
        """Return up to `limit` aborted transactions whose markers are at or above an offset."""
        return diskless_tables.aborted_from((topic_id, partition), offset, limit)

    @query
    def extent_at_time(
        self, topic_id: UUID, partition: int, timestamp: int | None
    ) -> Operation[Extent | None]:
        """Return the first extent with a record at or after `timestamp`, in milliseconds.

        None asks for the extent with the highest timestamp.
        """
        if timestamp is None:
            found = yield diskless_tables.newest(topic_id, partition)
        else:
            found = yield diskless_tables.at_time(topic_id, partition, timestamp)
        return None if found is None else Extent._make(found)

    @query
    def diskless_producers(self, topic_id: UUID, partition: int) -> Operation[list[ProducerState]]:
        """Return the state of each idempotent producer of a partition for DescribeProducers."""
        known = yield from diskless_tables.producers_of((topic_id, partition))
        return [described(producer_id, state) for producer_id, state in known]

    @query
    def remembered_producers(
        self, topic_id: UUID, partition: int
    ) -> Operation[list[tuple[int, Producer]]]:
        """Return (producer id, full state) of each idempotent producer of a partition.

        Callers that write a partition's records to new logs or segments store these states with
        them.
        """
        return diskless_tables.producers_of((topic_id, partition))

    @query
    def backlogs(self, *, min_extents: int, limit: int) -> Operation[list[Backlog]]:
        """Return the partitions with the most extents in write-ahead objects, the most first.

        Returns up to `limit` partitions with at least `min_extents` such extents.
        """
        found = yield diskless_tables.backlogs(max(min_extents, 1), limit)
        return [Backlog(uuid_of(topic_id), *fields) for topic_id, *fields in found]

    async def delete_records(
        self, topic_id: UUID, partition: int, before_offset: int
    ) -> Watermarks:
        """Raise a partition's log start to `before_offset`; -1 means the high watermark.

        It never falls.

        Raises:
            OffsetBeyondEnd: the offset is above the high watermark, or below -1.
            NotWritable: the topic is not diskless any more, or is becoming replicated.
        """
        key = (topic_id, partition)

        def raise_start() -> Operation[Watermarks]:
            refused = write_refusal((yield from self._images.current()).topic(key[0]), *key)
            if refused is not None and refused[0] == NotWritable.code:
                raise NotWritable(refused[1])
            row = yield from diskless_tables.lock_one(key)
            row = row._replace(log_start_offset=diskless.deletion_start(row, *key, before_offset))
            yield diskless_tables.write_rows([row])
            return row.watermarks

        watermarks = await self._database.change(raise_start, lock=Lock.TOPICS)
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
        """Apply retention: drop whole extents from the start of a partition.

        Drops up to `limit` extents, by log start, age or total size. None for `before_timestamp`
        (milliseconds) or `max_bytes` omits that rule.
        """
        key = (topic_id, partition)

        def drop() -> Operation[Retained]:
            row = yield from diskless_tables.lock_one(key)
            plan = diskless.plan_retention(
                row,
                (yield from diskless_tables.extents_from(row.partition_id, 0, limit + 1)),
                before_timestamp=before_timestamp,
                max_bytes=max_bytes,
                limit=limit,
            )
            if plan.dropped:
                yield diskless_tables.write_rows([plan.row])
                yield from _drop(row.partition_id, plan.dropped)
                yield diskless_tables.drop_below(row.partition_id, plan.row.log_start_offset)
            return plan.retained

        retained = await self._database.change(drop)
        if retained.extents_dropped:
            self._notify({key: retained.watermarks})
        return retained

    @operation()
    def swap_extents(self, swap: SegmentSwap) -> Operation[None]:
        """Replace extents of a partition by a sealed segment that was made of them.

        Raises:
            StaleExtents: one of the replaced extents is gone, or has changed.
            ObjectLeaseLost: as in `commit_object`.
            InvalidCommit: the new extents do not adjoin, or do not cover the replaced offsets.
        """
        row = yield from diskless_tables.lock_one((swap.topic_id, swap.partition))
        found = (yield from diskless_tables.lock([swap.object_id])).get(swap.object_id)
        if found is None:
            raise ObjectLeaseLost(swap.object_id)
        if diskless.is_swapped(swap, found.state):
            return
        first, count = swap.replaced[0].base_offset, len(swap.replaced)
        there = yield from diskless_tables.extents_from(row.partition_id, first, count)
        yield diskless_tables.write_rows([diskless.plan_swap(swap, row, there)])
        yield from _drop(row.partition_id, there)
        yield diskless_tables.insert(diskless_tables.rows_of(row.partition_id, swap.extents))
        segment = (swap.object_id, "committed", "segment", swap.size_bytes, len(swap.extents))
        yield diskless_tables.write_committed([segment])

    @query
    def clean_offset(self, topic_id: UUID, partition: int) -> Operation[int]:
        """Return the offset below which no key has two records, or 0 if it is unknown."""
        found = yield diskless_tables.clean_offset(topic_id, partition)
        return 0 if found is None else int(found)

    @operation()
    def note_clean(
        self, topic_id: UUID, partition: int, offset: int, *, newest: Extent
    ) -> Operation[None]:
        """Store the offset up to which a compaction pass has compacted a partition. It never falls.

        `newest` is the extent that holds `offset - 1`, as the pass left it.

        Raises:
            StaleExtents: another extent, or none, holds `offset - 1` now.
        """
        key = (topic_id, partition)
        row = yield from diskless_tables.lock_one(key)
        there = yield from diskless_tables.extents_from(row.partition_id, offset - 1, 1)
        diskless.check_newest(key, offset, newest, there)
        yield diskless_tables.note_clean(row.partition_id, offset)

    @operation()
    def forget_partitions(self, *, limit: int) -> Operation[int]:
        """Delete up to `limit` rows of partitions of deleted topics; return their number."""
        dropped = 0
        while dropped < limit:
            partition_id = yield diskless_tables.forgotten()
            if partition_id is None:
                break
            dropped += yield from _forget(partition_id, limit - dropped)
        return dropped

    @operation()
    def forget_producers(self, *, idle_ms: int, limit: int) -> Operation[int]:
        """Delete up to `limit` producers that have been idle for `idle_ms`; return their number."""
        forgotten: int = yield diskless_tables.drop_idle_producers(idle_ms, limit)
        return forgotten


def _find(
    images: Images, requests: Sequence[FindRequest], newest: StampedImage | None = None
) -> Operation[list[Found] | None]:
    answers: list[Found] = []
    for request, rows in zip(requests, (yield _scan(requests, _FIRST)), strict=True):
        first = next(rows, None)
        newest = newest or images.known(first and diskless_tables.stamp_of(first))
        if newest is None:
            return None
        answers.append(_found(request, first, rows, newest.topic))
    short = [
        place
        for place, answer in enumerate(answers)
        if len(answer.extents) == _FIRST and not _enough(answer, requests[place])
    ]
    if short and newest is not None:
        again = [requests[place] for place in short]
        limit = max(_FIRST, min(FIND_EXTENTS_MAX, _TOTAL // len(short)))
        for place, rows in zip(short, (yield _scan(again, limit)), strict=True):
            answers[place] = _found(requests[place], next(rows, None), rows, newest.topic)
    return answers


def _scan(requests: Sequence[FindRequest], limit: int) -> Call:
    return diskless_tables.find([request[:3] for request in requests], limit)


def _found(request: FindRequest, first: Any, rows: Iterator[Any], topic_of: TopicOf) -> Found:
    row = diskless_tables.partition_of(first)
    answer = diskless.found_without_extents(request, topic_of, row)
    if answer is None:
        there = chain((first,), rows) if diskless_tables.has_extent(first) else ()
        answer = diskless.found(request, row, map(diskless_tables.extent_of, there))
    return answer


def _enough(answer: Found, request: FindRequest) -> bool:
    first, *rest = answer.extents
    size_bytes = diskless.bytes_from(first, request.offset)
    return size_bytes + sum([extent.size_bytes for extent in rest]) >= request.max_bytes


def _watermarks(keys: Sequence[PartitionKey]) -> Operation[list[Watermarks]]:
    found = yield from diskless_tables.read(set(keys))
    return [found.get(key, EMPTY).watermarks for key in keys]


def _forget(partition_id: int, limit: int) -> Operation[int]:
    """Delete up to `limit` rows of a deleted topic's partition; return their number.

    Extents, producers and aborted transactions are deleted first, the partition's own row last.
    """
    gone = yield from diskless_tables.extents_from(partition_id, 0, limit)
    yield from _drop(partition_id, gone)
    dropped: int = len(gone)
    for statement in (diskless_tables.drop_producers, diskless_tables.drop_aborted):
        dropped += yield statement(partition_id, limit - dropped)
    if dropped < limit:
        dropped += yield diskless_tables.drop_row(partition_id)
    return dropped


def _drop(partition_id: int, gone: Sequence[Extent]) -> Operation[None]:
    yield from diskless_tables.drop(partition_id, gone)
    yield diskless_tables.release(diskless.references(gone).items())
