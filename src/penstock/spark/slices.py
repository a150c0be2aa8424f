"""What a task gets: slices, each one run of bytes with the offsets wanted from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.control.batch_index.values import DisklessExtent

REQUEST_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Offsets [start, end) of a partition, and the bytes that hold them.

    `path` is None when no file is known: the broker is asked for the records then, as it is when
    the file cannot be read from where the task runs.
    """

    topic: str
    partition: int
    start: int
    end: int
    size_bytes: int
    path: str | None = None
    position: int = 0
    base_offset: int = -1
    store: str | None = None
    extents: tuple[DisklessExtent, ...] = ()
    """Of a diskless partition, instead of a path: the store's URL, and adjacent extents of one
    object in it that hold the offsets."""

    @property
    def load_bytes(self) -> int:
        """What it counts when work is shared out: a request to a store has its price too."""
        return self.size_bytes if self.store is None else max(self.size_bytes, REQUEST_BYTES)


class Task(InputPartition):
    """The work of one Spark task: slices, read in order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple(slices))

    @property
    def slices(self) -> tuple[Slice, ...]:
        value: tuple[Slice, ...] = self.value
        return value
