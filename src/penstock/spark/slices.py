"""Slices: runs of bytes for a task, each with its selected offsets.

The bytes are those of extents: adjacent whole batches in a file of this machine, or in an object.
Extents of objects are trimmed to the selected batches; for files the broker is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.base.ids import TopicPartition
from penstock.records.aborted import AbortedRange
from penstock.records.extents import Extent, SignedRange

RECORD_BYTES_GUESS: Final = 256
REQUEST_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Offsets [start, end) of a partition, and the bytes that hold them.

    `extents` are adjacent and of one object of the store with URL `store`, or the one extent of a
    file if `store` is empty. Without any the broker serves the records, as it does if the bytes are
    unreadable. Batches in `aborted` are left out. With `signed` the one extent is a range that is
    read by a URL, as a whole.
    """

    at: TopicPartition
    start: int
    end: int
    store: str = ""
    extents: tuple[Extent, ...] = ()
    aborted: tuple[AbortedRange, ...] = ()
    signed: SignedRange | None = None

    @property
    def size_bytes(self) -> int:
        if not self.extents:
            return (self.end - self.start) * RECORD_BYTES_GUESS
        return sum(extent.size_bytes for extent in self.extents)

    @property
    def load_bytes(self) -> int:
        """Cost of the slice in bytes, with the price of a request to a store."""
        return max(self.size_bytes, REQUEST_BYTES) if self.store else self.size_bytes


class Task(InputPartition):
    """Work of one Spark task: slices, read in order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple(slices))

    @property
    def slices(self) -> tuple[Slice, ...]:
        value: tuple[Slice, ...] = self.value
        return value


def overlapping(ranges: Sequence[AbortedRange], start: int, end: int) -> tuple[AbortedRange, ...]:
    """Return the ranges that have an offset in [start, end)."""
    return tuple(
        [range_ for range_ in ranges if range_.first_offset < end and range_.last_offset >= start]
    )
