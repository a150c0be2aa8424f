"""Logs whose checkpoint, or part of the journal, is damaged: their segments say what there is.

Nobody knows then up to where a log was durable. So it ends behind the last whole batch of its
files, or behind what is left of the journal: what is cut off there is torn, and nothing that could
be read. Whatever is damaged before is a range of damage like any other one, and stays.

Without a checkpoint it is not known either what of the journal is news, and what is from before a
compaction, or of records that were deleted since. Only what lies behind the end of the files is
put there then. Where records were deleted within a segment is forgotten: they are there again.

Source: Kafka's `LogManager.loadLogs`, which begins at the first segment without a recovery point.
"""

from __future__ import annotations

import os

from penstock.base.files import Files
from penstock.base.settings import LONG_MAX
from penstock.storage.damage import Survey
from penstock.storage.formats.checkpoint import HAS_PRODUCERS, RecoveryPoint
from penstock.storage.mending import MendedLog
from penstock.storage.names import LOG, SNAPSHOT, offset_name, parse_offset_name
from penstock.storage.segment import Segment


def first_point(files: Files, directory: str) -> RecoveryPoint:
    """The point from which a log without one is walked: where its files begin."""
    segments, snapshots = _offsets(files, directory, LOG), _offsets(files, directory, SNAPSHOT)
    base = min(segments) if segments else max(snapshots, default=0)
    return RecoveryPoint(base, base, base, 0, 0, -1, HAS_PRODUCERS)


def go_on(log: MendedLog, point: RecoveryPoint, *, unknown: bool) -> None:
    """Have a loaded log that nobody else has take appends behind what is damaged of it."""
    # What is missing was not compacted away, if the checkpoint knows of no holes.
    log.has_holes = (log.has_holes or log.damage is not None) if unknown else point.has_holes
    if log.damage is not None:
        log.go_on()


def last_whole(files: Files, directory: str) -> int:
    """The offset behind the last whole batch of a log's files, 0 without one."""
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
    return [one[0] for one in parsed if one is not None and one[1] == suffix]
