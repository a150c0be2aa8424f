"""Rules of the batch index for lookups, retention and swaps of segments: pure functions.

All implementations of the control plane share them.

Retention drops whole extents from the start of a partition, while one of these is true of the first
remaining extent: it is below the log start; it is too old; the partition stays at or above the
allowed size without it. An extent without timestamps is as old as the next extent that has some. An
extent above the last stable offset is kept, because a transaction was open when it was committed.

Source: Kafka's `UnifiedLog.deleteOldSegments` (its order of rules and their bounds).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.base.errors import BugError
from penstock.control.batch_index.rules import (
    LAYOUT,
    PartitionRow,
    TopicOf,
    adjoin,
    layout_totals,
    refusal,
)
from penstock.control.batch_index.values import (
    FindRequest,
    Found,
    ObjectState,
    PartitionKey,
    Retained,
    SegmentSwap,
)
from penstock.control.errors import InvalidCommit, ObjectLeaseLost, OffsetBeyondEnd, StaleExtents
from penstock.control.limits import FIND_EXTENTS_MAX
from penstock.records.extents import Extent


def found_without_extents(
    request: FindRequest, topic_of: TopicOf, row: PartitionRow
) -> Found | None:
    """Return the result of a lookup that needs no extents, or None.

    Such a result is an error, or is for an offset at the high watermark.
    """
    topic_id, partition, offset, _ = request
    refused = refusal(topic_of(topic_id), topic_id, partition)
    if refused is not None:
        return Found(None, error=refused[0])
    watermarks = row.watermarks
    if not watermarks.log_start_offset <= offset <= watermarks.high_watermark:
        return Found(watermarks, error="offset_out_of_range")
    return Found(watermarks) if offset == watermarks.high_watermark else None


def found(request: FindRequest, row: PartitionRow, candidates: Iterable[Extent]) -> Found:
    """Return the result of a lookup, with the extents from the requested offset on.

    Consumes only as many `candidates` as `request.max_bytes` needs.
    """
    taken: list[Extent] = []
    size_bytes = 0
    for extent in candidates:
        if taken:
            size_bytes += extent.size_bytes
            if size_bytes > request.max_bytes or extent.base_offset != taken[-1].next_offset:
                break
        else:
            size_bytes = bytes_from(extent, request.offset)
        taken.append(extent)
        if size_bytes >= request.max_bytes or len(taken) == FIND_EXTENTS_MAX:
            break
    if not taken or not taken[0].base_offset <= request.offset < taken[0].next_offset:
        raise BugError(
            f"partition {request.partition} of topic {request.topic_id}: no extent has offset"
            f" {request.offset} of [{row.log_start_offset}, {row.high_watermark})"
        )
    return Found(row.watermarks, tuple(taken))


def bytes_from(extent: Extent, offset: int) -> int:
    """Return the bytes of an extent from the batch that holds `offset` to the extent's end."""
    left, following = extent.size_bytes, extent.base_offset
    if offset <= following:
        return left
    for size_bytes, offsets in LAYOUT.iter_unpack(extent.layout):
        following += offsets
        if following > offset:
            break
        left -= size_bytes
    return left


def deletion_start(row: PartitionRow, topic_id: UUID, partition: int, before_offset: int) -> int:
    end = row.high_watermark
    if not -1 <= before_offset <= end:
        raise OffsetBeyondEnd(topic_id, partition, before_offset, end)
    return max(row.log_start_offset, end if before_offset == -1 else before_offset)


class RetentionPlan(NamedTuple):
    row: PartitionRow
    dropped: tuple[Extent, ...]
    more: bool

    @property
    def retained(self) -> Retained:
        size_bytes = sum([extent.size_bytes for extent in self.dropped])
        return Retained(self.row.watermarks, len(self.dropped), size_bytes, self.more)


def plan_retention(
    row: PartitionRow,
    first: Sequence[Extent],
    *,
    before_timestamp: int | None,
    max_bytes: int | None,
    limit: int,
) -> RetentionPlan:
    """Return the extents that retention drops from a partition, and the partition's new row.

    `first` has the partition's first `limit + 1` extents, by offset; at most `limit` are dropped.
    """
    count, left_bytes, start = 0, row.size_bytes, row.log_start_offset
    stable = row.watermarks.last_stable_offset
    old = _old(first, before_timestamp)
    for place, extent in enumerate(first):
        after_bytes = left_bytes - extent.size_bytes
        if extent.next_offset > stable or not (
            extent.next_offset <= start
            or place < old
            or (max_bytes is not None and after_bytes >= max_bytes)
        ):
            break
        count, left_bytes = count + 1, after_bytes
    dropped = tuple(first[: min(count, limit)])
    return RetentionPlan(without(row, dropped), dropped, count > limit)


def _old(first: Sequence[Extent], before_timestamp: int | None) -> int:
    if before_timestamp is None:
        return 0
    old = 0
    for place, extent in enumerate(first, 1):
        if extent.max_timestamp >= before_timestamp:
            break
        if extent.max_timestamp >= 0:
            old = place
    return old


def without(row: PartitionRow, dropped: Sequence[Extent]) -> PartitionRow:
    if not dropped:
        return row
    kept = _replaced(row, dropped, ())
    return kept._replace(log_start_offset=max(row.log_start_offset, dropped[-1].next_offset))


def _replaced(row: PartitionRow, gone: Sequence[Extent], sealed: Sequence[Extent]) -> PartitionRow:
    """Return a partition's row after the extents `sealed`, or none, replaced the extents `gone`."""
    wal_bytes = [extent.size_bytes for extent in gone if extent.kind == "wal"]
    change_bytes = sum([extent.size_bytes for extent in sealed]) - sum(
        [extent.size_bytes for extent in gone]
    )
    return row._replace(
        size_bytes=row.size_bytes + change_bytes,
        wal_extents=row.wal_extents - len(wal_bytes),
        wal_bytes=row.wal_bytes - sum(wal_bytes),
    )


def references(extents: Iterable[Extent]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for extent in extents:
        counts[extent.object_id] = counts.get(extent.object_id, 0) + 1
    return counts


def is_swapped(swap: SegmentSwap, state: ObjectState) -> bool:
    """Return whether a swap has been committed before.

    Raises:
        InvalidCommit: the new extents do not adjoin, or do not cover the replaced offsets.
        ObjectLeaseLost: the sweeper marked the object, or its row is gone.
    """
    _check_swap(swap)
    if state == "pending":
        return False
    if state == "committed":
        return True
    raise ObjectLeaseLost(swap.object_id)


def _check_swap(swap: SegmentSwap) -> None:
    replaced, extents = swap.replaced, swap.extents
    reason = None
    if not replaced or not extents:
        reason = "the swap names no extents to replace, or no new extents"
    elif not adjoin(replaced) or not adjoin(extents):
        reason = "the extents do not adjoin"
    elif _offsets(replaced) != _offsets(extents):
        reason = f"offsets {_offsets(extents)} cannot replace offsets {_offsets(replaced)}"
    else:
        reason = next(filter(None, [_flaw(swap, extent) for extent in extents]), None)
    if reason is not None:
        raise InvalidCommit(f"object {swap.object_id}: {reason}")


def _flaw(swap: SegmentSwap, extent: Extent) -> str | None:
    if extent.object_id != swap.object_id or extent.kind != "segment":
        return f"an extent belongs to object {extent.object_id} of kind {extent.kind!r}"
    if extent.byte_offset < 0 or extent.byte_offset + extent.size_bytes > swap.size_bytes:
        return f"an extent is not within the object's {swap.size_bytes} bytes"
    if layout_totals(extent.layout) != (
        extent.size_bytes,
        extent.next_offset - extent.base_offset,
    ):
        return f"the layout of the extent at offset {extent.base_offset} contradicts its size"
    return None


def _offsets(extents: Sequence[Extent]) -> tuple[int, int]:
    return extents[0].base_offset, extents[-1].next_offset


def plan_swap(swap: SegmentSwap, row: PartitionRow, there: Sequence[Extent]) -> PartitionRow:
    """Return the partition's row after a swap.

    `there` has its stored extents at the replaced offsets.

    Raises:
        StaleExtents: the stored extents are not those that the segment was made of.
    """
    if tuple(there) != swap.replaced:
        start, end = _offsets(swap.replaced)
        raise StaleExtents(
            f"partition {swap.partition} of topic {swap.topic_id}: the extents of offsets"
            f" [{start}, {end}) are not those that object {swap.object_id} was made of"
        )
    return _replaced(row, there, swap.extents)


def check_newest(key: PartitionKey, offset: int, newest: Extent, there: Sequence[Extent]) -> None:
    """Check that a partition has not changed since it was compacted up to `offset`.

    `newest` is the last compacted extent. `there` has the stored extent that holds `offset - 1`, if
    any. Object ids are never reused, so the two differ if the partition was emptied and refilled.

    Raises:
        StaleExtents: the partition has changed.
    """
    if list(there) != [newest] or not newest.base_offset < offset <= newest.next_offset:
        raise StaleExtents(
            f"partition {key[1]} of topic {key[0]}: the last extent that was compacted, up to"
            f" offset {offset}, has changed or is gone"
        )
