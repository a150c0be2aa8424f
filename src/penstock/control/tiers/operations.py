"""Methods of the control plane for tiered storage: the archived segments of partitions.

Every change is one transaction and a compare-and-set by the partition's leader. The leader names
its leader epoch, and is rejected if the newest image has another one. All methods may be repeated.

Objects are leased, committed, released and swept like those of diskless topics (`batch_index`). An
object's row is PENDING until its segment is committed, and then has one reference. If the sweeper
has marked an object, the commit of its segment is rejected. An object without references is deleted
after a grace period.

Locks are taken in this order: topics (shared), a tiered partition, objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.batch_index import objects
from penstock.control.batch_index.rules import segment_key
from penstock.control.batch_index.values import ObjectLease, PartitionKey
from penstock.control.drivers.statements import Again, Lock, Operation, operation, query, uuid_of
from penstock.control.errors import NotTiered, ObjectLeaseLost, StaleEpoch, UnknownTopic
from penstock.control.metadata.images import OverImages
from penstock.control.tiers import rules, statements
from penstock.control.tiers.values import (
    SUFFIXES,
    TierBounds,
    TierLease,
    TiersDropped,
    TierSegment,
)

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
        last = yield objects.allocate_ids(len(SUFFIXES))
        first = last - len(SUFFIXES) + 1
        stem = segment_key(first, nonce, *key, base_offset, leader_epoch, suffix="")
        yield objects.write_leases(
            [ObjectLease(first + place, stem + suffix) for place, suffix in enumerate(SUFFIXES)]
        )
        return TierLease(first, stem)

    @operation(lock=Lock.TOPICS)
    def commit_tier(
        self, key: PartitionKey, segment: TierSegment, *, log_start_offset: int, leader_epoch: int
    ) -> Operation[TierBounds]:
        """Add a segment whose objects are in the store; return the new bounds, without epochs.

        `log_start_offset` is the partition's log start. It is used if no archived record is
        readable.

        Raises:
            StaleTiers: the segment does not follow the existing segments.
            ObjectLeaseLost: the sweeper marked an object; write the segment again under other keys.
            NotTiered: the topic does not have `remote.storage.enable`.
        """
        yield from self._check_leader(key, leader_epoch, tiered=True)
        found = yield statements.lock(*key)
        bounds = TierBounds(0, 0, 0, 0)
        bounds = bounds if found is None else statements.bounds_of(found)
        if not bounds.alive:
            bounds = bounds._replace(
                log_start_offset=max(bounds.log_start_offset, log_start_offset)
            )
        there = yield statements.segments_from(*key, segment.base_offset, 2)
        planned = rules.plan_commit(
            key, bounds, segment, [statements.segment_of(row) for row in there]
        )
        if planned is None:
            return bounds
        leased = yield from objects.lock([object_id for object_id, _ in segment.objects()])
        for object_id, _ in segment.objects():
            if object_id not in leased or leased[object_id].state != "pending":
                raise ObjectLeaseLost(object_id)
        write = statements.add if found is None else statements.write
        if not (yield write(*key, *statements.values_of(planned))):
            raise Again(f"another broker tiered partition {key[1]} of topic {key[0]} first")
        yield statements.insert(*key, *segment)
        yield objects.write_committed(
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
        found = {row[0]: statements.bounds_of(row) for row in (yield statements.read_bounds(asked))}
        epochs: dict[int, list[tuple[int, int]]] = {}
        aborted: dict[int, int] = {}
        for place, epoch, start, last in (yield statements.read_epochs(asked)):
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
        found = yield statements.aborted_from(*key, offset, limit)
        return list(map(statements.segment_of, found))

    @query
    def tier_at_time(
        self, key: PartitionKey, *, start_offset: int, timestamp: int | None
    ) -> Operation[TierSegment | None]:
        """Return the first segment above `start_offset` with a record at or after `timestamp`.

        `timestamp` is in milliseconds; None asks for the segment with the highest timestamp.
        """
        if timestamp is None:
            found = yield statements.newest(*key, start_offset)
        else:
            found = yield statements.at_time(*key, start_offset, timestamp)
        return None if found is None else statements.segment_of(found)

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
        found = yield statements.lock(*key)
        if found is None:
            return None
        first = yield from _segments(key, 0, limit + 1)
        plan = rules.plan_retention(
            statements.bounds_of(found),
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
        found = yield statements.lock(*key)
        if found is None:
            return None
        dropped = TiersDropped(statements.bounds_of(found), 0, 0, more=False)
        for _ in range(dropped.bounds.segments // TIER_SEGMENTS_PER_CALL_MAX + 1):
            behind = yield from _segments(key, offset, TIER_SEGMENTS_PER_CALL_MAX)
            plan = rules.plan_cut(dropped.bounds, behind, offset)
            if behind and behind[0].base_offset < offset:
                yield statements.shorten(*key, behind[0].base_offset, offset)
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
        for topic_id in [uuid_of(row[0]) for row in (yield statements.topics())]:
            topic = known.topic(topic_id)
            if topic is None or topic.configs.get(rules.REMOTE_CONFIG) != "true":
                dropped += yield from _forget_topic(topic_id, limit - dropped)
        return dropped

    def _check_leader(
        self, key: PartitionKey, leader_epoch: int, *, tiered: bool = False
    ) -> Operation[None]:
        known = yield from self._images.current()
        topic, partition = known.topic(key[0]), known.partition(key)
        if topic is None or partition is None:
            raise UnknownTopic(key[0])
        if tiered and topic.configs.get(rules.REMOTE_CONFIG) != "true":
            raise NotTiered(f"topic {topic.name!r} has no {rules.REMOTE_CONFIG} = true")
        if partition.leader_epoch != leader_epoch:
            raise StaleEpoch(*key, leader_epoch, f"the leader epoch is {partition.leader_epoch}")


def _segments(key: PartitionKey, offset: int, limit: int) -> Operation[list[TierSegment]]:
    found = yield statements.segments_from(*key, offset, limit)
    return [
        segment for segment in map(statements.segment_of, found) if segment.next_offset > offset
    ]


def _forget_topic(topic_id: UUID, limit: int) -> Operation[int]:
    dropped = 0
    while dropped < limit and (found := (yield statements.first_of(topic_id))) is not None:
        key = (topic_id, int(found[0]))
        gone = yield from _segments(key, 0, limit - dropped)
        if gone:
            plan = rules.Drop(gone, rules.plan_retention(
                statements.bounds_of(found), gone, start_offset=gone[-1].next_offset,
                before_timestamp=None, max_bytes=None, limit=len(gone),
            ).bounds, more=True)  # fmt: skip
            yield from _drop(key, plan)
            dropped += len(gone)
        else:
            dropped += yield statements.delete(*key)
    return dropped


def _drop(key: PartitionKey, plan: rules.Drop) -> Operation[TiersDropped]:
    gone = plan.segments
    yield statements.write(*key, *statements.values_of(plan.bounds))
    if gone:
        yield statements.delete_segments(*key, gone[0].base_offset, gone[-1].base_offset)
        ids = [(object_id, 1) for segment in gone for object_id, size in segment.objects() if size]
        yield objects.release(ids)
    size_bytes = sum(segment.size_bytes for segment in gone)
    return TiersDropped(plan.bounds, len(gone), size_bytes, plan.more)
