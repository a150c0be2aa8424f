"""Values of diskless topics in the control plane: objects, entries, extents, watermarks.

A *lease* is a key under which a broker may write one object. An *entry* holds the batches of one
produce request for one partition, as they are in a written object; committing the object assigns
offsets to every entry. The batch index stores accepted entries as *extents*: adjacent batches of
one partition in one object, which a reader finds by offset.

A write-ahead object has the bytes that producers sent, with base offset 0 in every batch. A reader
stamps the offsets of the extent into them, and the append time if the extent has one. A sealed
segment has its offsets; stamping them again changes nothing.

Offsets and sizes are plain ints; times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple
from uuid import UUID

from msgspec import Struct, field

from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.transactions import AbortedTransaction, Marker

ObjectKind = Literal["wal", "segment"]
ObjectState = Literal["pending", "committed", "deleting"]
PartitionKey = tuple[UUID, int]
"""A topic's id and a partition's index."""


class ObjectLease(NamedTuple):
    """A reserved key; its row is PENDING until the object is committed or swept."""

    object_id: int
    key: str


class StoreIdentity(NamedTuple):
    """The random id of the object store; `place` is its location at adoption, for people."""

    store_id: UUID
    place: str


class BatchEntry(NamedTuple):
    """Batches in an object that are accepted or rejected together.

    `layout` is little-endian int32 pairs, one per batch: its bytes, and its number of offsets.
    Batches of idempotent producers are all of one producer with adjacent sequences: `base_sequence`
    is that of the first record, `last_sequence` of the last.

    A batch of a transaction is `transactional`; `verified_from` is the offset since which its
    coordinator is known to have it (`records.idempotence.check_verified`). An entry with a `marker`
    is the control batch of that producer and epoch, and `verified_from` is the partition's end when
    it was made (`check_marker`).
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


class ObjectCommit(Struct, frozen=True, kw_only=True):
    """A written object and its entries, in the order of acceptance.

    `now_ms` is the broker's time, which LogAppendTime topics use. Entries of one partition are
    adjacent and ordered by byte offset.
    """

    object_id: int
    size_bytes: int
    entries: tuple[BatchEntry, ...]
    now_ms: int


class Watermarks(NamedTuple):
    """The start and end of a diskless partition, and the bytes between.

    `open_offset` is the first offset of the first open transaction, `aborted_offset` the marker of
    the last aborted one; -1 for none.
    """

    log_start_offset: int
    high_watermark: int
    size_bytes: int
    open_offset: int = -1
    aborted_offset: int = -1

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions are decided, or deleted."""
        if self.open_offset < 0:
            return self.high_watermark
        return max(self.open_offset, self.log_start_offset)


class Aborted(NamedTuple):
    """The aborted transactions of a partition whose markers are at or above an offset, by marker.

    Complete for batches below `complete_to`, or, if that is None, up to the `aborted_offset` of the
    `watermarks`.
    """

    transactions: tuple[AbortedTransaction, ...]
    watermarks: Watermarks
    complete_to: int | None = None


class CommitAnswer(Struct, frozen=True, kw_only=True):
    """The `AppendResult`s of a commit's entries, in order, and the new watermarks.

    `extents` has the extents that the commit added, by partition, for the writing broker's cache. A
    repeated commit returns the same.
    """

    placed: tuple[AppendResult, ...]
    watermarks: Mapping[PartitionKey, Watermarks] = field(default_factory=dict)
    extents: Mapping[PartitionKey, tuple[Extent, ...]] = field(default_factory=dict)


class FindRequest(NamedTuple):
    """A request for the extents from an offset on, up to about `max_bytes`."""

    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int


class Found(NamedTuple):
    """The extents that hold an offset and the ones after it, without a gap.

    Has at least one extent, whatever its size, for an offset below the high watermark, and none at
    the high watermark. For an unknown partition `watermarks` is None; then, and for an offset
    outside of the log, `error` is set.
    """

    watermarks: Watermarks | None
    extents: tuple[Extent, ...] = ()
    error: str | None = None


class MarkedObject(NamedTuple):
    """A DELETING object, which nothing references."""

    object_id: int
    key: str
    size_bytes: int


class Retained(NamedTuple):
    """Result of retention or a deletion in a partition; `more` if a limit stopped it."""

    watermarks: Watermarks
    extents_dropped: int
    bytes_dropped: int
    more: bool


class SegmentSwap(Struct, frozen=True, kw_only=True):
    """A sealed object that replaces extents of one partition.

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
    """A partition's extents and bytes in write-ahead objects, by which consolidation chooses."""

    topic_id: UUID
    partition: int
    extents: int
    size_bytes: int
    oldest_timestamp: int


class ObjectTotals(NamedTuple):
    state: ObjectState
    kind: ObjectKind
    objects: int
    size_bytes: int
