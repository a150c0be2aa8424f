"""Copying of a topic's logs into sealed objects, while producers continue.

    log       [0 … … … … … … … … … … … …|high watermark: the end of committed records
    pass 1    |──object──|──object──|─|
    pass 2                             |──|
    fenced                                |─|   appends have stopped

A pass copies every log up to its current high watermark. Batches are copied as they are stored,
with offsets and times, and their checksums are verified. Objects are written under leased keys of
the archive. They are invisible until the control plane commits all of them at once. Without a
commit they are swept. If retention or DeleteRecords raises a log's start above what is copied, the
copy restarts at the new start.

The batch index has no gaps: gaps that compaction left in a log become batches without records.
Batches and markers of transactions are copied as well. Open transactions are part of the producers'
states. Aborted transactions are read from the log at the end.

Source: KIP-405 (`RemoteLogManager`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from penstock.archive.segments import GrowingSegment, SealedSegment
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.control.batch_index.migration_values import MigratedObject, MigratedPartition
from penstock.control.batch_index.values import ObjectLease
from penstock.control.errors import MigrationRefused
from penstock.objects import StoreUnavailable
from penstock.objects.rate_limit import TokenBucket
from penstock.records.extents import Extent

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.batch_index.operations import DisklessPlane
    from penstock.diskless.settings import DisklessSettings
    from penstock.objects import ObjectStore
    from penstock.storage import PartitionLog

CHUNK_BYTES: Final = 1 << 20
"""Bytes that one read of a log returns. A larger batch is read alone."""
OBJECT_BYTES: Final = 32 << 20
"""Size at which an object is written. A copy takes twice as much memory."""
PUT_ATTEMPTS_MAX: Final = 5
"""Attempts to write one object, each under a new key."""
PUT_BACKOFF: Final = Backoff(first_ms=200)
"""Pauses between the attempts to write an object."""
RENEWALS_PER_LIFE: Final = 4
"""Renewals of the leases of copied objects during the lifetime of a lease."""

logger = logging.getLogger(__name__)

_LAST: Final = attrgetter("last_offset")


class CopiedPartition(Protocol):
    """A partition whose log this broker leads. `high_watermark` is the end of committed records."""

    @property
    def log(self) -> PartitionLog: ...
    @property
    def high_watermark(self) -> int: ...


class TopicCopy:
    """Copy of those partitions of a topic that a broker leads. Runs on the thread of their logs."""

    def __init__(
        self,
        topic_id: UUID,
        partitions: Sequence[CopiedPartition],
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = pause,
    ) -> None:
        self.copied_bytes = 0
        self._topic_id = topic_id
        self._copies = [_LogCopy(partition) for partition in partitions]
        self._plane = plane
        self._store = store
        self._clock = clock
        self._pause = pause
        rate = settings.switch_bytes_per_second
        self._bucket = TokenBucket(rate, now=clock.monotonic()) if rate else None
        self._renew_seconds = settings.sweep_pending_grace_ms / 1000 / RENEWALS_PER_LIFE
        self._renewed = clock.monotonic()

    async def catch_up(self, *, at_once: bool = False) -> int:
        """Run one pass over all logs; return the number of copied bytes.

        `at_once` ignores the rate limit.

        Raises:
            MigrationRefused: a log lacks records that it should have.
            ObjectLeaseLost: a copied object has been swept.
            PenstockError: a log cannot be read, or the store or the control plane failed.
        """
        before = self.copied_bytes
        await self._renew_if_due()
        for copy in self._copies:
            end = copy.begin_pass()
            while copy.next_offset < end:
                await self._copy_object(copy, end, at_once=at_once)
        return self.copied_bytes - before

    def fenced_in(self, epochs: Sequence[int]) -> None:
        """Set the leader epoch of each partition in which its appends have stopped."""
        for copy, epoch in zip(self._copies, epochs, strict=True):
            copy.leader_epoch = epoch

    def partitions(self) -> tuple[MigratedPartition, ...]:
        """Return the copied partitions. Call it after appends have stopped and all is copied."""
        return tuple([copy.switched() for copy in self._copies])

    async def renew(self) -> None:
        """Renew the leases of all copied objects; raises ObjectLeaseLost."""
        self._renewed = self._clock.monotonic()
        ids = [written.object_id for copy in self._copies for written in copy.objects]
        if ids:
            await self._plane.renew_leases(ids)

    async def _renew_if_due(self) -> None:
        if self._clock.monotonic() - self._renewed >= self._renew_seconds:
            await self.renew()

    async def _copy_object(self, copy: _LogCopy, end: int, *, at_once: bool) -> None:
        await self._renew_if_due()
        growing = GrowingSegment(copy.next_offset)
        while growing.next_offset < end and growing.size_bytes < OBJECT_BYTES:
            if growing.next_offset < copy.log.log_start_offset:
                break
            data = copy.read(growing.next_offset, end)
            if self._bucket is not None and not at_once:
                seconds = self._bucket.take(self._clock.monotonic(), len(data))
                if seconds:
                    await self._pause(seconds)
            await asyncio.to_thread(growing.add, memoryview(data), verify=True)
        if growing.next_offset <= copy.log.log_start_offset:
            copy.begin_pass()
            return
        segment = growing.sealed()
        lease = await self._put(copy, segment)
        copy.take(segment, lease, growing.next_offset)
        self.copied_bytes += segment.size_bytes

    async def _put(self, copy: _LogCopy, segment: SealedSegment) -> ObjectLease:
        """Write an object, with a new key for each attempt; return its lease."""
        partition = copy.log.topic_partition.partition
        base_offset = segment.parts[0].base_offset
        for failures in range(1, PUT_ATTEMPTS_MAX):
            lease = await self._plane.lease_segment(
                self._topic_id, partition, base_offset=base_offset
            )
            try:
                await self._store.put(lease.key, segment.pieces)
            except StoreUnavailable as error:
                logger.info("object %s is written again, under another key: %s", lease.key, error)
            else:
                return lease
            await self._pause(PUT_BACKOFF.pause_seconds(failures))
        lease = await self._plane.lease_segment(self._topic_id, partition, base_offset=base_offset)
        await self._store.put(lease.key, segment.pieces)
        return lease


class _LogCopy:
    """Copy of one partition: its log and the objects written so far."""

    def __init__(self, partition: CopiedPartition) -> None:
        partition.log.load()
        self.log = log = partition.log
        self.leader_epoch = -1
        self._partition = partition
        self.next_offset = log.log_start_offset
        self.objects: list[MigratedObject] = []
        self._extents: list[Extent] = []

    def begin_pass(self) -> int:
        """Return the offset up to which to copy.

        Restarts the copy if the log's start is above it.
        """
        start = self.log.log_start_offset
        if self.next_offset < start:
            self.next_offset = start
            self.objects, self._extents = [], []
        return self._end()

    def _end(self) -> int:
        return min(self._partition.high_watermark, self.log.durable_offset)

    def read(self, offset: int, end: int) -> bytes:
        read = self.log.read(offset, max_bytes=CHUNK_BYTES, end_offset=end)
        if not read.size_bytes:
            raise MigrationRefused(f"{self.log.topic_partition} has no record at offset {offset}")
        return b"".join(read.buffers)

    def take(self, segment: SealedSegment, lease: ObjectLease, next_offset: int) -> None:
        self.objects.append(MigratedObject(lease.object_id, segment.size_bytes))
        self._extents += segment.extents(lease)
        self.next_offset = next_offset

    def switched(self) -> MigratedPartition:
        log, end = self.log, self._end()
        return MigratedPartition(
            partition=log.topic_partition.partition,
            leader_epoch=self.leader_epoch,
            log_start_offset=log.log_start_offset,
            high_watermark=end,
            objects=tuple(self.objects),
            extents=tuple(self._extents),
            producers=log.producer_states.states(),
            aborted=tuple(sorted(log.transactions.aborted(log.log_start_offset, end), key=_LAST)),
        )
