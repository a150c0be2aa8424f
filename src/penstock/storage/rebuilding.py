"""Rebuilding of logs after damage to the checkpoint or the journal.

The durable offset of a log is then unknown. The log ends behind the last whole batch of its files
or of the remaining journal; only torn bytes are cut off. Earlier damage stays, as an ordinary
damaged range.

Without a checkpoint, it is also unknown which journal entries are older than a compaction or a
deletion. Replay then only appends behind the end of the files, and records deleted within a segment
reappear.

Source: Kafka's `LogManager.loadLogs`, which begins at the first segment without a recovery point.
"""

from __future__ import annotations

import os

from penstock.base.files import Files
from penstock.base.settings import LONG_MAX
from penstock.storage.formats.checkpoint import HAS_PRODUCERS, RecoveryPoint
from penstock.storage.log.state import LogState
from penstock.storage.log.walk import Survey
from penstock.storage.names import LOG, SNAPSHOT, offset_name, parse_offset_name
from penstock.storage.segment import Segment


def first_point(files: Files, directory: str) -> RecoveryPoint:
    """Return the recovery point of a log without one: the start of its files."""
    segments, snapshots = _offsets(files, directory, LOG), _offsets(files, directory, SNAPSHOT)
    base = min(segments) if segments else max(snapshots, default=0)
    return RecoveryPoint(base, base, base, 0, 0, -1, HAS_PRODUCERS)


def continue_log(log: LogState, point: RecoveryPoint, *, unknown: bool) -> None:
    """Make a loaded log without replicas accept appends behind its damage."""
    # A checkpoint without holes proves that missing offsets were not compacted away.
    log.has_holes = (log.has_holes or log.damage is not None) if unknown else point.has_holes
    if log.damage is not None:
        log.skip_lost_end()


def last_whole(files: Files, directory: str) -> int:
    """Return the offset behind the last whole batch of a log's files, 0 without one."""
    for base in sorted(_offsets(files, directory, LOG), reverse=True):
        path = os.path.join(directory, offset_name(base, LOG))
        segment = Segment(directory, base, files.size_of(path))
        following = 0
        descriptor = files.open(path)
        try:
            survey = Survey(files, descriptor, segment, end_offset=LONG_MAX, epoch=-1, gaps=False)
            for _, header, _ in survey.batches(0, base):
                if header is not None:
                    following = header.next_offset
        finally:
            files.close(descriptor)
        if following:
            return following
    return 0


def _offsets(files: Files, directory: str, suffix: str) -> list[int]:
    try:
        parsed = map(parse_offset_name, files.names_in(directory))
    except FileNotFoundError:
        return []
    return [name[0] for name in parsed if name is not None and name[1] == suffix]
