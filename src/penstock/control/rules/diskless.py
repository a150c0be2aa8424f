"""Rules of diskless topics: keys, repeated commits, rejections, lookups, retention and swaps.

Pure functions. Offsets are assigned in `control/rules/commits.py`.

The result of a commit depends on the state of the object's row:

| object's row                                     | result of the commit                  |
|--------------------------------------------------|---------------------------------------|
| PENDING                                          | success: the row becomes COMMITTED,   |
|                                                  | or DELETING if no entry was accepted  |
| COMMITTED or DELETING, by an earlier commit      | the stored result of that commit      |
| COMMITTED, and the stored result was deleted     | `CommitForgotten`                     |
| DELETING by the sweeper, or gone                 | `ObjectLeaseLost`                     |

Source: Aiven's Inkless (`CommitFileJob`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from penstock.base.errors import BugError
from penstock.control.values.diskless import (
    FindRequest,
    Found,
    ObjectState,
    PartitionKey,
    Retained,
    SegmentSwap,
    Watermarks,
)
from penstock.control.values.errors import (
    FIND_EXTENTS_MAX,
    OBJECT_LEASES_PER_CALL_MAX,
    CommitForgotten,
    InvalidCommit,
    ObjectLeaseLost,
    OffsetBeyondEnd,
    StaleBroker,
    StaleExtents,
    TooLarge,
)
from penstock.control.values.topics import MetadataImage, Topic
from penstock.records.extents import Extent

DISKLESS_CONFIG: Final = "diskless.enable"
"""Topic config that makes a topic diskless if it is `true`."""

LAYOUT: Final = Struct("<ii")
"""One batch in an extent's layout: its size in bytes, and its number of offsets."""

Answer = TypeVar("Answer")
"""The stored result of a commit, encoded or decoded."""

TopicOf = Callable[[UUID], Topic | None]
"""Function that takes a topic id and returns the topic, or None."""

ProducerKey = tuple[UUID, int, int]
"""A topic's id, a partition's index, a producer's id."""


class PartitionRow(NamedTuple):
    """The row of a diskless partition.

    `partition_id` is internal to the database; 0 means without a row.

    `wal_extents` and `wal_bytes` count the extents in write-ahead objects, and their bytes.
    """

    partition_id: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    wal_extents: int = 0
    wal_bytes: int = 0
    open_offset: int = -1
    aborted_offset: int = -1

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.log_start_offset,
            self.high_watermark,
            self.size_bytes,
            self.open_offset,
            self.aborted_offset,
        )


EMPTY: Final = PartitionRow()


def check_lease(image: MetadataImage, broker_id: int, incarnation: UUID, count: int) -> None:
    if not 1 <= count <= OBJECT_LEASES_PER_CALL_MAX:
        raise TooLarge(
            f"{count} object keys in one call, allowed are 1 to {OBJECT_LEASES_PER_CALL_MAX}"
        )
    broker = image.broker(broker_id)
    if broker is None:
        raise StaleBroker(broker_id, registered=False)
    if broker.incarnation != incarnation:
        raise StaleBroker(broker_id)


def object_key(object_id: int, nonce: int) -> str:
    """Return the key of a write-ahead object.

    Keys are spread over 256 prefixes, because object stores limit requests by prefix. `nonce` is 32
    random bits. It keeps keys unique if a restored database leases the same ids again.
    """
    return f"wal/{object_id & 0xFF:02x}/{object_id:016x}-{nonce & 0xFFFFFFFF:08x}"


def segment_key(
    object_id: int,
    nonce: int,
    topic_id: UUID,
    partition: int,
    base_offset: int,
    leader_epoch: int = 0,
    *,
    suffix: str = ".log",
) -> str:
    """Return the key of a sealed segment. Keys sort by topic, partition and offset.

    `leader_epoch` is 0 for diskless topics; `nonce` is as in `object_key`.
    """
    unique = f"{object_id:016x}-{nonce & 0xFFFFFFFF:08x}"
    return f"archive/{topic_id}/{partition}/{base_offset:020d}-{leader_epoch}-{unique}{suffix}"


def first_answer(object_id: int, state: ObjectState | None, answer: Answer | None) -> Answer:
    """Return a commit's stored result. Raises ObjectLeaseLost or CommitForgotten without one."""
    if answer is not None:
        return answer
    if state == "committed":
        raise CommitForgotten(object_id)
    raise ObjectLeaseLost(object_id)


def layout_totals(layout: bytes) -> tuple[int, int]:
    """Return the total bytes and offsets of a `BatchEntry.layout`; (-1, -1) if malformed."""
    if len(layout) == LAYOUT.size:
        size_bytes, count = LAYOUT.unpack(layout)
        return (size_bytes, count) if size_bytes > 0 and count > 0 else (-1, -1)
    if not layout or len(layout) % LAYOUT.size:
        return -1, -1
    sizes, counts = zip(*LAYOUT.iter_unpack(layout), strict=True)
    return (sum(sizes), sum(counts)) if min(sizes) > 0 and min(counts) > 0 else (-1, -1)


def adjoin(extents: Sequence[Extent]) -> bool:
    """Return whether each extent begins where the one before it ends."""
    return all(extent.next_offset == other.base_offset for extent, other in pairwise(extents))


def write_refusal(topic: Topic | None, topic_id: UUID, partition: int) -> tuple[str, str] | None:
    """Return why a partition rejects writes, as error name and message; None if it accepts them."""
    refused = refusal(topic, topic_id, partition)
    if refused is None and topic is not None and topic.partitions[partition].move:
        return "not_leader_or_follower", f"topic {topic.name!r} is becoming replicated: retry"
    return refused


def refusal(topic: Topic | None, topic_id: UUID, partition: int) -> tuple[str, str] | None:
    """Return why a partition cannot be read, as error name and message; None if it can be read."""
    if topic is None:
        return "unknown_topic_id", f"there is no topic of id {topic_id}"
    if topic.configs.get(DISKLESS_CONFIG) != "true":
        return "not_leader_or_follower", f"topic {topic.name!r} has no {DISKLESS_CONFIG} = true"
    if not 0 <= partition < len(topic.partitions):
        return (
            "unknown_topic_or_partition",
            f"topic {topic.name!r} has {len(topic.partitions)} partitions;"
            f" partition {partition} does not exist",
        )
    return None


# Rules of the batch index for lookups, retention and swaps of segments: pure functions.
#
# All implementations of the control plane share them.
#
# Retention drops whole extents from the start of a partition, while one of these is true of the
# first remaining extent: it is below the log start; it is too old; the partition stays at or above
# the allowed size without it. An extent without timestamps is as old as the next extent that has
# some. An extent above the last stable offset is kept, because a transaction was open when it was
# committed.
#
# Source: Kafka's `UnifiedLog.deleteOldSegments` (its order of rules and their bounds).


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
