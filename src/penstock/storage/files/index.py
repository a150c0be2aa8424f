"""`.index` and `.timeindex`: sparse indexes of a segment, in memory exactly as on disk.

Big endian, sorted, no header; offsets are relative to the segment's base offset:

    .index       8 bytes   relative last offset of a batch i32, its position i32
    .timeindex  12 bytes   highest timestamp so far i64, relative last offset of its batch i32

An entry is made for the first batch after each `index.interval.bytes`. The time index gets one
only when the highest timestamp has risen, and a last one when its segment is closed.

Source: Kafka's `OffsetIndex`, `TimeIndex` and `LogSegment.append`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12

_OFFSET: Final = Struct(">ii")
_TIME: Final = Struct(">qi")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")


class Entry(NamedTuple):
    """Entry of `.index`: last offset and position of a batch; -1 and 0 for a segment's start."""

    last_offset: int
    position: int


class TimeEntry(NamedTuple):
    """Entry of `.timeindex`: highest timestamp so far (-1: none), last offset of its batch."""

    timestamp: int
    last_offset: int


class SparseIndex:
    """Offset and time index of one segment. Lookups are O(log n) in the packed bytes."""

    __slots__ = ("base_offset", "offsets", "times")

    def __init__(self, base_offset: int, offsets: bytes = b"", times: bytes = b"") -> None:
        self.base_offset = base_offset
        self.offsets = bytearray(offsets)
        self.times = bytearray(times)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) + len(self.times)

    @property
    def last_timestamp(self) -> int:
        times = self.times
        return _LONG.unpack_from(times, len(times) - TIME_ENTRY_BYTES)[0] if times else -1

    @property
    def last_timestamp_offset(self) -> int:
        """Offset of the newest entry of the time index, -1 without one."""
        if not self.times:
            return -1
        return self.base_offset + int(_INT.unpack_from(self.times, len(self.times) - 4)[0])

    def add_offset(self, last_offset: int, position: int) -> None:
        self.offsets += _OFFSET.pack(last_offset - self.base_offset, position)

    def add_time(self, timestamp: int, offset: int) -> None:
        """Add an entry if the timestamp is higher than the last one's."""
        if timestamp > self.last_timestamp:
            self.times += _TIME.pack(timestamp, offset - self.base_offset)

    @property
    def newest(self) -> Entry:
        return self._entry(len(self.offsets) // OFFSET_ENTRY_BYTES)

    def by_offset(self, offset: int) -> Entry:
        """Return the entry at or before the batch that holds `offset`."""
        relative = offset - self.base_offset
        return self._entry(_bisect(self.offsets, OFFSET_ENTRY_BYTES, _INT, 0, relative))

    def by_position(self, position: int) -> Entry:
        """Return the entry with the greatest position that is not above `position`."""
        return self._entry(_bisect(self.offsets, OFFSET_ENTRY_BYTES, _INT, 4, position))

    def position_behind(self, offset: int, size_bytes: int) -> int:
        """Return a position up to which a reader of `offset` must read to get its whole batch.

        It is that of an indexed batch behind the batch, or `size_bytes` if none is indexed.
        """
        found = _bisect(self.offsets, OFFSET_ENTRY_BYTES, _INT, 0, offset - self.base_offset - 1)
        if (found + 2) * OFFSET_ENTRY_BYTES > len(self.offsets):
            return size_bytes
        return int(_INT.unpack_from(self.offsets, (found + 2) * OFFSET_ENTRY_BYTES - 4)[0])

    def by_time(self, timestamp: int) -> TimeEntry:
        """Return the last entry before the first record at or after `timestamp`."""
        found = _bisect(self.times, TIME_ENTRY_BYTES, _LONG, 0, timestamp - 1)
        if found == 0:
            return TimeEntry(-1, self.base_offset)
        time, relative = _TIME.unpack_from(self.times, (found - 1) * TIME_ENTRY_BYTES)
        return TimeEntry(time, self.base_offset + relative)

    def _entry(self, count: int) -> Entry:
        """Return the last of the first `count` entries; the segment's beginning for 0."""
        if count == 0:
            return Entry(-1, 0)
        relative, position = _OFFSET.unpack_from(self.offsets, (count - 1) * OFFSET_ENTRY_BYTES)
        return Entry(self.base_offset + relative, position)

    def cut(self, next_offset: int, position: int) -> None:
        """Drop entries of batches from byte `position` on, or with offsets from `next_offset` on.

        Both limits are checked, because either field of an entry may be torn.
        """
        last = next_offset - self.base_offset - 1
        kept = min(
            _bisect(self.offsets, OFFSET_ENTRY_BYTES, _INT, 4, position - 1),
            _bisect(self.offsets, OFFSET_ENTRY_BYTES, _INT, 0, last),
        )
        del self.offsets[kept * OFFSET_ENTRY_BYTES :]
        kept = _bisect(self.times, TIME_ENTRY_BYTES, _INT, 8, last)
        del self.times[kept * TIME_ENTRY_BYTES :]

    def doubt(self, size_bytes: int) -> str | None:
        """Return why these entries cannot belong to a segment of `size_bytes`, or None."""
        if len(self.offsets) % OFFSET_ENTRY_BYTES or len(self.times) % TIME_ENTRY_BYTES:
            sizes = f"{len(self.offsets)} and {len(self.times)} bytes"
            return f"the indexes of {sizes} do not end with a complete entry"
        last_offset = last_position = -1
        for offset, position in _OFFSET.iter_unpack(self.offsets):
            if offset <= last_offset or position <= last_position or position >= size_bytes:
                after = f"({last_offset}, {last_position}) in a segment of {size_bytes} bytes"
                return f"offset entry ({offset}, {position}) follows {after}"
            last_offset, last_position = offset, position
        last_time, last_offset = -1, -1
        for time, offset in _TIME.iter_unpack(self.times):
            if time <= last_time or offset < last_offset:
                return f"time entry ({time}, {offset}) follows ({last_time}, {last_offset})"
            last_time, last_offset = time, offset
        return None


def _bisect(entries: bytearray, entry_bytes: int, field: Struct, at: int, value: int) -> int:
    """Return how many entries have a field not above `value`."""
    low, high = 0, len(entries) // entry_bytes
    unpack = field.unpack_from
    while low < high:
        middle = (low + high) // 2
        if unpack(entries, middle * entry_bytes + at)[0] <= value:
            low = middle + 1
        else:
            high = middle
    return low
