"""Division of offsets into chunks; each chunk has the same share of every partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.pipeline.frames import Ranges


def records_in(ranges: Ranges) -> int:
    return sum(end - first for partitions in ranges.values() for first, end in partitions.values())


def chunk_count(ranges: Ranges, records: int) -> int:
    """Return the number of chunks if a chunk has at most about `records` offsets."""
    return -(-records_in(ranges) // max(1, records))


def chunk(ranges: Ranges, number: int, count: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the offsets [first, end) of chunk `number` (from 0) of `count`."""

    def cut(first: int, end: int) -> tuple[int, int]:
        span = end - first
        return first + span * number // count, first + span * (number + 1) // count

    return {
        topic: {at: cut(*bounds) for at, bounds in partitions.items()}
        for topic, partitions in ranges.items()
    }
