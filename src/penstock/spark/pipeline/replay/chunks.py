"""Offsets cut into chunks, by arithmetic alone: the same cut whenever it is asked for.

A chunk takes the same share of every partition, so that chunks follow the log's course.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.pipeline.frames import Ranges


def records_in(ranges: Ranges) -> int:
    """How many offsets there are."""
    return sum(end - first for partitions in ranges.values() for first, end in partitions.values())


def chunk_count(ranges: Ranges, records: int) -> int:
    """How many chunks of about so many records there are; one may be empty, none is larger
    than `records` by more than one for each partition."""
    return -(-records_in(ranges) // max(1, records))


def chunk(ranges: Ranges, number: int, count: int) -> dict[str, dict[str, tuple[int, int]]]:
    """The offsets of chunk `number` of `count`."""

    def cut(first: int, end: int) -> tuple[int, int]:
        span = end - first
        return first + span * number // count, first + span * (number + 1) // count

    return {
        topic: {at: cut(*bounds) for at, bounds in partitions.items()}
        for topic, partitions in ranges.items()
    }
