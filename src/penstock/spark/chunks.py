"""Chunks of whole batches in memory, and their reader from files of this machine.

A file is read if it exists, is long enough and starts with the batch that the broker named.
`object_chunks` is the equivalent for object stores, in its own module because of slow imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.records.aborted import AbortedRange
from penstock.records.errors import CorruptBatch
from penstock.records.extents import Extent
from penstock.records.header import HEADER_BYTES, decode_header
from penstock.spark.slices import Slice

CHUNK_BYTES: Final = 4 << 20
BATCH_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Contiguous whole batches of one timestamp type, and the offset after the last."""

    data: memoryview
    next_offset: int
    timestamp_type: int
    checked: bool = False
    """Whether the checksums were verified already."""
    aborted: tuple[AbortedRange, ...] | None = None
    """Offset ranges of aborted transactions, if the response had them; None: use the slice's."""


class Fetched(NamedTuple):
    """Whole batches from a broker, and the ranges of aborted transactions among them."""

    data: bytes
    aborted: tuple[AbortedRange, ...] = ()


Found = tuple[int, Chunk | None]
"""Index of a slice and its next batches; None when this path has no more."""


def whole_batches(data: memoryview, *, checked: bool = False) -> Chunk:
    """Return the complete batches at the start of `data`, up to another timestamp type."""
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
    """Yield the batches of slices from their files; a slice ends early if its file is unusable.

    Raises:
        CorruptBatch: a batch is larger than what is left of its extent.
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
                        f"{extent.key} at {position}: a batch of {first.size_bytes} bytes in "
                        f"{end - position} left"
                    )
                data = memoryview(os.pread(descriptor, first.size_bytes, position))
            chunk = whole_batches(data)
            yield chunk
            if chunk.next_offset >= until:
                return
            position += len(chunk.data)
