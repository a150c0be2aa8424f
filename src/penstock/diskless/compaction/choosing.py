"""Selection of the extents of a diskless partition that a compaction pass takes: a pure core.

As in a local log, extents below the clean offset were compacted before; the others are dirty. A
pass takes all extents up to a bound, which is never above the last stable offset:

| an extent                                                | is                                   |
|----------------------------------------------------------|--------------------------------------|
| with a record younger than `min.compaction.lag.ms`       | the bound, with all behind it        |
| younger than what consolidation takes, and all behind it | as the segment that a log writes to: |
|                                                          | not taken                            |
| followed by an older one                                 | as old: logs are in append order     |
| without a timestamp: markers, or no records              | as old as the one before             |

Source: Kafka's `LogCleanerManager` (`cleanableOffsets`, `maxCompactionDelay`); KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.control.batch_index.values import PartitionKey
from penstock.diskless.settings import RUN_EXTENTS_MAX
from penstock.records.extents import Extent


class CompactionTarget(NamedTuple):
    """A partition of a compacted topic, and its topic's settings for compaction."""

    topic_id: UUID
    partition: int
    min_lag_ms: int
    max_lag_ms: int
    dirty_ratio: float
    delete_retention_ms: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class Cleanable(NamedTuple):
    """The extents that a pass may take, by offset, including clean ones."""

    extents: tuple[Extent, ...]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether a dirty extent is older than `max.compaction.lag.ms`."""

    @property
    def end_offset(self) -> int:
        return self.extents[-1].next_offset

    def is_due(self, dirty_ratio: float) -> bool:
        """Return whether the share of dirty bytes, or their age, requires a pass."""
        if not self.dirty_bytes:
            return False
        total = self.clean_bytes + self.dirty_bytes
        return self.overdue or self.dirty_bytes / total > dirty_ratio

    @property
    def dirty(self) -> tuple[Extent, ...]:
        return tuple([extent for extent in self.extents if extent.next_offset > self.first_dirty])


def cleanable(
    extents: Sequence[Extent],
    target: CompactionTarget,
    *,
    clean_offset: int,
    stable_offset: int,
    min_age_ms: int,
    now_ms: int,
) -> Cleanable:
    """Return the leading extents that a pass may take; consolidation is over after `min_age_ms`."""
    count, newest = 0, now_ms - target.min_lag_ms
    before = now_ms - min(min_age_ms, target.max_lag_ms)
    for place, extent in enumerate(extents, 1):
        if extent.next_offset > stable_offset:
            break
        if target.min_lag_ms and extent.max_timestamp > newest:
            break
        timeless = extent.max_timestamp < 0 and count == place - 1
        if timeless or 0 <= extent.max_timestamp <= before:
            count = place
    taken = tuple(extents[:count])
    dirty = [extent for extent in taken if extent.next_offset > clean_offset]
    dirty_bytes = sum([extent.size_bytes for extent in dirty])
    overdue = [extent for extent in dirty if 0 <= extent.max_timestamp < now_ms - target.max_lag_ms]
    clean_bytes = sum([extent.size_bytes for extent in taken]) - dirty_bytes
    return Cleanable(taken, clean_offset, clean_bytes, dirty_bytes, bool(overdue))


def groups(
    extents: Sequence[Extent], end_offset: int, segment_bytes: int
) -> Iterator[list[Extent]]:
    """Group adjacent extents below an offset, one group per future segment."""
    group: list[Extent] = []
    size_bytes = 0
    for extent in extents:
        if extent.base_offset >= end_offset:
            break
        size_bytes += extent.size_bytes
        if group and (size_bytes > segment_bytes or len(group) == RUN_EXTENTS_MAX):
            yield group
            group, size_bytes = [], extent.size_bytes
        group.append(extent)
    if group:
        yield group
