"""Slices: runs of bytes for a task to read, each with the offsets to select.

The bytes are adjacent whole batches in a local file or in an object, as extents describe them.
Extents of an object are trimmed to the selected batches. For a file, the broker returns new extents
when a slice is cut.
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
    """Offsets [start, end) of a partition, and the location of the bytes that contain them.

    If `store` is set, `extents` are adjacent and in one object of the store with that URL. If it is
    empty, there is one extent, of a file. Without extents, and if the bytes cannot be read, the
    records are fetched from the broker. Batches in `aborted` are skipped. With `signed`, the only
    extent is read as a whole through a signed URL.
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
        """Cost of reading the slice in bytes; for a store at least that of one request."""
        return max(self.size_bytes, REQUEST_BYTES) if self.store else self.size_bytes


class Task(InputPartition):
    """Input of one Spark task: slices, read in order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple(slices))

    @property
    def slices(self) -> tuple[Slice, ...]:
        value: tuple[Slice, ...] = self.value
        return value


def overlapping(ranges: Sequence[AbortedRange], start: int, end: int) -> tuple[AbortedRange, ...]:
    """Return the ranges of aborted transactions that have an offset in [start, end)."""
    return tuple(
        [range_ for range_ in ranges if range_.first_offset < end and range_.last_offset >= start]
    )
