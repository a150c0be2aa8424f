"""Methods of the control plane for tiered storage: the archived segments of partitions.

Every change is one transaction and a compare-and-set by the partition's leader. The leader names
its leader epoch, and is rejected if the newest image has another one. All methods may be repeated.

Objects are leased, committed, released and swept like those of diskless topics (`commits.py`). An
object's row is PENDING until its segment is committed, and then has one reference. If the sweeper
has marked an object, the commit of its segment is rejected. An object without references is
deleted after a grace period.

Locks are taken in this order: topics (shared), a tiered partition, objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.drivers.statements import (
    Again,
    Each,
    Lock,
    Operation,
    changed,
    operation,
    query,
    row,
    rows,
    uuid_of,
)
from penstock.control.operations import diskless_tables
from penstock.control.operations.images import OverImages
from penstock.control.rules import tiers
from penstock.control.rules.diskless import segment_key
from penstock.control.values.diskless import ObjectLease, PartitionKey
from penstock.control.values.errors import NotTiered, ObjectLeaseLost, StaleEpoch, UnknownTopic
from penstock.control.values.tiers import SUFFIXES, TierBounds, TierLease, TiersDropped, TierSegment

_MARKS: Final = "p.log_start_offset, p.tiered_offset, p.size_bytes, p.segments"
_SEGMENT: Final = (
    "s.base_offset, s.next_offset, s.leader_epoch, s.max_timestamp, s.object_id, s.stem,"
    " s.size_bytes, s.index_bytes, s.time_index_bytes, s.aborted_bytes, s.checksum"
)
_ABORTED: Final = "max(CASE WHEN s.aborted_bytes > 0 THEN s.base_offset ELSE -1 END)"
_OF_KEY: Final = "topic_id = $1 AND number = $2"
_KEYS: Final = "unnest($1::uuid[], $2::int[], $3::int[]) AS k (topic_id, number, place)"

read_bounds = Each(
    "rows",
    f"SELECT k.place, {_MARKS} FROM {_KEYS}"  # noqa: S608  (fixed, as all)
    " JOIN tiered_partitions p ON p.topic_id = k.topic_id AND p.number = k.number",
    sqlite=f"SELECT $3, {_MARKS} FROM tiered_partitions p WHERE {_OF_KEY}",  # noqa: S608
)
"""Takes rows of (topic id, partition, number); returns (number, bounds)."""
read_epochs = Each(
    "rows",
    f"SELECT k.place, s.leader_epoch, min(s.base_offset), {_ABORTED} FROM {_KEYS}"  # noqa: S608
    " JOIN tiered_segments s ON s.topic_id = k.topic_id AND s.number = k.number"
    " GROUP BY k.place, s.leader_epoch",
    sqlite=f"SELECT $3, s.leader_epoch, min(s.base_offset), {_ABORTED} FROM tiered_segments s"  # noqa: S608
    f" WHERE {_OF_KEY} GROUP BY s.leader_epoch",
)
"""Takes the same rows; returns (number, epoch, first offset, aborted offset) of each epoch.

The aborted offset is the base offset of the last segment with markers of aborted transactions, or
-1.
"""
lock = row(f"SELECT {_MARKS} FROM tiered_partitions p WHERE {_OF_KEY} FOR UPDATE")  # noqa: S608
add = changed(
    "INSERT INTO tiered_partitions VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING"
)
write_row = changed(
    "UPDATE tiered_partitions SET log_start_offset = $3, tiered_offset = $4, size_bytes = $5,"  # noqa: S608
    f" segments = $6 WHERE {_OF_KEY}"
)
"""`add` and `write` take (topic id, partition, *values_of)."""
delete = changed(f"DELETE FROM tiered_partitions WHERE {_OF_KEY}")  # noqa: S608
first_of = row(
    f"SELECT p.number, {_MARKS} FROM tiered_partitions p WHERE p.topic_id = $1"  # noqa: S608
    " ORDER BY p.number LIMIT 1 FOR UPDATE SKIP LOCKED"
)
topics = rows("SELECT DISTINCT topic_id FROM tiered_partitions")

segments_from = rows(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY}"  # noqa: S608
    " AND s.base_offset >= coalesce((SELECT max(o.base_offset) FROM tiered_segments o"
    " WHERE o.topic_id = $1 AND o.number = $2 AND o.base_offset <= $3), 0)"
    " ORDER BY s.base_offset LIMIT $4"
)
"""Returns the segment that holds an offset and those after it.

If no segment holds the offset, the last one before it comes first.
"""
aborted_from = rows(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY}"  # noqa: S608
    " AND s.next_offset > $3 AND s.aborted_bytes > 0 ORDER BY s.base_offset LIMIT $4"
)
at_time = row(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY} AND s.next_offset > $3"  # noqa: S608
    " AND s.max_timestamp >= $4 ORDER BY s.base_offset LIMIT 1"
)
newest = row(
    f"SELECT {_SEGMENT} FROM tiered_segments s WHERE {_OF_KEY} AND s.next_offset > $3"  # noqa: S608
    " ORDER BY s.max_timestamp DESC, s.base_offset LIMIT 1"
)
insert = changed(
    "INSERT INTO tiered_segments VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
)
shorten = changed(
    f"UPDATE tiered_segments SET next_offset = $4 WHERE {_OF_KEY} AND base_offset = $3"  # noqa: S608
)
delete_segments = changed(
    f"DELETE FROM tiered_segments WHERE {_OF_KEY} AND base_offset BETWEEN $3 AND $4"  # noqa: S608
)


def bounds_of(found: Any) -> TierBounds:
    return TierBounds(*found[-4:])


def values_of(bounds: TierBounds) -> tuple[int, int, int, int]:
    return bounds[:4]


def segment_of(found: Any) -> TierSegment:
    return TierSegment(*found)


TIER_SEGMENTS_PER_CALL_MAX: Final = 1_000
"""Archived segments that one call returns or drops."""


class TieredPartitions(OverImages):
    """Methods of `ControlPlane` for tiered partitions.

    A partition's *tiers* are its archived segments.

    Changes raise UnknownTopic, and StaleEpoch if the image has another leader epoch than the
    caller.
    """

    _randomness: Randomness

    @operation()
    def lease_tier(
        self, key: PartitionKey, *, base_offset: int, leader_epoch: int
    ) -> Operation[TierLease]:
        """Reserve keys for the objects of a segment, and add PENDING rows.

        Keys are never reused.
        """
        nonce = self._randomness.bits(32)
        last = yield diskless_tables.allocate_ids(len(SUFFIXES))
        first = last - len(SUFFIXES) + 1
        stem = segment_key(first, nonce, *key, base_offset, leader_epoch, suffix="")
        yield diskless_tables.write_leases(
            [ObjectLease(first + place, stem + suffix) for place, suffix in enumerate(SUFFIXES)]
        )
        return TierLease(first, stem)

    @operation(lock=Lock.TOPICS)
    def commit_tier(
        self, key: PartitionKey, segment: TierSegment, *, log_start_offset: int, leader_epoch: int
    ) -> Operation[TierBounds]:
        """Add a segment whose objects are in the store; return the new bounds, without epochs.

        `log_start_offset` is the partition's log start. If the archive has no readable record, it
        is stored, unless the stored log start is higher.

        Raises:
            StaleTiers: the segment does not follow the existing segments.
            ObjectLeaseLost: the sweeper marked an object; write the segment again under other keys.
            NotTiered: the topic does not have `remote.storage.enable`.
        """
        yield from self._check_leader(key, leader_epoch, tiered=True)
        found = yield lock(*key)
        bounds = TierBounds(0, 0, 0, 0)
        bounds = bounds if found is None else bounds_of(found)
        if not bounds.alive:
            bounds = bounds._replace(
                log_start_offset=max(bounds.log_start_offset, log_start_offset)
            )
        there = yield segments_from(*key, segment.base_offset, 2)
        planned = tiers.plan_commit(key, bounds, segment, [segment_of(stored) for stored in there])
        if planned is None:
            return bounds
        leased = yield from diskless_tables.lock([object_id for object_id, _ in segment.objects()])
        for object_id, _ in segment.objects():
            if object_id not in leased or leased[object_id].state != "pending":
                raise ObjectLeaseLost(object_id)
        write = add if found is None else write_row
        if not (yield write(*key, *values_of(planned))):
            raise Again(f"another broker tiered partition {key[1]} of topic {key[0]} first")
        yield insert(*key, *segment)
        yield diskless_tables.write_committed(
            [
                (object_id, "committed" if size else "deleting", "segment", size, int(size > 0))
                for object_id, size in segment.objects()
            ]
        )
        return planned

    @operation(lock=Lock.SNAPSHOT)
    def tier_bounds(
        self, keys: Sequence[PartitionKey]
    ) -> Operation[Mapping[PartitionKey, TierBounds]]:
        """Return the bounds of the tiers of those partitions that have any."""
        asked = [(*key, place) for place, key in enumerate(keys)]
        found = {stored[0]: bounds_of(stored) for stored in (yield read_bounds(asked))}
        epochs: dict[int, list[tuple[int, int]]] = {}
        aborted: dict[int, int] = {}
        for place, epoch, start, last in (yield read_epochs(asked)):
            epochs.setdefault(place, []).append((epoch, start))
            aborted[place] = max(aborted.get(place, -1), last)
        return {
            keys[place]: found_bounds._replace(
                epochs=tuple(sorted(epochs.get(place, ()))), aborted_offset=aborted.get(place, -1)
            )
            for place, found_bounds in found.items()
        }

    @query
    def tier_segments(
        self, key: PartitionKey, offset: int, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX
    ) -> Operation[list[TierSegment]]:
        """Return up to `limit` segments, from the segment that holds `offset` on."""
        return _segments(key, offset, limit)

    @query
    def aborted_tiers(
        self, key: PartitionKey, offset: int, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX
    ) -> Operation[list[TierSegment]]:
        """Return up to `limit` segments above `offset` with markers of aborted transactions."""
        found = yield aborted_from(*key, offset, limit)
        return list(map(segment_of, found))

    @query
    def tier_at_time(
        self, key: PartitionKey, *, start_offset: int, timestamp: int | None
    ) -> Operation[TierSegment | None]:
        """Return the first segment above `start_offset` with a record at or after `timestamp`.

        `timestamp` is in milliseconds; None asks for the segment with the highest timestamp.
        """
        if timestamp is None:
            found = yield newest(*key, start_offset)
        else:
            found = yield at_time(*key, start_offset, timestamp)
        return None if found is None else segment_of(found)

    @operation(lock=Lock.TOPICS)
    def retain_tiers(
        self,
        key: PartitionKey,
        *,
        leader_epoch: int,
        start_offset: int = 0,
        before_timestamp: int | None = None,
        max_bytes: int | None = None,
        limit: int = TIER_SEGMENTS_PER_CALL_MAX,
    ) -> Operation[TiersDropped | None]:
        """Apply retention: drop segments from the start of a partition. Returns None without tiers.

        Drops up to `limit` segments that end at or below `start_offset`, are older than
        `before_timestamp` (milliseconds), or exceed `max_bytes`. Raises the partition's log start
        to `start_offset` if that is higher.
        """
        yield from self._check_leader(key, leader_epoch)
        found = yield lock(*key)
        if found is None:
            return None
        first = yield from _segments(key, 0, limit + 1)
        plan = tiers.plan_retention(
            bounds_of(found),
            first,
            start_offset=start_offset,
            before_timestamp=before_timestamp,
            max_bytes=max_bytes,
            limit=limit,
        )
        return (yield from _drop(key, plan))

    @operation(lock=Lock.TOPICS)
    def cut_tiers(
        self, key: PartitionKey, *, leader_epoch: int, offset: int
    ) -> Operation[TiersDropped | None]:
        """Truncate the tiers at an offset after an unclean election. Returns None without tiers."""
        yield from self._check_leader(key, leader_epoch)
        found = yield lock(*key)
        if found is None:
            return None
        dropped = TiersDropped(bounds_of(found), 0, 0, more=False)
        for _ in range(dropped.bounds.segments // TIER_SEGMENTS_PER_CALL_MAX + 1):
            behind = yield from _segments(key, offset, TIER_SEGMENTS_PER_CALL_MAX)
            plan = tiers.plan_cut(dropped.bounds, behind, offset)
            if behind and behind[0].base_offset < offset:
                yield shorten(*key, behind[0].base_offset, offset)
            last = yield from _drop(key, plan)
            dropped = TiersDropped(
                last.bounds,
                dropped.segments + last.segments,
                dropped.size_bytes + last.size_bytes,
                more=False,
            )
        return dropped

    @operation(lock=Lock.TOPICS)
    def forget_tiers(self, *, limit: int = TIER_SEGMENTS_PER_CALL_MAX) -> Operation[int]:
        """Drop up to `limit` rows of topics that are deleted or not tiered; return their number."""
        known = yield from self._images.current()
        dropped = 0
        for topic_id in [uuid_of(stored[0]) for stored in (yield topics())]:
            topic = known.topic(topic_id)
            if topic is None or topic.configs.get(tiers.REMOTE_CONFIG) != "true":
                dropped += yield from _forget_topic(topic_id, limit - dropped)
        return dropped

    def _check_leader(
        self, key: PartitionKey, leader_epoch: int, *, tiered: bool = False
    ) -> Operation[None]:
        known = yield from self._images.current()
        topic, partition = known.topic(key[0]), known.partition(key)
        if topic is None or partition is None:
            raise UnknownTopic(key[0])
        if tiered and topic.configs.get(tiers.REMOTE_CONFIG) != "true":
            raise NotTiered(f"topic {topic.name!r} has no {tiers.REMOTE_CONFIG} = true")
        if partition.leader_epoch != leader_epoch:
            raise StaleEpoch(*key, leader_epoch, f"the leader epoch is {partition.leader_epoch}")


def _segments(key: PartitionKey, offset: int, limit: int) -> Operation[list[TierSegment]]:
    found = yield segments_from(*key, offset, limit)
    return [segment for segment in map(segment_of, found) if segment.next_offset > offset]


def _forget_topic(topic_id: UUID, limit: int) -> Operation[int]:
    dropped = 0
    while dropped < limit and (found := (yield first_of(topic_id))) is not None:
        key = (topic_id, int(found[0]))
        gone = yield from _segments(key, 0, limit - dropped)
        if gone:
            plan = tiers.Drop(gone, tiers.plan_retention(
                bounds_of(found), gone, start_offset=gone[-1].next_offset,
                before_timestamp=None, max_bytes=None, limit=len(gone),
            ).bounds, more=True)  # fmt: skip
            yield from _drop(key, plan)
            dropped += len(gone)
        else:
            dropped += yield delete(*key)
    return dropped


def _drop(key: PartitionKey, plan: tiers.Drop) -> Operation[TiersDropped]:
    gone = plan.segments
    yield write_row(*key, *values_of(plan.bounds))
    if gone:
        yield delete_segments(*key, gone[0].base_offset, gone[-1].base_offset)
        ids = [(object_id, 1) for segment in gone for object_id, size in segment.objects() if size]
        yield diskless_tables.release(ids)
    size_bytes = sum(segment.size_bytes for segment in gone)
    return TiersDropped(plan.bounds, len(gone), size_bytes, plan.more)
