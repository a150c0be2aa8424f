"""Where the records of aborted transactions lie, for readers of committed ones.

A producer has one transaction at a time in a partition, so its aborted ones are ranges of offsets:
from the first batch to the marker, which takes an offset as well. All transactional batches of the
producer in a range are the transaction's.

Source: KIP-98.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

OFFSET_MAX: Final = 2**63 - 1


class AbortedRange(NamedTuple):
    """The batches of a producer from `first_offset` to `last_offset` are of an aborted transaction.

    The ranges of one producer have no offset in common, where they end.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def ranges_until(
    begun: Iterable[tuple[int, int]], markers: Iterable[tuple[int, int]]
) -> tuple[AbortedRange, ...]:
    """Where aborted transactions end, by the markers that are among the batches they are in.

    Both are (producer id, offset); markers come by offset. A transaction whose marker is not there
    lasts longer than the batches.
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
