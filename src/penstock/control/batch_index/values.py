"""The values of diskless topics in the control plane: objects, entries, extents, marks.

A *lease* is a key that a broker may write one object under. An *entry* is what one produce request
brought for one partition, as it lies in a written object; committing the object gives every entry
its offsets. What was accepted stands in the batch index as *extents*: adjacent batches of one
partition in one object, which a reader finds by offset.

The bytes of a write-ahead object are as producers sent them: base offset 0 in every batch. A
reader stamps the offsets of the extent into them, and the append time where the extent has one. A
sealed segment carries its offsets; stamping them again changes nothing.

Offsets and sizes are plain ints; times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.transactions import AbortedTransaction, Marker

ObjectKind = Literal["wal", "segment"]
ObjectState = Literal["pending", "committed", "deleting"]
PartitionKey = tuple[UUID, int]
"""A topic's id and a partition's index."""


class ObjectLease(NamedTuple):
    """A reserved key: its row is PENDING until the object is committed, or swept."""

    object_id: int
    key: str


class StoreIdentity(NamedTuple):
    """Which object store the objects lie in: the random id that is written in it.

    `place` is where it was when it was adopted, without credentials; it is for people alone, as a
    store may move.
    """

    store_id: UUID
    place: str


class BatchEntry(NamedTuple):
    """Batches that are accepted or refused together, as they lie in an object.

    `layout` is little-endian int32 pairs, one per batch: its bytes, and the offsets that it takes.
    Where the batches are of an idempotent producer they are all of one, and their sequences are
    adjacent: `base_sequence` is that of the first record, `last_sequence` of the last.

    A batch of a transaction is `transactional`; `verified_from` says since when its coordinator is
    known to have it (`records.idempotence.check_verified`). With a `marker` it is the control batch
    of one, of that producer and epoch, and `verified_from` is where the partition ended when it was
    made (`check_marker`).
    """

    topic_id: UUID
    partition: int
    byte_offset: int
    size_bytes: int
    offset_count: int
    max_timestamp: int
    append_time: bool
    layout: bytes
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_sequence: int = -1
    transactional: bool = False
    verified_from: int = -1
    marker: Marker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCommit:
    """A written object and everything in it, in the order in which it was accepted.

    `now_ms` is the broker's time, which LogAppendTime topics get. Entries of one partition are
    adjacent and rise by byte offset.
    """

    object_id: int
    size_bytes: int
    entries: tuple[BatchEntry, ...]
    now_ms: int


class Watermarks(NamedTuple):
    """Where a diskless partition begins and ends, and the bytes between.

    `open_offset` is where the first transaction begins that is open, `aborted_offset` the marker of
    the last one that was aborted; -1 for none.
    """

    log_start_offset: int
    high_watermark: int
    size_bytes: int
    open_offset: int = -1
    aborted_offset: int = -1

    @property
    def last_stable_offset(self) -> int:
        """Below it all transactions are decided, or deleted."""
        if self.open_offset < 0:
            return self.high_watermark
        return max(self.open_offset, self.log_start_offset)


class Aborted(NamedTuple):
    """The aborted transactions of a partition whose markers are at or behind an offset, by marker.

    All of them that have batches below `complete_to`, or all of them up to the `aborted_offset` of
    the `watermarks`, where that is None.
    """

    transactions: tuple[AbortedTransaction, ...]
    watermarks: Watermarks
    complete_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """One `AppendResult` per entry, in their order, and what the partitions became.

    `extents` has what this commit added, by partition, so that the broker that wrote it need not
    ask; a repeated commit answers with the same.
    """

    placed: tuple[AppendResult, ...]
    watermarks: Mapping[PartitionKey, Watermarks] = field(default_factory=dict)
    extents: Mapping[PartitionKey, tuple[Extent, ...]] = field(default_factory=dict)


class FindRequest(NamedTuple):
    """Which extents from an offset on, up to about this many bytes."""

    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int


class Found(NamedTuple):
    """The extents that hold an offset and what follows, without a gap.

    At least one when the offset is below the high watermark, whatever its size; none at the high
    watermark. `watermarks` is None where there is no such partition, and `error` then says so, as
    it does for an offset outside of the log.
    """

    watermarks: Watermarks | None
    extents: tuple[Extent, ...] = ()
    error: str | None = None


class MarkedObject(NamedTuple):
    """An object that is marked DELETING: nothing refers to it, and nothing will."""

    object_id: int
    key: str
    size_bytes: int


class Retained(NamedTuple):
    """What retention or a deletion did to a partition; `more` says that a limit stopped it."""

    watermarks: Watermarks
    extents_dropped: int
    bytes_dropped: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSwap:
    """A sealed object that takes the place of extents of one partition.

    `replaced` are the extents that it was made of, adjacent and by offset; `extents` are those of
    the new object and cover the same offsets.
    """

    topic_id: UUID
    partition: int
    object_id: int
    size_bytes: int
    replaced: tuple[Extent, ...]
    extents: tuple[Extent, ...]


class Backlog(NamedTuple):
    """How much of a partition lies in write-ahead objects, for consolidation to choose by."""

    topic_id: UUID
    partition: int
    extents: int
    size_bytes: int
    oldest_timestamp: int


class ObjectTotals(NamedTuple):
    """How many objects there are of one state and kind."""

    state: ObjectState
    kind: ObjectKind
    objects: int
    size_bytes: int
