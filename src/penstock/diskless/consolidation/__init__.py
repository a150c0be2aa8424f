"""Consolidation: old write-ahead extents become sealed segments, one partition in each.

`choosing` decides which extents, `building` makes a segment of them and needs nothing but a store.
"""

from penstock.diskless.consolidation.building import (
    SealedSegment,
    SegmentPart,
    build_segment,
    write_segment,
)

__all__ = ["SealedSegment", "SegmentPart", "build_segment", "write_segment"]
