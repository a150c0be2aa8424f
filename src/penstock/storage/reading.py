"""Reads of one log: from the files of its segments, and from the tail in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.records import HEADER_BYTES, decode_header
from penstock.storage.appended import Tail
from penstock.storage.errors import CorruptLog
from penstock.storage.segment import Segment, segment_place
from penstock.storage.segment_files import SegmentFiles
from penstock.storage.values import Buffer, Read

_LENGTH_OVERHEAD_BYTES: Final = 12


class Written(NamedTuple):
    """What of a log lies in files: from its start to `end_offset`, as far as it is undamaged."""

    segments: Sequence[Segment]
    start_offset: int
    end_offset: int
    interval_bytes: int
    damage: CorruptLog | None


def read_files(
    files: SegmentFiles,
    log: Written,
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
        return _read_files(files, log, offset, max_bytes, end_offset, at_least_one)
    except CorruptLog as error:
        try:
            return _read_files(files, log, offset, 1, end_offset, at_least_one)
        except CorruptLog:
            raise log.damage or error from None


def _read_files(
    files: SegmentFiles,
    log: Written,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read:
    segments, _, written, interval_bytes, damage = log
    place = segment_place(segments, offset)
    while place < len(segments):
        segment = segments[place]
        last = place + 1 == len(segments)
        segment_end = written if last else segments[place + 1].base_offset
        bounded = end_offset < segment_end or damage is not None
        read = None
        if segment.written_bytes:
            read = files.read(
                segment,
                offset,
                max_bytes=max_bytes,
                end_offset=end_offset if bounded else None,
                at_least_one=at_least_one,
                interval_bytes=interval_bytes,
            )
        if not last:
            files.indexes.used(segment)
        if read is not None:
            return read
        place += 1
    if damage is not None:
        raise damage
    return Read([], 0, offset)


def read_tail(
    tail: Tail[Any], place: int, offset: int, max_bytes: int, end_offset: int, at_least_one: bool
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
