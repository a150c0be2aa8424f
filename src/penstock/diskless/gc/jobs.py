"""The garbage collection jobs of a broker's timers. Any number of brokers may run them at once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.metrics import Sample
from penstock.base.system import Clock
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.values.diskless import MarkedObject, PartitionKey, Watermarks
from penstock.diskless.gc.id_markers import CollectionCounters, ObjectIdMarkers
from penstock.diskless.gc.orphans import OrphanCollector
from penstock.diskless.identity import StoreGuard
from penstock.diskless.settings import WATERMARKS_PER_CALL_MAX, DisklessSettings
from penstock.objects import ObjectStore

# The sweeper: deletes unused objects, in three steps that a crash may interrupt.
#
# | step                                       | a crash after it leaves                           |
# |--------------------------------------------|---------------------------------------------------|
# | mark: set unused rows to DELETING          | marked rows, which the next pass deletes          |
# | delete: delete the objects of marked rows  | rows without objects, which the next pass forgets |
# | forget: delete the marked rows             | nothing                                           |
#
# The three steps are repeated while there are more objects. Marking is a compare-and-set: a later
# commit of a marked object is rejected, so no committed object is deleted. Several brokers may
# sweep at once, because deletions are idempotent.


SWEPT_OBJECTS_MAX: Final = 1_000
"""Objects that one repetition of the three steps deletes."""
SWEEP_STEPS_MAX: Final = 100
"""Repetitions of the three steps in one pass."""

logger = logging.getLogger(__name__)


class MarkForDeletion(NamedTuple):
    """Effect: mark up to `limit` unused objects. Pass all marked objects to `condemned`."""

    limit: int


class DeleteObjects(NamedTuple):
    """Effect: delete objects from the store. Call `deleted` afterwards."""

    keys: list[str]


class ForgetObjects(NamedTuple):
    """Effect: delete the rows of objects. Call `forgotten` afterwards."""

    object_ids: list[int]


SweepStep = MarkForDeletion | DeleteObjects | ForgetObjects


class Sweep:
    """The core of one pass of the sweeper, which deletes unused objects.

    Each method returns the next effect, or None at the end of the pass.
    """

    def __init__(
        self, *, objects_max: int = SWEPT_OBJECTS_MAX, rounds_max: int = SWEEP_STEPS_MAX
    ) -> None:
        self._objects_max = objects_max
        self._rounds_left = rounds_max
        self._objects: Sequence[MarkedObject] = ()
        self.swept_objects = self.swept_bytes = 0

    def begin(self) -> SweepStep | None:
        if not self._rounds_left:
            return None
        self._rounds_left -= 1
        return MarkForDeletion(self._objects_max)

    def condemned(self, objects: Sequence[MarkedObject]) -> SweepStep | None:
        self._objects = objects
        return DeleteObjects([item.key for item in objects]) if objects else None

    def deleted(self) -> SweepStep | None:
        return ForgetObjects([item.object_id for item in self._objects])

    def forgotten(self) -> SweepStep | None:
        objects, self._objects = self._objects, ()
        self.swept_objects += len(objects)
        self.swept_bytes += sum([item.size_bytes for item in objects])
        return self.begin() if len(objects) >= self._objects_max else None


class Sweeper:
    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        id_markers: ObjectIdMarkers,
        counters: CollectionCounters,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._store = store
        self._id_markers = id_markers
        self._counters = counters

    async def sweep(self) -> int:
        """Delete unused objects from the store; return their number.

        Raises:
            StoreMismatch: the store is not the control plane's; nothing was deleted.
            DatabaseRestored: the database was restored and lacks rows; nothing was deleted.
            PenstockError: the store or the control plane failed; the next pass continues.
        """
        await self._id_markers.check()
        core = Sweep()
        try:
            step = core.begin()
            while step is not None:
                step = await self._perform(core, step)
        finally:
            self._counters.swept_objects += core.swept_objects
            self._counters.swept_bytes += core.swept_bytes
        return core.swept_objects

    async def _perform(self, core: Sweep, step: SweepStep) -> SweepStep | None:
        settings = self._settings
        match step:
            case MarkForDeletion(limit):
                objects = await self._plane.mark_for_deletion(
                    pending_grace_ms=settings.sweep_pending_grace_ms,
                    unreferenced_grace_ms=settings.sweep_unreferenced_grace_ms,
                    limit=limit,
                )
                return core.condemned(objects)
            case DeleteObjects(keys):
                await self._store.delete(keys)
                return core.deleted()
            case ForgetObjects(object_ids):
                await self._plane.forget_objects(object_ids)
                return core.forgotten()


# Retention of diskless topics: which partitions to check, and which limits to apply.
#
# The sizes of many partitions are read in one call, so every pass applies `retention.bytes`. The
# age of the oldest records takes one call per partition. `retention.ms` is therefore applied once
# per hundredth of its value, and at most once per pass. Extents below a log start that
# DeleteRecords raised are dropped in every pass.
#
# A pass drops rows of the batch index. The sweeper later deletes objects without extents.


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


class Job(NamedTuple):
    """A periodic job. `run` raises nothing and may be cancelled; its runs must not overlap."""

    name: str
    interval_ms: int
    run: Callable[[], Awaitable[None]]


class Collection:
    """The garbage collection of one broker: sweeper, retention, orphans and object-id markers."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        guard: StoreGuard,
        clock: Clock,
        targets: Callable[[], Iterable[RetentionTarget]],
        on_watermarks: Callable[[PartitionKey, Watermarks], None],
    ) -> None:
        self.counters = counters = CollectionCounters()
        self._settings = settings
        self.id_markers = id_markers = ObjectIdMarkers(
            plane=plane, store=store, guard=guard, counters=counters
        )
        self.sweeper = Sweeper(
            settings, plane=plane, store=store, id_markers=id_markers, counters=counters
        )
        self.orphans = OrphanCollector(
            settings, plane=plane, store=store, id_markers=id_markers, counters=counters
        )
        self.retention = Retention(
            settings,
            plane=plane,
            clock=clock,
            targets=targets,
            on_watermarks=on_watermarks,
            counters=counters,
        )

    async def start(self) -> None:
        """Check the store, before the broker serves diskless topics.

        Raises:
            StoreMismatch, DatabaseRestored: the broker must not serve diskless topics.
        """
        await self.id_markers.claim()

    def jobs(self) -> list[Job]:
        settings = self._settings
        jobs = [
            self._job("mark", settings.mark_interval_ms, self.id_markers.note),
            self._job("sweep", settings.sweep_interval_ms, self.sweeper.sweep),
            self._job("retention", settings.retention_interval_ms, self.retention.retain),
        ]
        if settings.orphan_interval_ms:
            jobs.append(self._job("orphans", settings.orphan_interval_ms, self.orphans.collect))
        return jobs

    def samples(self) -> Iterator[Sample]:
        return self.counters.samples()

    def _job(self, name: str, interval_ms: int, work: Callable[[], Awaitable[object]]) -> Job:
        async def run() -> None:
            try:
                await work()
            except PenstockError as error:
                self.counters.failures += 1
                logger.error("job %s of diskless topics failed: %s", name, error)
            except Exception:
                self.counters.failures += 1
                logger.exception("job %s of diskless topics failed", name)

        return Job(name, interval_ms, run)
