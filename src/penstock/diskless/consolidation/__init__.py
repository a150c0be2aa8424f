"""Consolidation: merges old write-ahead extents into sealed segments of one partition each.

`choosing` selects extents. `consolidator` makes segments of them, for a broker or a command. Other
processes lease work from the `work_queue`.
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
