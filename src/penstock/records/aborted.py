"""Offset ranges of aborted transactions, for readers of committed records.

A producer has one transaction at a time in a partition, so its aborted ones are ranges of offsets:
from the first batch to the marker, which has an offset as well.

Source: KIP-98.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

OFFSET_MAX: Final = 2**63 - 1


class AbortedRange(NamedTuple):
    """Offsets of a producer's aborted transaction, from `first_offset` to `last_offset`.

    The ranges of one producer are disjoint.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def ranges_until(
    begun: Iterable[tuple[int, int]], markers: Iterable[tuple[int, int]]
) -> tuple[AbortedRange, ...]:
    """Return the ranges that end at the markers among these batches.

    Both are (producer id, offset); markers come by offset. A transaction without a marker continues
    behind the batches.
    """
    of_producer: dict[int, list[int]] = {}
    for producer_id, offset in markers:
        of_producer.setdefault(producer_id, []).append(offset)
    ranges: list[AbortedRange] = []
    for producer_id, first_offset in begun:
        ends = of_producer.get(producer_id, [])
        place = bisect_left(ends, first_offset)
        last_offset = ends[place] if place < len(ends) else OFFSET_MAX
        ranges.append(AbortedRange(producer_id, first_offset, last_offset))
    return tuple(ranges)
