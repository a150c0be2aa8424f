"""Reads from a segment's file: bisect the index, walk headers to the batch, read the bytes.

Where a read ends is found the same way: the last indexed position before the limit, and a walk
from there, so a read of a megabyte looks at a few headers and not at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.records import HEADER_BYTES, BatchHeader, decode_header
from penstock.storage.appended import Tail
from penstock.storage.environment import Environment
from penstock.storage.errors import CorruptLog
from penstock.storage.formats.index import SparseIndex
from penstock.storage.segment import Segment, load_index, walk
from penstock.storage.values import Buffer, Read

if TYPE_CHECKING:
    from penstock.storage.partition import PartitionLog

_LENGTH_OVERHEAD_BYTES: Final = 12
_LOOK_BYTES: Final = 4096 + 1024
"""A walk between two index entries: about one interval."""


class Place(NamedTuple):
    """A batch in a segment."""

    position: int
    header: BatchHeader


def index_of(environment: Environment, segment: Segment, interval_bytes: int) -> SparseIndex:
    """The index of a segment, loaded if it was not."""
    if segment.index is not None:
        return segment.index
    return load_index(segment, environment.files, environment.descriptors, interval_bytes)


def locate(
    environment: Environment, segment: Segment, offset: int, interval_bytes: int
) -> Place | None:
    """The first batch whose last offset is not below `offset`; None beyond what is written."""
    position = index_of(environment, segment, interval_bytes).position_of(offset)
    for at, header in headers_from(environment, segment, position):
        if header.last_offset >= offset:
            return Place(at, header)
    return None


def end_before(
    environment: Environment, segment: Segment, start: int, limit: int, interval_bytes: int
) -> tuple[int, int]:
    """The last batch boundary in (start, limit], and the offset after it.

    `start` must be a boundary; the batch there counts even if it reaches beyond the limit.
    """
    index = index_of(environment, segment, interval_bytes)
    position = max(start, index.position_before(limit))
    end, next_offset = position, -1
    for at, header in headers_from(environment, segment, position):
        after = at + header.batch_length + 12
        if after > limit and at > start:
            return at, next_offset if next_offset >= 0 else header.base_offset
        end, next_offset = after, header.next_offset
        if end >= limit:
            break
    return end, next_offset


def read_segment(
    environment: Environment,
    segment: Segment,
    offset: int,
    *,
    max_bytes: int,
    end_offset: int | None,
    at_least_one: bool,
    interval_bytes: int,
) -> Read | None:
    """Whole batches from the one that holds `offset`; None when there is none here.

    A batch that holds `end_offset` ends the read; None when the segment has nothing there.
    """
    first = locate(environment, segment, offset, interval_bytes)
    if first is None or (end_offset is not None and first.header.next_offset > end_offset):
        return None
    start = first.position
    size_bytes = first.header.batch_length + _LENGTH_OVERHEAD_BYTES
    if size_bytes > max_bytes and not at_least_one:
        return Read([], 0, offset)
    end, next_offset = start + size_bytes, first.header.next_offset
    if size_bytes < max_bytes:
        limit = min(start + max_bytes, segment.written_bytes)
        if end_offset is not None:
            beyond = locate(environment, segment, end_offset, interval_bytes)
            limit = limit if beyond is None else min(limit, beyond.position)
        end, next_offset = end_before(environment, segment, start, limit, interval_bytes)
    handle = environment.descriptors.get(segment.path)
    data = environment.files.read_at(handle.descriptor, end - start, start)
    counters = environment.counters
    counters.reads += 1
    counters.read_bytes += len(data)
    return Read([data], len(data), next_offset)


def headers_from(
    environment: Environment, segment: Segment, position: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Walk the headers of what is written, a little at a time."""
    handle = environment.descriptors.get(segment.path)
    return walk(
        environment.files,
        handle.descriptor,
        segment.path,
        position,
        segment.written_bytes,
        verify=False,
        chunk_bytes=_LOOK_BYTES,
    )


def read_files(
    log: PartitionLog,
    environment: Environment,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read:
    """Read from the segment that holds `offset`, or the first after it that has anything.

    Where bytes are damaged, what stands before them is served batch by batch.

    Raises:
        CorruptLog: what is stored there is damaged.
    """
    try:
        return _read_files(log, environment, offset, max_bytes, end_offset, at_least_one)
    except CorruptLog as error:
        try:
            return _read_files(log, environment, offset, 1, end_offset, at_least_one)
        except CorruptLog:
            raise log.damage or error from None


def _read_files(
    log: PartitionLog,
    environment: Environment,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read:
    place = log.segment_place(offset)
    settled = log.settled_offset
    interval_bytes = log.config.index_interval_bytes
    segments = log.segments
    while place < len(segments):
        segment = segments[place]
        last = place + 1 == len(segments)
        segment_end = settled if last else segments[place + 1].base_offset
        bounded = end_offset < segment_end or log.damage is not None
        read = None
        if segment.written_bytes:
            read = read_segment(
                environment,
                segment,
                offset,
                max_bytes=max_bytes,
                end_offset=end_offset if bounded else None,
                at_least_one=at_least_one,
                interval_bytes=interval_bytes,
            )
        if not last:
            environment.indexes.used(segment)
        if read is not None:
            return read
        place += 1
    if log.damage is not None:
        raise log.damage
    return Read([], 0, offset)


def read_tail(
    tail: Tail, place: int, offset: int, max_bytes: int, end_offset: int, at_least_one: bool
) -> Read:
    """Read from memory, from a place that `Tail.from_offset` gave on."""
    buffers: list[Buffer] = []
    size = 0
    next_offset = offset
    while (item := tail.at(place)) is not None and item.base_offset < end_offset:
        whole = size + item.size_bytes <= max_bytes and item.next_offset <= end_offset
        if whole and item.base_offset >= offset:
            part: Buffer = item.data
            next_offset = item.next_offset
        else:
            first = at_least_one and not buffers
            start = max(offset, next_offset)
            part, next_offset = part_of(item.data, start, max_bytes - size, end_offset, first)
        if part:
            buffers.append(bytes(part) if item.lease is not None else part)
            size += len(part)
        if next_offset < item.next_offset:
            break
        place += 1
    return Read(buffers, size, next_offset)


def part_of(
    data: Buffer, offset: int, max_bytes: int, end_offset: int, at_least_one: bool
) -> tuple[memoryview, int]:
    """Whole batches of `data` that hold [offset, end_offset), up to `max_bytes`.

    Returns them and the offset after them; `offset` itself when there is none.
    """
    view = memoryview(data)
    position = 0
    start = end = -1
    next_offset = offset
    while position + HEADER_BYTES <= len(view):
        header = decode_header(view, position)
        after = position + header.batch_length + _LENGTH_OVERHEAD_BYTES
        if header.next_offset > end_offset:
            break
        if header.next_offset > offset:
            if start < 0:
                start = position
            if after - start > max_bytes and not (at_least_one and start == position):
                break
            end, next_offset = after, header.next_offset
        position = after
    return (view[start:end], next_offset) if end > 0 else (view[:0], offset)
