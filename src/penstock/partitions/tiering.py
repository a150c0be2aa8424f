"""Tiered storage: closed segments of local partitions are copied to the archive and read there.

The *archive* is an object store. The archived part of a partition is called its *tiers*.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import CorruptError, PenstockError
from penstock.base.pause import pause
from penstock.control.rules.tiers import REMOTE_CONFIG
from penstock.control.values.tiers import ABORTED, INDEX, LOG, TIME_INDEX, TierLease, TierSegment
from penstock.objects.rate_limit import TokenBucket
from penstock.objects.store_path import Hedging, Pool, StorePath
from penstock.partitions.local import LocalPartition
from penstock.partitions.tiers.core import Ask, Copy, Cut, Effect, Look, Policy, Retain
from penstock.partitions.tiers.fetching import TierFetcher, TierSource
from penstock.partitions.tiers.part import TieredPart, TierParts, TierReader
from penstock.partitions.tiers.settings import TierCounters, TierSettings
from penstock.storage.log.tiering import SegmentCopy

if TYPE_CHECKING:
    from penstock.base.ids import TopicPartition
    from penstock.base.metrics import Sample
    from penstock.base.system import Clock, Randomness
    from penstock.control import ControlPlane, Topic
    from penstock.diskless.topics.service import DisklessService
    from penstock.objects import ObjectStore
    from penstock.partitions.port import Partition


# Copies of segments to the archive, and deletion of archived ones, as `TierCore` determines.
#
#     reserve keys ──> verify and upload segment ──> check object ──> upload indexes ──> commit row
#
# Keys are reserved before the first upload and never reused, so the sweeper finds and deletes the
# leftovers of a crash or an error. The row is committed when all objects are written and checked.
# The commit is a compare-and-set: one of two leaders wins, and the sweeper deletes the objects of
# the other. Local retention removes local files after the commit.
#
# Source: KIP-405; `diskless/consolidation.py`, which writes segments in the same way.


class CopyTruncated(CorruptError):
    """Archived object whose content differs from what was written."""

    code: ClassVar[str] = "kafka_storage_error"


STEPS_PER_LOOK_MAX: Final = 1_000
"""Maximum number of effects for one partition before other partitions have their turn."""

logger = logging.getLogger(__name__)

_RENEW_SECONDS: Final = 60.0
"""Interval, in seconds, at which the leases of a long upload's keys are renewed."""
_TAIL_BYTES: Final = 64 << 10
"""Bytes at the end of an object that are read back before the commit."""


class Copier:
    """Executor of a partition's tiering effects; belongs to the event loop."""

    def __init__(
        self,
        settings: TierSettings,
        *,
        plane: ControlPlane,
        store: Callable[[], Awaitable[ObjectStore]],
        clock: Clock,
        counters: TierCounters,
    ) -> None:
        """Create a copier; `store` returns a client of the archive, or raises PenstockError."""
        self._settings = settings
        self._plane = plane
        self._store = store
        self._clock = clock
        self._counters = counters
        rate = settings.manager_copy_max_bytes_per_second
        self._limit = TokenBucket(rate, now=clock.monotonic())

    async def work(self, partition: LocalPartition, part: TieredPart) -> None:
        """Perform all due effects of a partition, while this broker leads it."""
        for _ in range(STEPS_PER_LOOK_MAX):
            if not partition.leads or part.log.closed is not None:
                return
            try:
                effect = part.core.step(
                    look_at(partition, part),
                    policy_of(partition, self._settings),
                    self._clock.now_ms(),
                )
                if effect is None:
                    return
                await self._perform(partition, part, effect)
            except (PenstockError, OSError) as error:
                self._counters.copy_errors += 1
                part.core.failed(str(error), self._clock.now_ms())
                logger.warning("%s: a tiering step failed, retrying: %s", part.name, error)
                return

    async def _perform(self, partition: LocalPartition, part: TieredPart, effect: Effect) -> None:
        if isinstance(effect, Ask):
            epoch = partition.leader_epoch
            found = await self._plane.tier_bounds([part.key])
            part.learned(found.get(part.key), epoch)
        elif isinstance(effect, Copy):
            await self._copy(partition, part, effect)
        elif isinstance(effect, (Cut, Retain)):
            await self._delete(partition, part, effect)
        else:
            part.log.state.roll()

    async def _delete(
        self, partition: LocalPartition, part: TieredPart, effect: Cut | Retain
    ) -> None:
        epoch = partition.leader_epoch
        if isinstance(effect, Cut):
            logger.error(
                "%s: an unclean election discarded records from offset %d on; deleting them from"
                " the archive", part.name, effect.offset,
            )  # fmt: skip
            dropped = await self._plane.cut_tiers(
                part.key, leader_epoch=epoch, offset=effect.offset
            )
        else:
            dropped = await self._plane.retain_tiers(
                part.key,
                leader_epoch=epoch,
                before_timestamp=effect.before_timestamp,
                max_bytes=effect.max_bytes,
            )
        part.core.dropped(effect, dropped, self._clock.now_ms())
        part.changed()
        if dropped is not None:
            self._counters.deleted_segments += dropped.segments
            self._counters.deleted_bytes += dropped.size_bytes
            start = min(dropped.bounds.log_start_offset, part.log.durable_offset)
            if start > part.log.log_start_offset:
                part.log.delete_records(start)

    async def _copy(self, partition: LocalPartition, part: TieredPart, effect: Copy) -> None:
        log, base = part.log, effect.base_offset
        source, epoch = effect.segment, partition.leader_epoch
        position = log.tiering.position_in(source, base)
        store = await self._store()
        lease = await self._plane.lease_tier(part.key, base_offset=base, leader_epoch=source.epoch)
        copy = await asyncio.to_thread(
            lambda: SegmentCopy(
                log.tiering.files,
                source.path,
                position=position,
                end=source.size_bytes,
                base_offset=base,
                next_offset=source.next_offset,
                interval_bytes=log.config.index_interval_bytes,
            )
        )
        try:
            segment = await self._upload(part, store, lease, copy, base)
        finally:
            await asyncio.to_thread(copy.close)
        bounds = await self._plane.commit_tier(
            part.key, segment, log_start_offset=partition.log_start_offset, leader_epoch=epoch
        )
        part.core.copied(bounds, segment)
        part.changed()
        self._counters.copied_segments += 1
        self._counters.copied_bytes += segment.size_bytes

    async def _upload(
        self, part: TieredPart, store: ObjectStore, lease: TierLease, copy: SegmentCopy, base: int
    ) -> TierSegment:
        pieces = _Pieces(copy, self._limit, self._clock, lambda: self._renew(lease))
        key = lease.stem + LOG
        written = await store.upload(key, aiter(pieces))
        there = (await store.head(key)).size_bytes
        if not copy.size_bytes == written == there:
            raise CopyTruncated(f"object {key} has {there} bytes, expected {copy.size_bytes}")
        end = await store.get(key, there - len(pieces.tail), len(pieces.tail))
        if bytes(end) != pieces.tail:
            raise CopyTruncated(f"the last {len(end)} bytes of object {key} differ from the copy")
        offsets, times = copy.indexes()
        aborted = part.log.tiering.aborted_within(base, copy.next_offset)
        for suffix, data in ((INDEX, offsets), (TIME_INDEX, times), (ABORTED, aborted)):
            if data:
                await store.put(lease.stem + suffix, [data])
        return TierSegment(
            base_offset=base,
            next_offset=copy.next_offset,
            leader_epoch=copy.leader_epoch,
            max_timestamp=copy.max_timestamp,
            object_id=lease.object_id,
            stem=lease.stem,
            size_bytes=copy.size_bytes,
            index_bytes=len(offsets),
            time_index_bytes=len(times),
            aborted_bytes=len(aborted),
            checksum=copy.checksum,
        )

    async def _renew(self, lease: TierLease) -> None:
        await self._plane.renew_leases(lease.object_ids)


class _Pieces:
    """Content of a segment to archive, as an asynchronous iterator for the upload.

    It reads on another thread, at most at the configured rate, and renews the leases of the keys.
    """

    def __init__(
        self,
        copy: SegmentCopy,
        limit: TokenBucket,
        clock: Clock,
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self.tail = b""
        """Last bytes read."""
        self._copy = copy
        self._limit = limit
        self._clock = clock
        self._renew = renew

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        renewed = self._clock.monotonic()
        while (piece := await asyncio.to_thread(self._copy.piece)) is not None:
            self.tail = (self.tail + bytes(piece[-_TAIL_BYTES:]))[-_TAIL_BYTES:]
            wait = self._limit.take(self._clock.monotonic(), len(piece))
            if wait > 0.0:
                await pause(wait)
            if self._clock.monotonic() - renewed > _RENEW_SECONDS:
                renewed = self._clock.monotonic()
                await self._renew()
            yield piece


def look_at(partition: LocalPartition, part: TieredPart) -> Look:
    log = part.log
    log.load()
    return Look(
        leader_epoch=partition.leader_epoch,
        start_offset=partition.log_start_offset,
        local_start=log.log_start_offset,
        end_offset=log.log_end_offset,
        stable=min(partition.high_watermark, partition.last_stable_offset),
        segments=log.tiering.closed_segments(part.tiered_end),
        open_bytes=log.state.segments[-1].end_position,
        open_timestamp=log.tiering.newest_timestamp,
        epochs=log.state.epochs.entries,
    )


def policy_of(partition: LocalPartition, settings: TierSettings) -> Policy:
    config = partition.log.config
    return Policy(
        copies=config.remote_storage_enable and not config.remote_log_copy_disable,
        expires="delete" in config.cleanup_policy,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        interval_ms=settings.manager_task_interval_ms,
    )


# Tiered storage on one broker: archived parts of its partitions, timers, access to the archive.
#
#     log ──> Copier ──> store, control plane ──> local retention removes files
#     fetch <── TieredPart.read <── TierReader <── TierFetcher <── store
#
# The archive is the object store of diskless topics, with the same check: nothing is written to a
# store that belongs to another control plane. Two clients of the store are opened on first use, one
# for copies and one for reads. The sweeper of diskless topics deletes objects without rows.
#
# Every `remote.log.manager.task.interval.ms` the broker performs the tiering steps of each
# partition that it leads, a few partitions in parallel, and requests the archive's state of each
# partition that it follows. Then local retention is applied to their logs, so that a segment is
# removed in the same interval in which it is copied.


LOOKUPS_AT_ONCE: Final = 16
"""Maximum number of parallel lookups of timestamps in the archive."""
MARKS_PER_CALL: Final = 1_000
"""Maximum number of partitions in one request for the archive's state."""
FORGET_SECONDS: Final = 30.0
"""Seconds between two searches for archived segments of deleted topics."""
FORGET_CALLS_MAX: Final = 100
"""Maximum number of control plane calls in one such search."""


REQUEST_TIMEOUT_MS = 60_000
"""Time limit of the read of one chunk."""


class TierService:
    """Tiered storage of one broker; belongs to the event loop."""

    def __init__(
        self,
        settings: TierSettings,
        *,
        plane: ControlPlane,
        archive: DisklessService,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._archive = archive
        self._clock = clock
        self._randomness = randomness
        self._advanced: Callable[[Iterable[object]], None] = _nobody
        self._sweep: Callable[[Iterable[TopicPartition]], None] = _nobody
        self._hosted: dict[LocalPartition, TieredPart] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stores: dict[str, ObjectStore] = {}
        self._cold: StorePath | None = None
        self._copying = asyncio.Semaphore(settings.manager_copier_thread_pool_size)
        self._stopped = False
        self.counters = TierCounters()

    @property
    def enabled(self) -> bool:
        return self._settings.storage_system_enable

    @property
    def store_url(self) -> str:
        return self._archive.store_url

    @property
    def hosted(self) -> Mapping[LocalPartition, TieredPart]:
        return self._hosted

    # -- life --------------------------------------------------------------------------------

    def start(
        self,
        advanced: Callable[[Iterable[object]], None],
        sweep: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        """Start the timers.

        `advanced` is called with partitions whose archived records have been loaded, to wake
        waiting fetch requests. `sweep` is called with partitions to which local retention is to be
        applied.
        """
        self._advanced, self._sweep = advanced, sweep
        self._spawn(self._look_on())
        if self.enabled:
            self._spawn(self._forget_on())

    async def stop(self) -> None:
        """End all work; the sweeper deletes unfinished copies later. Idempotent."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reader.stop()
        if self._cold is not None:
            await self._cold.close()

    def follow(self, topic: Topic, partitions: Iterable[Partition | None]) -> None:
        """Add or remove the archived parts of a topic's partitions, as its configuration states."""
        tiered = topic.configs.get(REMOTE_CONFIG) == "true"
        for partition in partitions:
            if not isinstance(partition, LocalPartition):
                continue
            if not tiered:
                if partition.tiers is not None:
                    self._drop(partition)
                continue
            if partition.tiers is None:
                part = TieredPart(
                    self._parts, partition.log, partition.topic_id, partition.log_moved
                )
                partition.tiers = self._hosted[partition] = part
                partition.log_moved()
            partition.tiers.copies = topic.configs.get("remote.log.copy.disable") != "true"
            partition.tiers.changed()

    def _drop(self, partition: LocalPartition) -> None:
        part = self._hosted.pop(partition, None)
        partition.tiers = None
        partition.log_moved()
        if part is not None:
            self._reader.forget(part.key)

    # -- shared by partitions ----------------------------------------------------------------

    @cached_property
    def _fetcher(self) -> TierFetcher:
        return TierFetcher(
            plane=self._plane,
            path=self._open_path,
            clock=self._clock,
            bytes_per_second=self._settings.manager_fetch_max_bytes_per_second,
            index_bytes_max=self._settings.index_file_cache_total_size_bytes,
        )

    @cached_property
    def _reader(self) -> TierReader:
        return TierReader(self._fetcher, clock=self._clock, counters=self.counters, wake=self._wake)

    @cached_property
    def _copier(self) -> Copier:
        return Copier(
            self._settings,
            plane=self._plane,
            store=lambda: self._store("copy"),
            clock=self._clock,
            counters=self.counters,
        )

    @cached_property
    def _parts(self) -> TierParts:
        return TierParts(
            plane=self._plane,
            reader=self._reader,
            fetcher=self._fetcher,
            turns=asyncio.Semaphore(LOOKUPS_AT_ONCE),
            store_url=self.store_url,
            look_up=self.look_up,
        )

    async def _store(self, use: str) -> ObjectStore:
        """Return the archive's client for a use ("copy", "read"); raises NotServing,
        StoreMismatch."""
        store = self._stores.get(use)
        if store is None:
            store = self._stores[use] = await self._archive.client()
        return store

    async def _open_path(self) -> StorePath:
        if self._cold is None:
            store = await self._store("read")
            settings = self._settings
            self._cold = self._cold or StorePath(
                store,
                pool=Pool(
                    running_max=settings.reader_threads,
                    waiting_max=settings.reader_max_pending_tasks,
                ),
                rate_limit=None,
                hedging=Hedging(),
                timeout_ms=REQUEST_TIMEOUT_MS,
                clock=self._clock,
                randomness=self._randomness,
                pause=pause,
            )
        return self._cold

    def _wake(self, parts: Sequence[TierSource]) -> None:
        woken = {id(part) for part in parts}
        hosted = self._hosted.items()
        self._advanced([partition for partition, part in hosted if id(part) in woken])

    async def look_up(self, parts: Sequence[TieredPart]) -> None:
        """Request the archive's start and end offset of partitions; raises PenstockError."""
        for first in range(0, len(parts), MARKS_PER_CALL):
            asked = parts[first : first + MARKS_PER_CALL]
            found = await self._plane.tier_bounds([part.key for part in asked])
            for part in asked:
                if not part.busy:  # a running copy has newer state
                    part.learned(found.get(part.key))

    # -- timers ------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while not self._stopped:
            try:
                await self._look()
            except PenstockError as error:
                logger.warning("requesting the archive's offsets failed, retrying: %s", error)
            except Exception:
                logger.exception("a round of tiering steps failed, retrying")
            await pause(self._settings.manager_task_interval_ms / 1000)

    async def _look(self) -> None:
        for partition in [item for item in self._hosted if item.log.closed is not None]:
            self._reader.forget(self._hosted.pop(partition).key)
        followed = []
        for partition, part in self._hosted.items():
            if not partition.leads:
                followed.append(part)
            elif not part.busy:
                part.busy = True
                self._spawn(self._work(partition, part))
        self._reader.upkeep()
        try:
            await self.look_up(followed)
        finally:
            self._sweep([partition.topic_partition for partition in self._hosted])

    async def _work(self, partition: LocalPartition, part: TieredPart) -> None:
        try:
            async with self._copying:
                await self._copier.work(partition, part)
        except Exception as error:
            logger.exception("copying %s to the archive failed", part.name)
            part.core.failed(repr(error), self._clock.now_ms())
        finally:
            part.busy = False
            self._sweep([partition.topic_partition])

    async def _forget_on(self) -> None:
        """Delete archived segments of topics that are deleted or no longer tiered."""
        while not self._stopped:
            await pause(self._forget_seconds)
            try:
                for _ in range(FORGET_CALLS_MAX):
                    if not await self._plane.forget_tiers():
                        break
            except PenstockError as error:
                logger.warning("deleting archived segments of deleted topics failed: %s", error)

    @property
    def _forget_seconds(self) -> float:
        return min(FORGET_SECONDS, self._settings.manager_task_interval_ms / 1000)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def samples(self) -> Iterator[Sample]:
        counters = self.counters
        led = [part.core for partition, part in self._hosted.items() if partition.leads]
        tiers = [core.bounds for core in led if core.bounds is not None]
        counters.lag_bytes = sum(core.lag_bytes for core in led)
        counters.lag_segments = sum(core.lag_segments for core in led)
        counters.size_bytes = sum(bounds.size_bytes for bounds in tiers)
        counters.segments = sum(bounds.segments for bounds in tiers)
        return counters.samples()


def _nobody(partitions: Iterable[object]) -> None:
    """Do nothing, until `start` sets the callbacks."""
