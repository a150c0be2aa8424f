"""Consolidation: old write-ahead extents become sealed segments, one partition in each.

`choosing` decides which extents, `building` makes a segment of them and needs nothing but a store,
`consolidator` does both for a broker or a command; from the `work_queue` others lease work.
"""

from penstock.diskless.consolidation.building import (
    SealedSegment,
    SegmentPart,
    build_segment,
    write_segment,
)
from penstock.diskless.consolidation.choosing import Choice, Page, Rules, Selection, choose
from penstock.diskless.consolidation.consolidator import Consolidator, Made, rules_of
from penstock.diskless.consolidation.work_queue import SegmentMissing, Work, WorkQueue

__all__ = [
    "Choice",
    "Consolidator",
    "Made",
    "Page",
    "Rules",
    "SealedSegment",
    "SegmentMissing",
    "SegmentPart",
    "Selection",
    "Work",
    "WorkQueue",
    "build_segment",
    "choose",
    "rules_of",
    "write_segment",
]  # fmt: skip
