"""When a segment is closed and what retention lets go: pure decisions.

Source: Kafka's `LogSegment.shouldRoll` and `UnifiedLog.deleteOldSegments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.storage.config import LogConfig
from penstock.storage.formats.index import OFFSET_ENTRY_BYTES
from penstock.storage.segment import UNKNOWN, Segment
from penstock.storage.segment_files import SegmentFiles


def should_roll(
    segment: Segment,
    headers: Sequence[BatchHeader],
    config: LogConfig,
    files: SegmentFiles,
) -> bool:
    """Whether a segment that is not empty, and not full by size, is closed before an append.

    By time as Kafka counts it: the timestamps of the records, not the clock, so that a replay
    of old records makes the segments that the original did.
    """
    index = segment.index
    if index is not None and (len(index.offsets) + OFFSET_ENTRY_BYTES > config.segment_index_bytes):
        return True
    first = segment.first_timestamp
    if first == UNKNOWN:
        first = files.first_timestamp(segment)
    newest = headers[-1].max_timestamp
    return first >= 0 and newest - first > config.segment_ms - jitter_ms(segment, config)


def jitter_ms(segment: Segment, config: LogConfig) -> int:
    """The part of `segment.jitter.ms` that this segment's age limit is shorter by."""
    if config.segment_jitter_ms == 0:
        return 0
    spread = min(config.segment_jitter_ms, config.segment_ms)
    return crc32(segment.path.encode()) % (spread + 1)


def segment_facts(
    segments: Sequence[Segment], end_offset: int, files: SegmentFiles, interval_bytes: int
) -> list[tuple[int, int, int]]:
    """For retention: (next offset, bytes, highest timestamp) of each segment of a log."""
    facts = []
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        after = end_offset if last else segments[place + 1].base_offset
        if segment.max_timestamp == UNKNOWN:
            files.index_of(segment, interval_bytes)
            if not last:
                files.indexes.used(segment)
        newest = segment.max_timestamp
        if segment.end_position > segment.written_bytes:
            newest = LONG_MAX
        facts.append((after, segment.end_position, newest))
    return facts


def expired_count(
    segments: Sequence[tuple[int, int, int]],
    *,
    config: LogConfig,
    now_ms: int,
    log_start_offset: int,
    committed_offset: int,
) -> int:
    """How many of the oldest segments go; each is (next offset, size in bytes, max timestamp).

    A segment goes when all of it is below the log's start, or is committed and too old, or beyond
    the size that is kept. The first that stays ends the search, so the log keeps no holes.
    """
    if "delete" not in config.cleanup_policy:
        count = 0
        while count < len(segments) and segments[count][0] <= log_start_offset:
            count += 1
        return count
    surplus = sum([size for _, size, _ in segments]) - config.retention_bytes
    count = 0
    for next_offset, size, newest in segments:
        if next_offset > max(committed_offset, log_start_offset):
            break
        below_start = next_offset <= log_start_offset
        too_old = config.retention_ms >= 0 and newest >= 0 and now_ms - newest > config.retention_ms
        too_much = config.retention_bytes >= 0 and surplus >= size > 0
        if not (below_start or too_old or too_much):
            break
        surplus -= size
        count += 1
    return count
