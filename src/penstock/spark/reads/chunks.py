"""Chunks of whole batches in memory, and a reader of chunks from local files.

A file is read if it exists, is long enough, and begins with the expected batch.
`spark/reads/object_chunks.py` reads from object stores; it is a separate module because its imports
are slow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.base.ids import TopicPartition
from penstock.records.errors import CorruptBatch
from penstock.records.extents import Extent, SignedRange
from penstock.records.header import HEADER_BYTES, decode_header
from penstock.records.transactions import AbortedRange

# Slices: runs of bytes for a task to read, each with the offsets to select.
#
# The bytes are adjacent whole batches in a local file or in an object, as extents describe them.
# Extents of an object are trimmed to the selected batches. For a file, the broker returns new
# extents when a slice is cut.


RECORD_BYTES_GUESS: Final = 256
REQUEST_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Offsets [start, end) of a partition, and the location of the bytes that contain them.

    If `store` is set, `extents` are adjacent and in one object of the store with that URL. If it is
    empty, there is one extent, of a file. Without extents, and if the bytes cannot be read, the
    records are fetched from the broker. Batches in `aborted` are skipped. With `signed`, the only
    extent is read as a whole through a signed URL.
    """

    at: TopicPartition
    start: int
    end: int
    store: str = ""
    extents: tuple[Extent, ...] = ()
    aborted: tuple[AbortedRange, ...] = ()
    signed: SignedRange | None = None

    @property
    def size_bytes(self) -> int:
        if not self.extents:
            return (self.end - self.start) * RECORD_BYTES_GUESS
        return sum(extent.size_bytes for extent in self.extents)

    @property
    def load_bytes(self) -> int:
        """Cost of reading the slice in bytes; for a store at least that of one request."""
        return max(self.size_bytes, REQUEST_BYTES) if self.store else self.size_bytes


class Task(InputPartition):
    """Input of one Spark task: slices, read in order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple(slices))

    @property
    def slices(self) -> tuple[Slice, ...]:
        value: tuple[Slice, ...] = self.value
        return value


def overlapping(ranges: Sequence[AbortedRange], start: int, end: int) -> tuple[AbortedRange, ...]:
    """Return the ranges of aborted transactions that have an offset in [start, end)."""
    return tuple(
        [range_ for range_ in ranges if range_.first_offset < end and range_.last_offset >= start]
    )


CHUNK_BYTES: Final = 4 << 20
BATCH_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Adjacent whole batches of one timestamp type; `next_offset` follows the last record."""

    data: memoryview
    next_offset: int
    timestamp_type: int
    checked: bool = False
    """Whether the batches' checksums have already been verified."""
    aborted: tuple[AbortedRange, ...] | None = None
    """Aborted transactions from the fetch response; None: those of the slice apply."""


class Fetched(NamedTuple):
    """Whole batches from a fetch response, with the aborted transactions among them."""

    data: bytes
    aborted: tuple[AbortedRange, ...] = ()


Found = tuple[int, Chunk | None]
"""Index of a slice, and its next chunk; None after the last chunk that this reader can get."""


def whole_batches(data: memoryview, *, checked: bool = False) -> Chunk:
    """Return the complete record batches at the start of `data` as one chunk.

    The chunk ends where the timestamp type changes, or at an incomplete batch.
    """
    size, next_offset, timestamp_type = 0, -1, 0
    while size + HEADER_BYTES <= len(data):
        header = decode_header(data, size)
        if size + header.size_bytes > len(data):
            break
        if size and header.timestamp_type != timestamp_type:
            break
        timestamp_type = int(header.timestamp_type)
        next_offset = header.next_offset
        size += header.size_bytes
    return Chunk(
        data=data[:size], next_offset=next_offset, timestamp_type=timestamp_type, checked=checked
    )


def file_chunks(items: Sequence[Slice]) -> Iterator[Found]:
    """Yield the chunks of each slice from local files, with the slice's index, then None.

    If a file is unusable, None comes early. The caller then fetches the missing records from the
    broker.

    Raises:
        CorruptBatch: a batch is larger than the rest of its extent.
    """
    for index, item in enumerate(items):
        for extent in item.extents:
            for chunk in _from_file(extent, item.end):
                yield index, chunk
        yield index, None


def _from_file(extent: Extent, until: int) -> Iterator[Chunk]:
    with ExitStack() as stack:
        try:
            descriptor = os.open(extent.key, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        stack.callback(os.close, descriptor)
        position, end = extent.byte_offset, extent.byte_offset + extent.size_bytes
        if os.fstat(descriptor).st_size < end:
            return
        while position < end:
            data = memoryview(os.pread(descriptor, min(CHUNK_BYTES, end - position), position))
            if len(data) < HEADER_BYTES:
                return
            first = decode_header(data)
            if position == extent.byte_offset and first.base_offset != extent.base_offset:
                return
            if first.size_bytes > len(data):
                if first.size_bytes > min(BATCH_BYTES_MAX, end - position):
                    raise CorruptBatch(
                        f"{extent.key}: the batch at byte {position} has {first.size_bytes} bytes, "
                        f"but the extent ends after {end - position}"
                    )
                data = memoryview(os.pread(descriptor, first.size_bytes, position))
            chunk = whole_batches(data)
            yield chunk
            if chunk.next_offset >= until:
                return
            position += len(chunk.data)
