"""Selection of the extents that a compaction pass over a diskless partition rewrites. A pure core.

As in a local log, extents below the clean offset have been compacted before, and the others are
dirty. A pass takes the leading extents of the partition up to a bound. Extents beyond the bound
wait for a later pass. The bound is the first of these:

| bound                                                        | reason                           |
|--------------------------------------------------------------|----------------------------------|
| an extent that ends above the last stable offset             | a transaction may be open        |
| an extent with a record within `min.compaction.lag.ms`       | the topic's setting              |
| extents that are all too young for consolidation             | like a log's active segment      |

Consolidation and `max.compaction.lag.ms` both have an age at which extents are old enough; the
lower one counts. An extent followed by an old one counts as old, because logs are in append order.
An extent without timestamps, which has only markers or no records, is as old as the one before it.

Source: Kafka's `LogCleanerManager` (`cleanableOffsets`, `maxCompactionDelay`); KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.control.values.diskless import PartitionKey
from penstock.diskless.settings import RUN_EXTENTS_MAX
from penstock.records.extents import Extent


class CompactionTarget(NamedTuple):
    """A partition of a compacted topic, with the topic's compaction settings."""

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
    """The extents that a pass may rewrite, in the order of offsets, clean ones included."""

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
    """Return the leading extents that a pass may rewrite.

    `min_age_ms` is the age from which consolidation takes extents.
    """
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
    """Yield groups of adjacent extents below an offset. Each group becomes one segment."""
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
