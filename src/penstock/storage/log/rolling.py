"""Decisions of when to close a segment, and which segments retention removes: a pure core.

For a tiered topic, `local.retention.ms` and `local.retention.bytes` replace the topic's retention,
which applies to the archive; -2 means the same as the topic's. Local segments stay until they are
archived. The owner of the log sets the offset up to which they are (`tiered_offset`).

Source: Kafka's `LogSegment.shouldRoll`, `UnifiedLog.deleteOldSegments` and `deletableSegments`, and
`LogConfig.localRetentionMs`; KIP-405.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple
from zlib import crc32

from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.storage.files.index import OFFSET_ENTRY_BYTES
from penstock.storage.files.segment import UNKNOWN, Segment
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.settings import LogConfig

AS_WHOLE: Final = -2
"""Value of a local retention setting that means the topic's retention."""


class Facts(NamedTuple):
    """Properties of a segment that determine whether retention removes it."""

    next_offset: int
    size_bytes: int
    newest: Callable[[], int]
    """Highest timestamp, read on demand; -1 for none."""


def should_roll(
    segment: Segment,
    headers: Sequence[BatchHeader],
    config: LogConfig,
    files: SegmentFiles,
) -> bool:
    """Return whether to close a segment before an append, because of its age or a full index.

    The segment is not empty, and the caller has compared its size with the limit. As in Kafka, age
    is measured by the records' timestamps, not by the clock, so that a replay of old records makes
    the same segments as the original.
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
    """Return by how many milliseconds `segment.jitter.ms` reduces a segment's age limit."""
    if config.segment_jitter_ms == 0:
        return 0
    spread = min(config.segment_jitter_ms, config.segment_ms)
    return crc32(segment.path.encode()) % (spread + 1)


def segment_facts(
    segments: Sequence[Segment], end_offset: int, files: SegmentFiles, interval_bytes: int
) -> Iterator[Facts]:
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        after = end_offset if last else segments[place + 1].base_offset
        newest = partial(_newest, segment, files, interval_bytes, last=last)
        yield Facts(after, segment.end_position, newest)


def _newest(segment: Segment, files: SegmentFiles, interval_bytes: int, *, last: bool) -> int:
    if segment.end_position > segment.written_bytes:
        return LONG_MAX
    if segment.max_timestamp == UNKNOWN and last:
        files.index_of(segment, interval_bytes)
    return segment.max_timestamp if last else files.newest_timestamp(segment, interval_bytes)


def expired_count(
    segments: Iterable[Facts],
    *,
    size_bytes: int,
    config: LogConfig,
    now_ms: int,
    log_start_offset: int,
    committed_offset: int,
    most: int,
) -> int:
    """Return how many of the oldest segments retention removes, at most `most`.

    `size_bytes` is the size of all segments. A segment is removed when it is completely below the
    log's start, or is committed and too old or beyond the retained size. The first segment that
    stays ends the search, so that the log gets no gap. A segment without timestamps, as compaction
    may leave one, is removed only together with a later segment.
    """
    deletes = "delete" in config.cleanup_policy
    retention_ms, surplus = config.retention_ms, size_bytes - config.retention_bytes
    count = 0
    for place, (next_offset, size, newest) in enumerate(islice(segments, most), 1):
        if next_offset > log_start_offset:
            if not deletes or next_offset > committed_offset:
                break
            too_much = config.retention_bytes >= 0 and surplus >= size > 0
            time = LONG_MAX if retention_ms < 0 or too_much else newest()
            if not too_much and time >= now_ms - retention_ms:
                break
            if time < 0:
                surplus -= size
                continue
        surplus -= size
        count = place
    return count


def kept_here(
    config: LogConfig, committed_offset: int, tiered_offset: int
) -> tuple[LogConfig, int]:
    """Return the configuration of local retention, and the offset below which it may remove
    segments."""
    if not config.remote_storage_enable:
        return config, committed_offset
    local_ms, local_bytes = config.local_retention_ms, config.local_retention_bytes
    kept = replace(
        config,
        retention_ms=config.retention_ms if local_ms == AS_WHOLE else local_ms,
        retention_bytes=config.retention_bytes if local_bytes == AS_WHOLE else local_bytes,
    )
    return kept, min(committed_offset, tiered_offset)
