"""Copies of segments to the archive, and deletion of archived ones, as `TierCore` determines.

    reserve keys ──> verify and upload segment ──> check object ──> upload indexes ──> commit row

Keys are reserved before the first upload and never reused, so the sweeper finds and deletes the
leftovers of a crash or an error. The row is committed when all objects are written and checked. The
commit is a compare-and-set: one of two leaders wins, and the sweeper deletes the objects of the
other. Local retention removes local files after the commit.

Source: KIP-405; `diskless/consolidation/consolidator.py`, which writes segments in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import CorruptError, PenstockError
from penstock.base.pause import pause
from penstock.control.tiers.values import (
    ABORTED,
    INDEX,
    LOG,
    TIME_INDEX,
    TierLease,
    TierSegment,
)
from penstock.objects.rate_limit import TokenBucket
from penstock.partitions.tiering.core import Ask, Copy, Cut, Effect, Look, Policy, Retain
from penstock.storage.log.tiering import SegmentCopy

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control import ControlPlane
    from penstock.objects import ObjectStore
    from penstock.partitions.local import LocalPartition
    from penstock.partitions.tiering.metrics import TierCounters
    from penstock.partitions.tiering.part import TieredPart
    from penstock.partitions.tiering.settings import TierSettings


class CopyTruncated(CorruptError):
    """An object in the store differs from what was written."""

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
    """Pieces of a segment copy, read on another thread at the configured rate."""

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
