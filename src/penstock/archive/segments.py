"""Building of sealed segments from the extents of write-ahead objects.

A segment is a plain Kafka segment file (`.log`) with batches back to back. Each batch gets its base
offset, leader epoch and, for log append time, the append time. Nothing else in a batch changes;
its checksum is renewed only for an append time. Consumers therefore get the same bytes as before,
and any reader of segment files can read a segment.

    extents   [a a a][b b][c c c c]      of different objects, adjacent by offset
    chunks    |──────────|─────────|     read a few at a time, assembled as for a consumer
    parts     |───────────────|────|     the segment's extents in the batch index

Memory is limited by the segment's bytes and one chunk, because the finished chunks stay in memory
until the segment is written. A store that joins the pieces of an object doubles this amount.

No control plane is needed: `build_segment` and `write_segment` run on any machine that can reach
the store.

Source: Inkless's file merger; KIP-405 (segments in an archive).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.archive.assembly import Result, Run, assemble, results_of
from penstock.archive.planning import Piece, merge, trim
from penstock.base.errors import BugError, PenstockError
from penstock.control.rules.diskless import LAYOUT
from penstock.control.values.diskless import ObjectLease, PartitionKey, SegmentSwap
from penstock.objects import ObjectStore
from penstock.records import BatchHeader, decode_header, empty_batches, verify_crc
from penstock.records.extents import Extent

CHUNK_BYTES: Final = 8 << 20
"""Most bytes of the extents in one chunk; a larger extent is a chunk of its own."""
CHUNK_EXTENTS_MAX: Final = 64
READS_AT_ONCE: Final = 8
"""Most ranges of a chunk that are read in parallel."""
PART_BYTES_MAX: Final = 4 << 20
"""Most bytes of an extent of a sealed segment, unless its first batch is larger.

A lookup by timestamp reads a whole extent, and retention deletes whole extents.
"""
PART_BATCHES_MAX: Final = 4_096
"""Most batches of an extent of a sealed segment; every lookup returns the layout of all of them."""

Read = Callable[[str, int, int], Awaitable[memoryview]]
"""Function that reads bytes of an object; its arguments are those of `ObjectStore.get`."""


class SegmentPart(NamedTuple):
    """Adjacent batches of a segment that become one extent.

    `layout` has two numbers for each batch, its size in bytes and its number of offsets, as i32.
    """

    byte_offset: int
    size_bytes: int
    base_offset: int
    next_offset: int
    max_timestamp: int
    layout: bytes


class SealedSegment(NamedTuple):
    """Finished segment: its bytes in pieces, and its parts in offset order."""

    pieces: list[memoryview]
    size_bytes: int
    parts: tuple[SegmentPart, ...]

    def extents(self, lease: ObjectLease) -> tuple[Extent, ...]:
        """Return the parts as extents of the object with this lease.

        Their `append_time_ms` is -1, because append times are already in the batches.
        """
        return tuple(
            Extent(
                lease.object_id, lease.key, "segment", part.byte_offset, part.size_bytes,
                part.base_offset, part.next_offset, part.max_timestamp, -1, part.layout,
            )
            for part in self.parts
        )  # fmt: skip

    def swap(
        self, key: PartitionKey, replaced: Sequence[Extent], lease: ObjectLease
    ) -> SegmentSwap:
        """Return the swap by which the control plane replaces extents with this segment."""
        return SegmentSwap(
            topic_id=key[0],
            partition=key[1],
            object_id=lease.object_id,
            size_bytes=self.size_bytes,
            replaced=tuple(replaced),
            extents=self.extents(lease),
        )


async def build_segment(read: Read, extents: Sequence[Extent], key: PartitionKey) -> SealedSegment:
    """Build a segment from adjacent extents of one partition; `read` reads the objects.

    Raises:
        CorruptObject: an object does not match the batch index; no segment is built.
        ObjectNotFound, ObjectTruncated, StoreUnavailable, StoreRefused: raised by `read`.
    """
    for extent, following in pairwise(extents):
        if extent.next_offset != following.base_offset:
            raise BugError(
                f"partition {key[1]} of topic {key[0]}: an extent begins at offset"
                f" {following.base_offset}, but the previous one ends at {extent.next_offset}"
            )
    segment = GrowingSegment(extents[0].base_offset)
    async for run in runs_of(read, extents):
        await asyncio.to_thread(segment.add, run.data)
    return segment.sealed()


async def runs_of(read: Read, extents: Sequence[Extent]) -> AsyncIterator[Run]:
    """Read adjacent extents in chunks of bounded size; yield the verified batches of each chunk.

    Raises the errors of `build_segment`.
    """
    for chunk in _chunks(extents):
        size_bytes = sum([extent.size_bytes for extent in chunk])
        pieces = trim(chunk, chunk[0].base_offset, max_bytes=size_bytes, at_least_one=True)
        run, failure = await asyncio.to_thread(assemble, pieces, await _fetched(read, pieces))
        if failure is not None:
            raise failure
        if run is None:
            raise BugError("the extents of a chunk have no batches")
        yield run


async def write_segment(
    store: ObjectStore,
    extents: Sequence[Extent],
    key: PartitionKey,
    lease: ObjectLease,
) -> SegmentSwap:
    """Build a segment, write it under a leased key, and return the swap for `swap_extents`.

    After an error the key must not be used again.

    Raises:
        PenstockError: as in `build_segment` and `ObjectStore.put`.
    """
    segment = await build_segment(store.get, extents, key)
    await store.put(lease.key, segment.pieces)
    return segment.swap(key, extents, lease)


def _chunks(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    chunk: list[Extent] = []
    size_bytes = 0
    for extent in extents:
        if chunk and (
            size_bytes + extent.size_bytes > CHUNK_BYTES or len(chunk) == CHUNK_EXTENTS_MAX
        ):
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(extent)
        size_bytes += extent.size_bytes
    yield chunk


async def _fetched(read: Read, pieces: Sequence[Piece]) -> list[Result]:
    """Read the pieces; return the bytes or the error of each, in their order."""
    plan = merge(pieces)
    turns = asyncio.Semaphore(READS_AT_ONCE)

    async def read_range(key: str, start: int, size_bytes: int) -> Result:
        async with turns:
            try:
                return await read(key, start, size_bytes)
            except PenstockError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read_range(*item)) for item in plan.ranges]
    return results_of(pieces, plan, [task.result() for task in tasks])


class GrowingSegment:
    """Segment under construction, to which batches are added in offset order.

    It contains every offset up to its end: gaps, as left by compaction, are filled with batches
    without records.
    """

    def __init__(self, base_offset: int) -> None:
        self.next_offset = base_offset
        self.size_bytes = 0
        self._epoch = 0
        self._pieces: list[memoryview] = []
        self._parts: list[SegmentPart] = []
        self._part: GrowingPart | None = None

    def add(self, view: memoryview, *, verify: bool = False) -> None:
        """Append whole batches in offset order; their bytes are not copied.

        Raises:
            CorruptBatch: the bytes are not batches or, with `verify`, a checksum is wrong.
            BugError: a batch begins below the segment's end; only the first batch may.
        """
        begun = position = 0
        while position < len(view):
            header = decode_header(view, position)
            if verify:
                verify_crc(view, header, position)
            if header.base_offset < self.next_offset and self._part is not None:
                raise BugError(
                    f"a batch begins at offset {header.base_offset}, expected {self.next_offset}"
                )
            self._epoch = header.partition_leader_epoch
            if header.base_offset > self.next_offset:
                self._pieces.append(view[begun:position])
                begun = position
                self.fill(header.base_offset)
            self._note(header)
            position += header.size_bytes
        self._pieces.append(view[begun:])

    def fill(self, offset: int) -> None:
        for filler in empty_batches(self.next_offset, offset, self._epoch):
            self._pieces.append(memoryview(filler))
            self._note(decode_header(filler))

    def _note(self, header: BatchHeader) -> None:
        part = self._part
        if part is None or part.is_full(header.size_bytes):
            if part is not None:
                self._parts.append(part.done())
            part = self._part = GrowingPart(self.size_bytes, header.base_offset)
        part.add(header)
        self.next_offset = header.next_offset
        self.size_bytes += header.size_bytes

    def sealed(self) -> SealedSegment:
        """Return the finished segment, which must not be empty; nothing may be added afterwards."""
        if self._part is not None:
            self._parts.append(self._part.done())
        return SealedSegment(self._pieces, self.size_bytes, tuple(self._parts))


class GrowingPart:
    """Part of a segment under construction."""

    __slots__ = ("_base_offset", "_byte_offset", "_max_timestamp", "_next", "_size", "layout")

    def __init__(self, byte_offset: int, base_offset: int) -> None:
        self._byte_offset = byte_offset
        self._base_offset = self._next = base_offset
        self._size = 0
        self._max_timestamp = -1
        self.layout = bytearray()

    def is_full(self, batch_bytes: int) -> bool:
        return self._size > 0 and (
            self._size + batch_bytes > PART_BYTES_MAX
            or len(self.layout) >= PART_BATCHES_MAX * LAYOUT.size
        )

    def add(self, header: BatchHeader) -> None:
        """Add a batch; the timestamp of a marker is ignored, because markers are not records."""
        self.layout += LAYOUT.pack(header.size_bytes, header.next_offset - self._next)
        self._size += header.size_bytes
        self._next = header.next_offset
        if not header.is_control:
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)

    def done(self) -> SegmentPart:
        return SegmentPart(
            self._byte_offset, self._size, self._base_offset, self._next, self._max_timestamp,
            bytes(self.layout),
        )  # fmt: skip
