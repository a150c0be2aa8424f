"""Methods of the control plane for the batch index of diskless topics.

Every change is one transaction and a compare-and-set. After `ControlUnavailable` it is unknown
whether the change took effect. Every method may then be repeated; a repeated commit of an object
returns the first result.

A partition's high watermark rises in the transaction that adds the extents below it, so concurrent
transactions never block readers. A lookup is one lock-free statement that reads a partition and its
first extents in one snapshot. If these are too few, a second statement reads more.

Several brokers may run the same background job at once: each skips rows that another broker has
locked. Locks are taken in the order of `commits.py`.

Source: Aiven's Inkless (`ControlPlane`), `reference/hot-cold-fetch.txt`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import UUID

from penstock.control.batch_index import aborted, extents, index_rules, objects, partitions
from penstock.control.batch_index.commits import DisklessObjects
from penstock.control.batch_index.migrating import TopicMigrations
from penstock.control.batch_index.rules import EMPTY, TopicOf, write_refusal
from penstock.control.batch_index.values import (
    Aborted,
    Backlog,
    FindRequest,
    Found,
    PartitionKey,
    Retained,
    SegmentSwap,
    Watermarks,
)
from penstock.control.drivers.statements import Call, Lock, Operation, operation, query, uuid_of
from penstock.control.errors import NotWritable, ObjectLeaseLost
from penstock.control.limits import FIND_EXTENTS_MAX
from penstock.control.metadata.images import Images, StampedImage
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer, ProducerState, described

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
        found = yield extents.between(topic_id, partition, start, end, limit)
        return list(map(Extent._make, found))

    @query
    def aborted(
        self, topic_id: UUID, partition: int, *, offset: int, limit: int
    ) -> Operation[Aborted]:
        """Return up to `limit` aborted transactions whose markers are at or above an offset."""
        return aborted.aborted_from((topic_id, partition), offset, limit)

    @query
    def extent_at_time(
        self, topic_id: UUID, partition: int, timestamp: int | None
    ) -> Operation[Extent | None]:
        """Return the first extent with a record at or after `timestamp`, in milliseconds.

        None asks for the extent with the highest timestamp.
        """
        if timestamp is None:
            found = yield extents.newest(topic_id, partition)
        else:
            found = yield extents.at_time(topic_id, partition, timestamp)
        return None if found is None else Extent._make(found)

    @query
    def diskless_producers(self, topic_id: UUID, partition: int) -> Operation[list[ProducerState]]:
        """Return the state of each idempotent producer of a partition for DescribeProducers."""
        known = yield from partitions.producers_of((topic_id, partition))
        return [described(producer_id, state) for producer_id, state in known]

    @query
    def remembered_producers(
        self, topic_id: UUID, partition: int
    ) -> Operation[list[tuple[int, Producer]]]:
        """Return (producer id, full state) of each idempotent producer of a partition.

        Callers that write a partition's records to new logs or segments store these states with
        them.
        """
        return partitions.producers_of((topic_id, partition))

    @query
    def backlogs(self, *, min_extents: int, limit: int) -> Operation[list[Backlog]]:
        """Return the partitions with the most extents in write-ahead objects, the most first.

        Returns up to `limit` partitions with at least `min_extents` such extents.
        """
        found = yield partitions.backlogs(max(min_extents, 1), limit)
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
            row = yield from partitions.lock_one(key)
            row = row._replace(
                log_start_offset=index_rules.deletion_start(row, *key, before_offset)
            )
            yield partitions.write_rows([row])
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
            row = yield from partitions.lock_one(key)
            plan = index_rules.plan_retention(
                row,
                (yield from extents.extents_from(row.partition_id, 0, limit + 1)),
                before_timestamp=before_timestamp,
                max_bytes=max_bytes,
                limit=limit,
            )
            if plan.dropped:
                yield partitions.write_rows([plan.row])
                yield from _drop(row.partition_id, plan.dropped)
                yield aborted.drop_below(row.partition_id, plan.row.log_start_offset)
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
        row = yield from partitions.lock_one((swap.topic_id, swap.partition))
        found = (yield from objects.lock([swap.object_id])).get(swap.object_id)
        if found is None:
            raise ObjectLeaseLost(swap.object_id)
        if index_rules.is_swapped(swap, found.state):
            return
        first, count = swap.replaced[0].base_offset, len(swap.replaced)
        there = yield from extents.extents_from(row.partition_id, first, count)
        yield partitions.write_rows([index_rules.plan_swap(swap, row, there)])
        yield from _drop(row.partition_id, there)
        yield extents.insert(extents.rows_of(row.partition_id, swap.extents))
        segment = (swap.object_id, "committed", "segment", swap.size_bytes, len(swap.extents))
        yield objects.write_committed([segment])

    @query
    def clean_offset(self, topic_id: UUID, partition: int) -> Operation[int]:
        """Return the offset below which no key has two records, or 0 if it is unknown."""
        found = yield partitions.clean_offset(topic_id, partition)
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
        row = yield from partitions.lock_one(key)
        there = yield from extents.extents_from(row.partition_id, offset - 1, 1)
        index_rules.check_newest(key, offset, newest, there)
        yield partitions.note_clean(row.partition_id, offset)

    @operation()
    def forget_partitions(self, *, limit: int) -> Operation[int]:
        """Delete up to `limit` rows of partitions of deleted topics; return their number."""
        dropped = 0
        while dropped < limit:
            partition_id = yield partitions.forgotten()
            if partition_id is None:
                break
            dropped += yield from _forget(partition_id, limit - dropped)
        return dropped

    @operation()
    def forget_producers(self, *, idle_ms: int, limit: int) -> Operation[int]:
        """Delete up to `limit` producers that have been idle for `idle_ms`; return their number."""
        forgotten: int = yield partitions.drop_idle_producers(idle_ms, limit)
        return forgotten


def _find(
    images: Images, requests: Sequence[FindRequest], newest: StampedImage | None = None
) -> Operation[list[Found] | None]:
    answers: list[Found] = []
    for request, rows in zip(requests, (yield _scan(requests, _FIRST)), strict=True):
        first = next(rows, None)
        newest = newest or images.known(first and extents.stamp_of(first))
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
    return extents.find([request[:3] for request in requests], limit)


def _found(request: FindRequest, first: Any, rows: Iterator[Any], topic_of: TopicOf) -> Found:
    row = extents.partition_of(first)
    answer = index_rules.found_without_extents(request, topic_of, row)
    if answer is None:
        there = chain((first,), rows) if extents.has_extent(first) else ()
        answer = index_rules.found(request, row, map(extents.extent_of, there))
    return answer


def _enough(answer: Found, request: FindRequest) -> bool:
    first, *rest = answer.extents
    size_bytes = index_rules.bytes_from(first, request.offset)
    return size_bytes + sum([extent.size_bytes for extent in rest]) >= request.max_bytes


def _watermarks(keys: Sequence[PartitionKey]) -> Operation[list[Watermarks]]:
    found = yield from partitions.read(set(keys))
    return [found.get(key, EMPTY).watermarks for key in keys]


def _forget(partition_id: int, limit: int) -> Operation[int]:
    """Delete up to `limit` rows of a partition, its own row last; return their number."""
    gone = yield from extents.extents_from(partition_id, 0, limit)
    yield from _drop(partition_id, gone)
    dropped: int = len(gone)
    for statement in (partitions.drop_producers, aborted.drop):
        dropped += yield statement(partition_id, limit - dropped)
    if dropped < limit:
        dropped += yield partitions.drop_row(partition_id)
    return dropped


def _drop(partition_id: int, gone: Sequence[Extent]) -> Operation[None]:
    yield from extents.drop(partition_id, gone)
    yield objects.release(index_rules.references(gone).items())
