"""Offset ranges of aborted transactions, which read_committed readers skip.

A producer has one transaction at a time in a partition, so its aborted transactions are offset
ranges. Each range goes from the transaction's first batch to its marker, which also has an offset.

Source: KIP-98.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

OFFSET_MAX: Final = 2**63 - 1


class AbortedRange(NamedTuple):
    """Offsets of one aborted transaction of a producer; `last_offset` is the marker's.

    The ranges of one producer do not overlap.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def ranges_until(
    begun: Iterable[tuple[int, int]], markers: Iterable[tuple[int, int]]
) -> tuple[AbortedRange, ...]:
    """Return the offset ranges of transactions, from their first offsets and their markers.

    Both arguments are pairs (producer id, offset); `markers` must be sorted by offset. A
    transaction without a marker gets a range that does not end.
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
