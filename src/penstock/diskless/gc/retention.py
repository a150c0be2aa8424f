"""Retention of diskless topics: which partitions to check, and which limits to apply.

The sizes of many partitions are read in one call, so every pass applies `retention.bytes`. The age
of the oldest records takes one call per partition. `retention.ms` is therefore applied once per
hundredth of its value, and at most once per pass. Extents below a log start that DeleteRecords
raised are dropped in every pass.

A pass drops rows of the batch index. The sweeper later deletes objects without extents.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.system import Clock
from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.batch_index.values import PartitionKey, Watermarks
from penstock.diskless.gc.counters import CollectionCounters
from penstock.diskless.settings import WATERMARKS_PER_CALL_MAX, DisklessSettings

RETAINED_EXTENTS_MAX: Final = 1_000
"""Extents that one call drops from a partition."""
RETENTION_CALLS_MAX: Final = 1_000
"""Calls for one partition in one pass."""
FORGOTTEN_PARTITIONS_MAX: Final = 1_000
"""Rows of deleted topics that one call deletes."""
FORGOTTEN_PRODUCERS_MAX: Final = 10_000
"""Idle producers that one call deletes."""
FORGET_CALLS_MAX: Final = 100
"""Calls of each of these two kinds in one pass."""

logger = logging.getLogger(__name__)

_LOOKS_PER_LIFE: Final = 100


class RetentionTarget(NamedTuple):
    """A partition, with its topic's `retention.ms` and `retention.bytes`. -1 means no limit."""

    topic_id: UUID
    partition: int
    retention_ms: int
    retention_bytes: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class Retain(NamedTuple):
    """Arguments of a call of the control plane's `retain`. None omits a rule."""

    target: RetentionTarget
    before_timestamp: int | None
    max_bytes: int | None


class RetentionCore:
    """The core of retention: records when each partition was checked. Times are the broker's."""

    def __init__(self, *, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._looked_ms: dict[PartitionKey, int] = {}
        self._starts: dict[PartitionKey, int] = {}
        """Log starts, by partition, below which all extents have been dropped."""

    def begin(self, targets: Iterable[RetentionTarget]) -> list[RetentionTarget]:
        there = list(targets)
        keys = {item.key for item in there}
        for remembered in (self._looked_ms, self._starts):
            for key in [key for key in remembered if key not in keys]:
                del remembered[key]
        return there

    def calls(
        self, targets: Sequence[RetentionTarget], watermarks: Sequence[Watermarks], now_ms: int
    ) -> list[Retain]:
        """Return the calls that partitions need now, given their watermarks."""
        calls: list[Retain] = []
        for target, mark in zip(targets, watermarks, strict=True):
            moved = mark.log_start_offset != self._starts.get(target.key, 0)
            filled = mark.log_start_offset < mark.high_watermark
            by_size = filled and 0 <= target.retention_bytes < mark.size_bytes
            by_time = filled and self._time_is_due(target, now_ms)
            if by_time:
                self._looked_ms[target.key] = now_ms
            if moved or by_size or by_time:
                before_timestamp = max(0, now_ms - target.retention_ms) if by_time else None
                max_bytes = target.retention_bytes if by_size else None
                calls.append(Retain(target, before_timestamp, max_bytes))
        return calls

    def done(self, target: RetentionTarget, watermarks: Watermarks) -> None:
        self._starts[target.key] = watermarks.log_start_offset

    def failed(self, target: RetentionTarget) -> None:
        self._looked_ms.pop(target.key, None)
        self._starts.pop(target.key, None)

    def _time_is_due(self, target: RetentionTarget, now_ms: int) -> bool:
        if target.retention_ms < 0:
            return False
        looked_ms = self._looked_ms.get(target.key)
        if looked_ms is None or looked_ms > now_ms:
            return True
        return now_ms - looked_ms >= max(target.retention_ms // _LOOKS_PER_LIFE, self._interval_ms)


class Retention:
    """The shell of retention.

    It reads partitions from `targets`, and passes their new watermarks to `on_watermarks`.
    """

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        clock: Clock,
        targets: Callable[[], Iterable[RetentionTarget]],
        on_watermarks: Callable[[PartitionKey, Watermarks], None],
        counters: CollectionCounters,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._clock = clock
        self._targets = targets
        self._on_watermarks = on_watermarks
        self._counters = counters
        self._core = RetentionCore(interval_ms=settings.retention_interval_ms)

    async def retain(self) -> None:
        """Run one pass over all partitions, then over rows of deleted topics and idle producers.

        A partition whose call fails is retried in the next pass, and the others continue.

        Raises:
            PenstockError: the control plane failed in a call for many partitions.
        """
        wanted = self._core.begin(self._targets())
        for first in range(0, len(wanted), WATERMARKS_PER_CALL_MAX):
            targets = wanted[first : first + WATERMARKS_PER_CALL_MAX]
            watermarks = await self._plane.watermarks([target.key for target in targets])
            for call in self._core.calls(targets, watermarks, self._clock.now_ms()):
                await self._retain_one(call)
        await self._forget()

    async def _retain_one(self, call: Retain) -> None:
        target = call.target
        try:
            for _ in range(RETENTION_CALLS_MAX):
                retained = await self._plane.retain(
                    target.topic_id,
                    target.partition,
                    before_timestamp=call.before_timestamp,
                    max_bytes=call.max_bytes,
                    limit=RETAINED_EXTENTS_MAX,
                )
                self._counters.dropped_extents += retained.extents_dropped
                self._counters.dropped_bytes += retained.bytes_dropped
                if retained.extents_dropped:
                    self._on_watermarks(target.key, retained.watermarks)
                if not retained.more:
                    self._core.done(target, retained.watermarks)
                    return
            self._core.failed(target)
        except PenstockError as error:
            self._core.failed(target)
            self._counters.retention_failures += 1
            logger.warning(
                "retention of partition %d of topic %s failed: %s",
                target.partition,
                target.topic_id,
                error,
            )

    async def _forget(self) -> None:
        for _ in range(FORGET_CALLS_MAX):
            rows = await self._plane.forget_partitions(limit=FORGOTTEN_PARTITIONS_MAX)
            self._counters.partitions_forgotten += rows
            if not rows:
                break
        idle_ms = self._settings.producer_expiration_ms
        for _ in range(FORGET_CALLS_MAX):
            producers = await self._plane.forget_producers(
                idle_ms=idle_ms, limit=FORGOTTEN_PRODUCERS_MAX
            )
            self._counters.producers_forgotten += producers
            if producers < FORGOTTEN_PRODUCERS_MAX:
                break
