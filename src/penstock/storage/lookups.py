"""Positions in a log by time, and the byte ranges that hold a range of offsets.

Only the one batch that decides is opened, by columns; that is the only place where the storage
needs NumPy and Arrow, and they are imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.records import BatchHeader
from penstock.records.extents import Extent, file_extent
from penstock.storage.environment import Environment
from penstock.storage.formats.snapshot import (
    BATCHES_VERSION,
    SnapshotEntry,
    encode_snapshot,
)
from penstock.storage.reading import end_before, headers_from, index_of, locate
from penstock.storage.segment import Segment
from penstock.storage.values import OffsetAndTimestamp

if TYPE_CHECKING:
    from penstock.storage.partition import PartitionLog


def encoded_snapshots(
    offset: int, last: list[SnapshotEntry], batches: list[SnapshotEntry]
) -> tuple[int, bytes, bytes]:
    """The two files of producer state at `offset`."""
    return offset, encode_snapshot(last), encode_snapshot(batches, BATCHES_VERSION)


def first_at_or_after(
    log: PartitionLog, environment: Environment, timestamp: int
) -> OffsetAndTimestamp | None:
    """The first record of a settled log whose timestamp is not below `timestamp`."""
    interval = log.config.index_interval_bytes
    for segment in log.segments:
        if segment.written_bytes == 0:
            continue
        index = index_of(environment, segment, interval)
        environment.indexes.used(segment)
        if segment.max_timestamp < timestamp:
            continue
        position = index.position_of(index.offset_before_time(timestamp))
        for at, header in headers_from(environment, segment, position):
            if header.max_timestamp < timestamp or header.next_offset <= log.log_start_offset:
                continue
            found = _open(environment, segment, at, header, log, timestamp)
            if found is not None:
                return found
    return None


def of_highest_timestamp(log: PartitionLog, environment: Environment) -> OffsetAndTimestamp | None:
    """The first record of a settled log that has the highest timestamp of all.

    Of all by the headers: where a producer's header promised a later time than its records
    have, or the newest record is deleted, it is the latest record of that batch.
    """
    best: tuple[int, Segment, int, BatchHeader] | None = None
    interval = log.config.index_interval_bytes
    for segment in log.segments:
        if segment.written_bytes == 0:
            continue
        index = index_of(environment, segment, interval)
        environment.indexes.used(segment)
        if best is not None and segment.max_timestamp <= best[0]:
            continue
        position = index.position_of(index.offset_before_time(segment.max_timestamp))
        for at, header in headers_from(environment, segment, position):
            if header.next_offset <= log.log_start_offset:
                continue
            if best is None or header.max_timestamp > best[0]:
                best = header.max_timestamp, segment, at, header
    if best is None or best[0] < 0:
        return None
    return _open(environment, best[1], best[2], best[3], log, None)


def _open(
    environment: Environment,
    segment: Segment,
    position: int,
    header: BatchHeader,
    log: PartitionLog,
    timestamp: int | None,
) -> OffsetAndTimestamp | None:
    """The first record of one batch at or after the log's start and a time, or the latest."""
    from penstock.records.columnar.decode import decode_batches

    handle = environment.descriptors.get(segment.path)
    data = environment.files.read_at(handle.descriptor, header.size_bytes, position)
    columns: Any = decode_batches(
        data, columns=("offset", "timestamp"), start_offset=log.log_start_offset
    )
    times = columns.column(1).to_numpy()
    if not len(times):
        return None
    matches = (times >= (times.max() if timestamp is None else timestamp)).nonzero()[0]
    if not len(matches):
        return None
    row = int(matches[0])
    offset = int(columns.column(0)[row].as_py())
    return OffsetAndTimestamp(offset, int(times[row]), header.partition_leader_epoch)


def extents(log: PartitionLog, environment: Environment, start: int, end: int) -> list[Extent]:
    """Where a settled log keeps the whole batches that hold [start, end)."""
    found: list[Extent] = []
    interval = log.config.index_interval_bytes
    start = max(start, log.log_start_offset)
    if start >= end:
        return found
    segments = log.segments
    for place in range(log.segment_place(start), len(segments)):
        segment = segments[place]
        if segment.base_offset >= end:
            break
        first = locate(environment, segment, start, interval)
        if place + 1 < len(segments):
            environment.indexes.used(segment)
        if first is None or first.header.base_offset >= end:
            continue
        last = place + 1 == len(segments)
        segment_end = log.settled_offset if last else segments[place + 1].base_offset
        position = segment.written_bytes
        next_offset = segment_end
        if end < segment_end:
            beyond = locate(environment, segment, end, interval)
            if beyond is not None and beyond.header.base_offset < end:
                position = beyond.position + beyond.header.size_bytes
                next_offset = beyond.header.next_offset
            elif beyond is not None:
                position, next_offset = end_before(
                    environment, segment, first.position, beyond.position, interval
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
