"""Reads of one log: from the files of its segments, and from the tail in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.base.files import read_range
from penstock.records import HEADER_BYTES, BatchHeader, decode_header
from penstock.records.extents import Extent, file_extent
from penstock.storage.files.appended import Tail
from penstock.storage.files.epochs import EpochHistory
from penstock.storage.files.errors import CorruptLog
from penstock.storage.files.segment import Segment, segment_place
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.values import Buffer, OffsetAndTimestamp, Read
from penstock.storage.files.walk import Damage, DamagedRecords

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


# Lookups of positions by timestamp, and of the byte ranges that hold offsets.
#
# A lookup by timestamp finds a batch by its header, and decodes only that batch, as columns.


def first_at_or_after(
    files: SegmentFiles, log: Written, timestamp: int
) -> OffsetAndTimestamp | None:
    """Return the first record of a log whose timestamp is not below `timestamp`."""
    for segment in log.segments:
        if segment.written_bytes == 0:
            continue
        files.index_of(segment, log.interval_bytes)
        files.indexes.used(segment)
        if segment.max_timestamp < timestamp:
            continue
        for at, header in files.walk_to_time(segment, timestamp, log.interval_bytes):
            if header.max_timestamp < timestamp or header.next_offset <= log.start_offset:
                continue
            found = _open(files, log, segment, at, header, timestamp)
            if found is not None:
                return found
    return None


def of_highest_timestamp(files: SegmentFiles, log: Written) -> OffsetAndTimestamp | None:
    """Return the first record of a log that has the highest timestamp.

    The batch is chosen by the highest timestamp in the headers of batches with records. If none of
    its remaining records has that timestamp, the result is the batch's latest record.
    """
    best: tuple[int, Segment, int, BatchHeader] | None = None
    for segment in log.segments:
        if segment.written_bytes == 0:
            continue
        files.index_of(segment, log.interval_bytes)
        files.indexes.used(segment)
        if best is not None and segment.max_timestamp <= best[0]:
            continue
        newest = segment.max_timestamp
        found = _latest(log, files.walk_to_time(segment, newest, log.interval_bytes))
        if found is None or found[1].max_timestamp < newest:  # its batch is deleted, or empty
            found = _latest(log, files.walk(segment, 0))
        if found is not None and (best is None or found[1].max_timestamp > best[0]):
            best = found[1].max_timestamp, segment, *found
    if best is None or best[0] < 0:
        return None
    return _open(files, log, best[1], best[2], best[3], None)


def _latest(
    log: Written, batches: Iterable[tuple[int, BatchHeader]]
) -> tuple[int, BatchHeader] | None:
    """Return the first batch with the highest timestamp among those with records, and its
    position; None if there is none."""
    there = [batch for batch in batches if batch[1].record_count]
    left = [batch for batch in there if batch[1].next_offset > log.start_offset]
    return max(left, key=lambda batch: batch[1].max_timestamp, default=None)


def _open(
    files: SegmentFiles,
    log: Written,
    segment: Segment,
    position: int,
    header: BatchHeader,
    timestamp: int | None,
) -> OffsetAndTimestamp | None:
    handle = files.descriptors.get(segment.path)
    data = read_range(files.files, handle.descriptor, header.size_bytes, position)
    return record_in(data, header, timestamp, start_offset=log.start_offset)


def record_in(
    data: Buffer, header: BatchHeader, timestamp: int | None, *, start_offset: int
) -> OffsetAndTimestamp | None:
    """Return the first record of a batch from `start_offset` on that is not before `timestamp`.

    If `timestamp` is None, return the first record with the highest timestamp, unless that is below
    0. As in Kafka, a transaction marker counts as a record.
    """
    from penstock.records.columnar.rows import read_rows

    epoch = header.partition_leader_epoch
    if header.is_control:
        if header.base_offset < start_offset:
            return None
        return OffsetAndTimestamp(header.base_offset, header.max_timestamp, epoch)
    rows = read_rows(data, columns=("offset", "timestamp"), start_offset=start_offset)
    times = rows.longs("timestamp")
    if not len(times) or (timestamp is None and times.max() < 0):
        return None
    matches = (times >= (times.max() if timestamp is None else timestamp)).nonzero()[0]
    if not len(matches):
        return None
    row = int(matches[0])
    return OffsetAndTimestamp(int(rows.longs("offset")[row]), int(times[row]), epoch)


def extents(files: SegmentFiles, log: Written, start: int, end: int) -> list[Extent]:
    """Return the extents of the whole batches that hold [start, end)."""
    found: list[Extent] = []
    start = max(start, log.start_offset)
    if start >= end:
        return found
    segments = log.segments
    for place in range(segment_place(segments, start), len(segments)):
        segment = segments[place]
        if segment.base_offset >= end:
            break
        first = files.locate(segment, start, log.interval_bytes)
        if place + 1 < len(segments):
            files.indexes.used(segment)
        if first is None or first.header.base_offset >= end:
            continue
        last = place + 1 == len(segments)
        segment_end = log.end_offset if last else segments[place + 1].base_offset
        position = segment.written_bytes
        next_offset = segment_end
        if end < segment_end:
            beyond = files.locate(segment, end, log.interval_bytes)
            if beyond is not None and beyond.header.base_offset < end:
                position = beyond.position + beyond.header.size_bytes
                next_offset = beyond.header.next_offset
            elif beyond is not None:
                position, next_offset = files.end_before(
                    segment, first.position, beyond.position, log.interval_bytes
                )
        found.append(
            file_extent(
                segment.path,
                byte_offset=first.position,
                size_bytes=position - first.position,
                base_offset=first.header.base_offset,
                next_offset=next_offset,
                max_timestamp=segment.max_timestamp,
            )
        )
    return found
