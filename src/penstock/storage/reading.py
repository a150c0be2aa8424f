"""Reads of one log: from the files of its segments, and from the tail in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.records import HEADER_BYTES, decode_header
from penstock.storage.appended import Tail
from penstock.storage.damage import Damage, DamagedRecords
from penstock.storage.epochs import EpochHistory
from penstock.storage.errors import CorruptLog
from penstock.storage.segment import Segment, segment_place
from penstock.storage.segment_files import SegmentFiles
from penstock.storage.values import Buffer, Read

_LENGTH_OVERHEAD_BYTES: Final = 12


class Written(NamedTuple):
    """Part of a log that is in files, from its start to `end_offset`."""

    segments: Sequence[Segment]
    start_offset: int
    end_offset: int
    interval_bytes: int
    damage: CorruptLog | None
    epochs: EpochHistory
    has_holes: bool

    def end_of(self, place: int) -> int:
        last = place + 1 == len(self.segments)
        return self.end_offset if last else self.segments[place + 1].base_offset

    def epoch_of(self, place: int) -> int:
        segment, epochs = self.segments[place], self.epochs
        epoch = epochs.epoch_at(segment.base_offset)
        return epoch if epoch == epochs.epoch_at(self.end_of(place) - 1) else -1


def read_files(
    files: SegmentFiles,
    log: Written,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read:
    """Read from the segment that holds `offset`, or from the first later segment with batches.

    Batches before damaged bytes are returned.

    Raises:
        DamagedRecords: the records at `offset` are damaged.
        CorruptLog: the log ends at `offset` because of damage.
    """
    try:
        return _read_files(files, log, offset, max_bytes, end_offset, at_least_one)
    except CorruptLog:
        return _read_around(files, log, offset, max_bytes, end_offset, at_least_one)


def _read_files(
    files: SegmentFiles,
    log: Written,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read:
    segments = log.segments
    place = segment_place(segments, offset)
    while place < len(segments):
        segment = segments[place]
        last = place + 1 == len(segments)
        segment_end = log.end_of(place)
        bounded = end_offset < segment_end or log.damage is not None
        gaps = segment.gaps or log.has_holes
        read = None
        if segment.written_bytes:
            read = files.read(
                segment,
                offset,
                max_bytes=max_bytes,
                end_offset=end_offset if bounded else None,
                at_least_one=at_least_one,
                interval_bytes=log.interval_bytes,
                epoch=log.epoch_of(place),
                gaps=gaps,
            )
        if not last:
            files.indexes.used(segment)
        if read is not None and read.next_offset <= max(segment_end, offset):
            return read
        if read is not None or (offset < segment_end and not gaps):
            reason = f"the batches of the segment do not end at offset {segment_end}"
            raise CorruptLog(Path(segment.path), segment.written_bytes, reason)
        place += 1
    if log.damage is not None:
        raise log.damage
    return Read([], 0, offset)


def _read_around(
    files: SegmentFiles,
    log: Written,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read:
    """Read like `_read_files`, but examine every batch to find the damaged range."""
    for place in range(segment_place(log.segments, offset), len(log.segments)):
        read = _surveyed(files, log, place, offset, max_bytes, end_offset, at_least_one)
        if read is not None:
            return read
    if log.damage is not None:
        raise log.damage
    return Read([], 0, offset)


def _surveyed(
    files: SegmentFiles,
    log: Written,
    place: int,
    offset: int,
    max_bytes: int,
    end_offset: int,
    at_least_one: bool,
) -> Read | None:
    """Return the intact batches of one segment from an offset; None if there are none."""
    segment = log.segments[place]
    start = end = -1
    next_offset = offset
    for position, header, damage in files.survey(
        segment,
        offset,
        end_offset=log.end_of(place),
        epoch=log.epoch_of(place),
        interval_bytes=log.interval_bytes,
        gaps=log.has_holes,
    ):
        first = start < 0
        if damage is not None and (not first or damage.next_offset > offset):
            if first:
                raise _damage_error(damage, log)
            break
        if header is None or header.last_offset < offset:
            continue
        after = position + header.size_bytes
        too_much = after - (position if first else start) > max_bytes
        if header.next_offset > end_offset or (too_much and not (first and at_least_one)):
            if first:
                return Read([], 0, offset)
            break
        start, end, next_offset = (position if first else start), after, header.next_offset
    return None if start < 0 else files.piece(segment, start, end, next_offset)


def _damage_error(damage: Damage, log: Written) -> CorruptLog:
    """Return the error for a read of a damaged range, or the log's own error if its end is lost."""
    if log.damage is not None and damage.next_offset >= log.end_offset:
        return log.damage
    return DamagedRecords(damage)


def read_tail(
    tail: Tail[Any], place: int, offset: int, max_bytes: int, end_offset: int, at_least_one: bool
) -> Read:
    """Read from the tail in memory; `place` is a result of `Tail.from_offset`."""
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
    """Return the complete batches of `data` that hold [offset, end_offset), up to `max_bytes`, and
    the offset after them; `offset` itself if there are none."""
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
