"""Values of diskless topics in the control plane: objects, entries, extents, watermarks.

A *lease* is a key under which a broker may write one object. An *entry* holds the batches of one
produce request for one partition, as they were written to the object. Committing the object assigns
offsets to every entry. The batch index stores accepted entries as *extents*: adjacent batches of
one partition in one object, which a reader finds by offset.

A write-ahead object has the bytes that producers sent, with base offset 0 in every batch. A reader
writes the extent's offsets into the batch headers, and the append time if the extent has one. The
batches of a sealed segment already have their offsets.

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
    """A reserved key. Its row is PENDING until the object is committed or swept."""

    object_id: int
    key: str


class StoreIdentity(NamedTuple):
    """The random id of the object store.

    `place` is its location when the id was stored, for messages.
    """

    store_id: UUID
    place: str


class BatchEntry(NamedTuple):
    """Batches of one partition in an object, which are accepted or rejected together.

    `layout` has a pair of little-endian int32 per batch: its bytes, and its number of offsets.
    Batches of an idempotent producer have adjacent sequences: `base_sequence` is that of the first
    record, `last_sequence` of the last.

    `transactional` batches belong to a transaction. `verified_from` is the partition's end, or a
    lower offset, when the transaction's coordinator confirmed the partition
    (`records.idempotence.check_verified`). An entry with a `marker` is a control batch; its
    `verified_from` is the partition's end when the marker was made (`check_marker`).
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
    """A commit of a written object, with its entries in the order of acceptance.

    `now_ms` is the broker's time, which LogAppendTime topics use. Entries of one partition are
    adjacent and ordered by byte offset.
    """

    object_id: int
    size_bytes: int
    entries: tuple[BatchEntry, ...]
    now_ms: int


class Watermarks(NamedTuple):
    """The log start, high watermark and bytes of a diskless partition.

    `open_offset` is the first offset of the first open transaction. `aborted_offset` is the offset
    of the last abort marker. Both are -1 if there is none.
    """

    log_start_offset: int
    high_watermark: int
    size_bytes: int
    open_offset: int = -1
    aborted_offset: int = -1

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions have ended, or are deleted."""
        if self.open_offset < 0:
            return self.high_watermark
        return max(self.open_offset, self.log_start_offset)


class Aborted(NamedTuple):
    """The aborted transactions of a partition whose markers are at or above an offset, by marker.

    The list is complete for batches below `complete_to`. If that is None, it is complete up to
    `watermarks.aborted_offset`.
    """

    transactions: tuple[AbortedTransaction, ...]
    watermarks: Watermarks
    complete_to: int | None = None


class CommitAnswer(Struct, frozen=True, kw_only=True):
    """The result of a commit: an `AppendResult` per entry, in order, and the new watermarks.

    `extents` has the added extents by partition, for the cache of the writing broker. A repeated
    commit returns the same result.
    """

    placed: tuple[AppendResult, ...]
    watermarks: Mapping[PartitionKey, Watermarks] = field(default_factory=dict)
    extents: Mapping[PartitionKey, tuple[Extent, ...]] = field(default_factory=dict)


class FindRequest(NamedTuple):
    """A lookup of a partition's extents from `offset` on, up to about `max_bytes`."""

    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int


class Found(NamedTuple):
    """The result of a lookup: adjacent extents, of which the first holds the requested offset.

    There is at least one extent for an offset below the high watermark, whatever its size, and none
    at the high watermark. `error` is set for an unknown partition and for an offset outside of the
    log. An unknown partition has no `watermarks`.
    """

    watermarks: Watermarks | None
    extents: tuple[Extent, ...] = ()
    error: str | None = None


class MarkedObject(NamedTuple):
    """A DELETING object, to which no extent refers."""

    object_id: int
    key: str
    size_bytes: int


class Retained(NamedTuple):
    """Result of a retention pass over a partition. `more` means that a limit stopped it."""

    watermarks: Watermarks
    extents_dropped: int
    bytes_dropped: int
    more: bool


class SegmentSwap(Struct, frozen=True, kw_only=True):
    """A replacement of extents of one partition by a sealed segment.

    `replaced` has the extents that the segment was made of; `extents` has those of the segment.
    Both are adjacent, ordered by offset, and cover the same offsets.
    """

    topic_id: UUID
    partition: int
    object_id: int
    size_bytes: int
    replaced: tuple[Extent, ...]
    extents: tuple[Extent, ...]


class Backlog(NamedTuple):
    """A partition's extents and bytes in write-ahead objects, which consolidation has to merge."""

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
