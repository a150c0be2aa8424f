"""What a task gets: slices, each one run of bytes with the offsets wanted from it.

The bytes are those of extents: whole batches that lie together in a file of this machine, or in an
object of a store. Of objects the batch index knows where each batch begins, so those extents are
trimmed to the batches that are wanted; of files the broker is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import InputPartition

from penstock.base.ids import TopicPartition
from penstock.records.aborted import AbortedRange
from penstock.records.extents import Extent

RECORD_BYTES_GUESS: Final = 256
REQUEST_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Offsets [start, end) of a partition, and the bytes that hold them.

    `extents` are adjacent and of one object of the store that the URL `store` names, or the one
    extent of a file where `store` is empty. Without any the broker is asked for the records, as it
    is when the bytes cannot be read from where the task runs. Batches in `aborted` are left out.
    """

    at: TopicPartition
    start: int
    end: int
    store: str = ""
    extents: tuple[Extent, ...] = ()
    aborted: tuple[AbortedRange, ...] = ()

    @property
    def size_bytes(self) -> int:
        if not self.extents:
            return (self.end - self.start) * RECORD_BYTES_GUESS
        return sum(extent.size_bytes for extent in self.extents)

    @property
    def load_bytes(self) -> int:
        """What it counts when work is shared out: a request to a store has its price too."""
        return max(self.size_bytes, REQUEST_BYTES) if self.store else self.size_bytes


class Task(InputPartition):
    """The work of one Spark task: slices, read in order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple(slices))

    @property
    def slices(self) -> tuple[Slice, ...]:
        value: tuple[Slice, ...] = self.value
        return value


def batches_of(extent: Extent) -> npt.NDArray[np.int32]:
    """The bytes and the offsets of each batch, a row per batch."""
    return np.frombuffer(extent.layout, dtype="<i4").reshape(-1, 2)


def trimmed(extent: Extent, start: int, end: int) -> Extent | None:
    """The extent without batches outside of [start, end), as far as they are known.

    None if it holds no offset of the range.
    """
    if start >= end or end <= extent.base_offset or start >= extent.next_offset:
        return None
    whole = start <= extent.base_offset and end >= extent.next_offset
    if whole or not extent.layout:
        return extent
    batches = batches_of(extent)
    after = extent.base_offset + np.cumsum(batches[:, 1], dtype=np.int64)
    first = int(np.searchsorted(after, start, side="right"))
    last = int(np.searchsorted(after, end, side="left")) + 1
    kept = batches[first:last]
    if not len(kept):
        return None
    return extent._replace(
        byte_offset=extent.byte_offset + int(batches[:first, 0].sum(dtype=np.int64)),
        size_bytes=int(kept[:, 0].sum(dtype=np.int64)),
        base_offset=int(after[first] - kept[0, 1]),
        next_offset=int(after[first:last][-1]),
        layout=kept.tobytes(),
    )


def overlapping(ranges: Sequence[AbortedRange], start: int, end: int) -> tuple[AbortedRange, ...]:
    """The ranges that have an offset in [start, end)."""
    return tuple([one for one in ranges if one.first_offset < end and one.last_offset >= start])
