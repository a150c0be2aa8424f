"""Short-lived cache of extents, from commits of this broker and lookups in the control plane.

With it, a consumer at the end of the log needs no lookup, and a lagging consumer needs one lookup
for many fetches. An extent never changes. It may be replaced by a sealed segment of the same
offsets, or dropped by retention. Its object stays for a grace period that is longer than the age of
cache entries. The cache is bounded in bytes and age; the oldest entries are dropped first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from penstock.control.batch_index.values import PartitionKey
from penstock.records.extents import Extent

EXTENT_OVERHEAD_BYTES: Final = 400
"""Memory of a cached extent in addition to its layout and key."""

Learned = tuple[Extent, float]
_COMPACT_FROM: Final = 1024


class _Known:
    __slots__ = ("bases", "extents")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.extents: dict[int, Learned] = {}


class Coordinates:
    """The cache of extents, by partition and offset. Times are seconds of a monotonic clock."""

    __slots__ = ("_age_seconds", "_max_bytes", "_order", "_partitions", "size_bytes")

    def __init__(self, *, max_bytes: int, age_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._age_seconds = age_seconds
        self._partitions: dict[PartitionKey, _Known] = {}
        self._order: deque[tuple[PartitionKey, int, float]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(len(known.bases) for known in self._partitions.values())

    def add(self, key: PartitionKey, extents: Iterable[Extent], now: float) -> None:
        """Add extents of a partition, and drop cached extents that they overlap."""
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = _Known()
        for extent in extents:
            self._forget_overlapped(known, extent)
            base = extent.base_offset
            bases = known.bases
            if not bases or bases[-1] < base:
                bases.append(base)
            else:
                bases.insert(bisect_left(bases, base), base)
            known.extents[base] = (extent, now)
            self._order.append((key, base, now))
            self.size_bytes += weight(extent)
        self._evict(now)

    def _forget_overlapped(self, known: _Known, extent: Extent) -> None:
        bases = known.bases
        first = max(0, bisect_right(bases, extent.base_offset) - 1)
        last = bisect_left(bases, extent.next_offset)
        for base in bases[first:last]:
            old, _ = known.extents[base]
            if old.next_offset > extent.base_offset:
                self._forget(known, base)

    def _forget(self, known: _Known, base: int) -> None:
        extent, _ = known.extents.pop(base)
        del known.bases[bisect_left(known.bases, base)]
        self.size_bytes -= weight(extent)

    def _evict(self, now: float) -> None:
        order, oldest = self._order, now - self._age_seconds
        while order and (
            order[0][2] < oldest
            or self.size_bytes > self._max_bytes
            or len(order) > max(_COMPACT_FROM, 2 * self._max_bytes // EXTENT_OVERHEAD_BYTES)
        ):
            key, base, learned = order.popleft()
            known = self._partitions.get(key)
            if known is None:
                continue
            found = known.extents.get(base)
            if found is not None and found[1] == learned:
                self._forget(known, base)
                if not known.bases:
                    del self._partitions[key]

    def drop(self, key: PartitionKey) -> None:
        """Drop all extents of a partition, because it was deleted or an extent was outdated."""
        known = self._partitions.pop(key, None)
        if known is not None:
            self.size_bytes -= sum(weight(extent) for extent, _ in known.extents.values())

    def find(self, key: PartitionKey, offset: int, max_bytes: int, now: float) -> list[Extent]:
        """Return the cached extents from `offset` on, without a gap.

        Returns the extent that holds the offset, and further ones of up to about `max_bytes`.
        Returns an empty list if the first extent is missing or too old.
        """
        known = self._partitions.get(key)
        if known is None:
            return []
        found: list[Extent] = []
        place = bisect_right(known.bases, offset) - 1
        size_bytes, oldest = 0, now - self._age_seconds
        while 0 <= place < len(known.bases) and size_bytes < max_bytes:
            extent, learned = known.extents[known.bases[place]]
            if learned < oldest or not extent.base_offset <= offset < extent.next_offset:
                break
            found.append(extent)
            size_bytes += extent.size_bytes if len(found) > 1 else 0
            offset = extent.next_offset
            place += 1
        return found


def weight(extent: Extent) -> int:
    return EXTENT_OVERHEAD_BYTES + len(extent.layout) + len(extent.key)
