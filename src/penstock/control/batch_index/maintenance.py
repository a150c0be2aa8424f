"""Operations of background jobs on the batch index: retention, swaps, sweeping, expiry.

Several brokers may run the same job at once: each skips rows that another one has locked. Locks are
taken in the order of `commits.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.control.batch_index import aborted, extents, index_rules, objects, partitions
from penstock.control.batch_index.rules import write_refusal
from penstock.control.batch_index.values import (
    MarkedObject,
    PartitionKey,
    Retained,
    SegmentSwap,
    Watermarks,
)
from penstock.control.drivers.statements import Operation
from penstock.control.errors import NotWritable, ObjectLeaseLost
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS
from penstock.control.metadata.images import Images
from penstock.records.extents import Extent


def delete_records(images: Images, key: PartitionKey, before_offset: int) -> Operation[Watermarks]:
    refused = write_refusal((yield from images.current()).topic(key[0]), *key)
    if refused is not None and refused[0] == NotWritable.code:
        raise NotWritable(refused[1])
    row = yield from partitions.lock_one(key)
    row = row._replace(log_start_offset=index_rules.deletion_start(row, *key, before_offset))
    yield partitions.write_rows([row])
    return row.watermarks


def retain(
    key: PartitionKey, *, before_timestamp: int | None, max_bytes: int | None, limit: int
) -> Operation[Retained]:
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


def forget_partitions(limit: int) -> Operation[int]:
    dropped = 0
    while dropped < limit:
        partition_id = yield partitions.forgotten()
        if partition_id is None:
            break
        dropped += yield from _forget(partition_id, limit - dropped)
    return dropped


def forget_producers(idle_ms: int, limit: int) -> Operation[int]:
    forgotten: int = yield partitions.drop_idle_producers(idle_ms, limit)
    return forgotten


def _forget(partition_id: int, limit: int) -> Operation[int]:
    """Drop up to `limit` rows of a partition, its own row last; return the number dropped."""
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


def swap_extents(swap: SegmentSwap) -> Operation[None]:
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


def note_clean(key: PartitionKey, offset: int, newest: Extent) -> Operation[None]:
    row = yield from partitions.lock_one(key)
    there = yield from extents.extents_from(row.partition_id, offset - 1, 1)
    index_rules.check_newest(key, offset, newest, there)
    yield partitions.note_clean(row.partition_id, offset)


def mark_for_deletion(
    *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
) -> Operation[list[MarkedObject]]:
    left = limit - len((yield from objects.deleting(limit)))
    left -= yield objects.mark_pending(pending_grace_ms, left)
    yield objects.mark_unreferenced(unreferenced_grace_ms, left)
    yield objects.drop_answers(COMMIT_ANSWER_KEPT_MS, limit)
    return (yield from objects.deleting(limit))


def forget_objects(object_ids: Collection[int]) -> Operation[None]:
    ids = [(object_id,) for object_id in object_ids]
    yield objects.forget(ids)
    yield objects.forget_answers(ids)


def renew_leases(object_ids: Collection[int]) -> Operation[None]:
    found = yield from objects.lock(object_ids)
    for object_id in sorted(object_ids):
        if object_id not in found or found[object_id].state != "pending":
            raise ObjectLeaseLost(object_id)
    yield objects.renew_leases([(object_id,) for object_id in object_ids])
