"""Operations on tiered storage.

Objects are leased, committed, released and swept as those of diskless topics (`batch_index`): an
object's row is PENDING until its segment is committed, and then has one reference. The commit of a
marked object is rejected, and a released one is deleted after its grace.

Locks are taken in this order: topics (shared), a partition of tiers, objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from penstock.control.batch_index import objects
from penstock.control.batch_index.rules import segment_key
from penstock.control.batch_index.values import ObjectLease, PartitionKey
from penstock.control.drivers.statements import Again, Operation, uuid_of
from penstock.control.errors import NotTiered, ObjectLeaseLost, StaleEpoch, UnknownTopic
from penstock.control.limits import TIER_SEGMENTS_PER_CALL_MAX
from penstock.control.metadata.images import Images
from penstock.control.tiers import rules, statements
from penstock.control.tiers.values import (
    SUFFIXES,
    TierBounds,
    TierLease,
    TiersDropped,
    TierSegment,
)


def lease(
    nonce: int, key: PartitionKey, base_offset: int, leader_epoch: int
) -> Operation[TierLease]:
    last = yield objects.allocate_ids(len(SUFFIXES))
    first = last - len(SUFFIXES) + 1
    stem = segment_key(first, nonce, *key, base_offset, leader_epoch, suffix="")
    yield objects.write_leases(
        [ObjectLease(first + place, stem + suffix) for place, suffix in enumerate(SUFFIXES)]
    )
    return TierLease(first, stem)


def commit(
    images: Images,
    key: PartitionKey,
    segment: TierSegment,
    *,
    log_start_offset: int,
    leader_epoch: int,
) -> Operation[TierBounds]:
    yield from _check_leader(images, key, leader_epoch, tiered=True)
    found = yield statements.lock(*key)
    bounds = TierBounds(0, 0, 0, 0)
    bounds = bounds if found is None else statements.bounds_of(found)
    if not bounds.alive:
        bounds = bounds._replace(log_start_offset=max(bounds.log_start_offset, log_start_offset))
    there = yield statements.segments_from(*key, segment.base_offset, 2)
    planned = rules.plan_commit(key, bounds, segment, [statements.segment_of(row) for row in there])
    if planned is None:
        return bounds
    leased = yield from objects.lock([object_id for object_id, _ in segment.objects()])
    for object_id, _ in segment.objects():
        if object_id not in leased or leased[object_id].state != "pending":
            raise ObjectLeaseLost(object_id)
    write = statements.add if found is None else statements.write
    if not (yield write(*key, *statements.values_of(planned))):
        raise Again(f"partition {key[1]} of topic {key[0]} was tiered at the same time")
    yield statements.insert(*key, *segment)
    yield objects.write_committed(
        [
            (object_id, "committed" if size else "deleting", "segment", size, int(size > 0))
            for object_id, size in segment.objects()
        ]
    )
    return planned


def bounds(keys: Sequence[PartitionKey]) -> Operation[dict[PartitionKey, TierBounds]]:
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


def segments(key: PartitionKey, offset: int, limit: int) -> Operation[list[TierSegment]]:
    found = yield statements.segments_from(*key, offset, limit)
    return [
        segment for segment in map(statements.segment_of, found) if segment.next_offset > offset
    ]


def aborted(key: PartitionKey, offset: int, limit: int) -> Operation[list[TierSegment]]:
    return list(map(statements.segment_of, (yield statements.aborted_from(*key, offset, limit))))


def at_time(
    key: PartitionKey, start_offset: int, timestamp: int | None
) -> Operation[TierSegment | None]:
    if timestamp is None:
        found = yield statements.newest(*key, start_offset)
    else:
        found = yield statements.at_time(*key, start_offset, timestamp)
    return None if found is None else statements.segment_of(found)


def retain(
    images: Images,
    key: PartitionKey,
    *,
    leader_epoch: int,
    start_offset: int,
    before_timestamp: int | None,
    max_bytes: int | None,
    limit: int,
) -> Operation[TiersDropped | None]:
    yield from _check_leader(images, key, leader_epoch)
    found = yield statements.lock(*key)
    if found is None:
        return None
    first = yield from segments(key, 0, limit + 1)
    plan = rules.plan_retention(
        statements.bounds_of(found),
        first,
        start_offset=start_offset,
        before_timestamp=before_timestamp,
        max_bytes=max_bytes,
        limit=limit,
    )
    return (yield from _drop(key, plan))


def cut(
    images: Images, key: PartitionKey, *, leader_epoch: int, offset: int
) -> Operation[TiersDropped | None]:
    yield from _check_leader(images, key, leader_epoch)
    found = yield statements.lock(*key)
    if found is None:
        return None
    dropped = TiersDropped(statements.bounds_of(found), 0, 0, more=False)
    for _ in range(dropped.bounds.segments // TIER_SEGMENTS_PER_CALL_MAX + 1):
        behind = yield from segments(key, offset, TIER_SEGMENTS_PER_CALL_MAX)
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


def forget(images: Images, limit: int) -> Operation[int]:
    known = yield from images.current()
    dropped = 0
    for topic_id in [uuid_of(row[0]) for row in (yield statements.topics())]:
        topic = known.topic(topic_id)
        if topic is None or topic.configs.get(rules.REMOTE_CONFIG) != "true":
            dropped += yield from _forget_topic(topic_id, limit - dropped)
    return dropped


def _forget_topic(topic_id: UUID, limit: int) -> Operation[int]:
    dropped = 0
    while dropped < limit and (found := (yield statements.first_of(topic_id))) is not None:
        key = (topic_id, int(found[0]))
        gone = yield from segments(key, 0, limit - dropped)
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


def _check_leader(
    images: Images, key: PartitionKey, leader_epoch: int, *, tiered: bool = False
) -> Operation[None]:
    known = yield from images.current()
    topic, partition = known.topic(key[0]), known.partition(key)
    if topic is None or partition is None:
        raise UnknownTopic(key[0])
    if tiered and topic.configs.get(rules.REMOTE_CONFIG) != "true":
        raise NotTiered(f"topic {topic.name!r} has no {rules.REMOTE_CONFIG} = true")
    if partition.leader_epoch != leader_epoch:
        raise StaleEpoch(*key, leader_epoch, f"the leader epoch is {partition.leader_epoch}")


def _drop(key: PartitionKey, plan: rules.Drop) -> Operation[TiersDropped]:
    gone = plan.segments
    yield statements.write(*key, *statements.values_of(plan.bounds))
    if gone:
        yield statements.delete_segments(*key, gone[0].base_offset, gone[-1].base_offset)
        ids = [(object_id, 1) for segment in gone for object_id, size in segment.objects() if size]
        yield objects.release(ids)
    size_bytes = sum(segment.size_bytes for segment in gone)
    return TiersDropped(plan.bounds, len(gone), size_bytes, plan.more)
