"""Lookups of positions by timestamp, and of the byte ranges that hold offsets.

A lookup by timestamp finds a batch by its header, and decodes only that batch, as columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.base.files import read_range
from penstock.records import BatchHeader
from penstock.records.extents import Extent, file_extent
from penstock.storage.reading import Written
from penstock.storage.segment import Segment, segment_place
from penstock.storage.segment_files import SegmentFiles
from penstock.storage.values import Buffer, OffsetAndTimestamp


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
    from penstock.records.columnar.decode import decode_batches

    epoch = header.partition_leader_epoch
    if header.is_control:
        if header.base_offset < start_offset:
            return None
        return OffsetAndTimestamp(header.base_offset, header.max_timestamp, epoch)
    columns: Any = decode_batches(data, columns=("offset", "timestamp"), start_offset=start_offset)
    times = columns.column(1).to_numpy()
    if not len(times) or (timestamp is None and times.max() < 0):
        return None
    matches = (times >= (times.max() if timestamp is None else timestamp)).nonzero()[0]
    if not len(matches):
        return None
    row = int(matches[0])
    return OffsetAndTimestamp(int(columns.column(0)[row].as_py()), int(times[row]), epoch)


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
