"""Consolidation: old write-ahead extents become sealed segments, one partition in each.

`choosing` decides which extents, `consolidator` has a segment made of them, for a broker or a
command; from the `work_queue` others lease work.
"""

from penstock.diskless.consolidation.choosing import Choice, Page, Rules, Selection, choose
from penstock.diskless.consolidation.consolidator import Consolidator, Made, rules_of
from penstock.diskless.consolidation.work_queue import SegmentMissing, Work, WorkQueue

__all__ = [
    "Choice",
    "Consolidator",
    "Made",
    "Page",
    "Rules",
    "SegmentMissing",
    "Selection",
    "Work",
    "WorkQueue",
    "choose",
    "rules_of",
]  # fmt: skip
