"""Comparison of a segment's sparse indexes with its batches, in one pass over both.

Entries and batches are both sorted, so each batch is compared with the next entries; none is looked
up. As in Apache Kafka's own tool, an entry of `.index` names the position of a batch and its last
offset; one of `.timeindex` the highest timestamp so far and the last offset of the batch that has
it. Zeros at a file's end are Apache Kafka's preallocation.

Source: Kafka's `DumpLogSegments`, `OffsetIndex` and `TimeIndex`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from penstock.records import BatchHeader
from penstock.storage.formats.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES

OFFSET_ENTRIES: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
TIME_ENTRIES: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


def entries_of(data: bytes, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the complete entries of an index file, without zeros at its end."""
    found = np.frombuffer(data, kind, len(data) // kind.itemsize)
    used = np.flatnonzero(found.view(np.uint8).reshape(len(found), kind.itemsize).any(axis=1))
    return found[: used[-1] + 1] if len(used) else found[:0]


class IndexCheck:
    """Check of one segment's indexes; call `batch` for each of its batches, and then `end`.

    Both methods yield errors: suffix of the file, byte position of the entry, and description.
    """

    def __init__(self, base_offset: int, offsets: bytes, times: bytes) -> None:
        self._base = base_offset
        self._sizes = len(offsets), len(times)
        self._offsets: list[tuple[int, int]] = entries_of(offsets, OFFSET_ENTRIES).tolist()
        self._times: list[tuple[int, int]] = entries_of(times, TIME_ENTRIES).tolist()
        self._offset_at = self._time_at = 0
        self._highest = self._last_time = -1
        self._skipped = False

    def __len__(self) -> int:
        return len(self._offsets) + len(self._times)

    def skip(self) -> None:
        """Ignore the entries before the next batch, because their batches are unreadable."""
        self._skipped = True

    def _resume(self, position: int, header: BatchHeader) -> None:
        self._skipped = False
        while self._offset_at < len(self._offsets) and self._offsets[self._offset_at][1] < position:
            self._offset_at += 1
        while (
            self._time_at < len(self._times)
            and self._base + self._times[self._time_at][1] < header.base_offset
        ):
            self._highest = max(self._highest, self._times[self._time_at][0])
            self._time_at += 1

    def batch(self, position: int, header: BatchHeader) -> Iterator[tuple[str, int, str]]:
        if self._skipped:
            self._resume(position, header)
        self._highest = max(self._highest, header.max_timestamp)
        while self._offset_at < len(self._offsets):
            offset, entry_position = self._offsets[self._offset_at]
            if entry_position > position:
                break
            if (self._base + offset, entry_position) != (header.last_offset, position):
                yield self._wrong_offset(header, position)
            self._offset_at += 1
        while self._time_at < len(self._times):
            timestamp, offset = self._times[self._time_at]
            if self._base + offset > header.last_offset:
                break
            if (
                self._base + offset != header.last_offset
                or not header.max_timestamp == timestamp == self._highest
                or timestamp <= self._last_time
            ):
                yield self._wrong_time(header)
            self._last_time = timestamp
            self._time_at += 1

    def _wrong_offset(self, header: BatchHeader, position: int) -> tuple[str, int, str]:
        offset, entry_position = self._offsets[self._offset_at]
        reason = (
            f"the entry states offset {self._base + offset} at position {entry_position}, but the"
            f" batch at position {position} ends with offset {header.last_offset}"
        )
        return ".index", self._offset_at * OFFSET_ENTRY_BYTES, reason

    def _wrong_time(self, header: BatchHeader) -> tuple[str, int, str]:
        timestamp, offset = self._times[self._time_at]
        reason = (
            f"the entry states timestamp {timestamp} at offset {self._base + offset}, but the batch"
            f" that ends with offset {header.last_offset} has {header.max_timestamp}, the highest"
            f" timestamp so far is {self._highest}, and the previous entry has {self._last_time}"
        )
        return ".timeindex", self._time_at * TIME_ENTRY_BYTES, reason

    def end(self, end_position: int) -> Iterator[tuple[str, int, str]]:
        """Yield errors for entries after the last batch."""
        if self._skipped:
            return
        left = len(self._offsets) - self._offset_at
        if left:
            offset, position = self._offsets[self._offset_at]
            yield (
                ".index",
                self._offset_at * OFFSET_ENTRY_BYTES,
                (
                    f"{left} entries, the first for offset {self._base + offset} at position"
                    f" {position}, point beyond the batches, which end at {end_position}"
                ),
            )
        left = len(self._times) - self._time_at
        if left:
            timestamp, offset = self._times[self._time_at]
            yield (
                ".timeindex",
                self._time_at * TIME_ENTRY_BYTES,
                (
                    f"{left} entries, the first for timestamp {timestamp} at offset"
                    f" {self._base + offset}, are beyond the last batch"
                ),
            )
        for suffix, size, entry in (
            (".index", self._sizes[0], OFFSET_ENTRY_BYTES),
            (".timeindex", self._sizes[1], TIME_ENTRY_BYTES),
        ):
            if size % entry:
                reason = f"{size} bytes are not a multiple of the entry size {entry}"
                yield suffix, size - size % entry, reason
