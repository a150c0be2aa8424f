"""Migration of a topic's records: from logs into the object store, and from the store into logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from penstock.archive.assembly import Result, Run, assemble, results_of
from penstock.archive.planning import Plan, merge, trim
from penstock.archive.segments import GrowingSegment, SealedSegment
from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.control.values.diskless import (
    MigratedObject,
    MigratedPartition,
    MigrationParticipant,
    MigrationRequest,
    ObjectLease,
    ParticipantState,
    PartitionKey,
    TopicMigration,
    TopicReplication,
    Watermarks,
)
from penstock.control.values.errors import MigrationRefused
from penstock.diskless.settings import WATERMARKS_PER_CALL_MAX, DisklessSettings
from penstock.objects import ObjectNotFound, StoreUnavailable
from penstock.objects.rate_limit import TokenBucket
from penstock.records.extents import Extent
from penstock.records.idempotence import NO_BATCH
from penstock.storage import AppendBacklog
from penstock.storage.files.producers import BATCHES_VERSION, SnapshotEntry, encode_snapshot

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.control import Topic
    from penstock.control.operations.diskless import DisklessPlane
    from penstock.objects import ObjectStore
    from penstock.storage import PartitionLog, StorageError


# Copying of a topic's logs into sealed objects, while producers continue.
#
#     log       [0 … … … … … … … … … … … …|high watermark: the end of committed records
#     pass 1    |──object──|──object──|─|
#     pass 2                             |──|
#     fenced                                |─|   appends have stopped
#
# A pass copies every log up to its current high watermark. Batches are copied as they are stored,
# with offsets and times, and their checksums are verified. Objects are written under leased keys of
# the archive. They are invisible until the control plane commits all of them at once. Without a
# commit they are swept. If retention or DeleteRecords raises a log's start above what is copied,
# the copy restarts at the new start.
#
# The batch index has no gaps: gaps that compaction left in a log become batches without records.
# Batches and markers of transactions are copied as well. Open transactions are part of the
# producers' states. Aborted transactions are read from the log at the end.
#
# Source: KIP-405 (`RemoteLogManager`).


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
        """Copy the records that all logs have now to the store; return the copied bytes.

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
        """Set, for each partition, the leader epoch in which its appends were stopped."""
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


# Filling of this broker's logs from objects, for a diskless topic that becomes replicated.
#
#     objects   [start … … … … … … … … … … … …|high watermark: the end of committed records
#     pass 1    |──────────────────────────|
#     pass 2                               |──|
#     fenced                                  |─|   appends have stopped
#
# Every future replica fills its own log from the store. Batches keep offsets and times, and get the
# leader epoch of the copies (`control/rules/migrations.py`), so all logs are equal. A
# log begins with the batch that holds the partition's start, and with the states of producers whose
# batches are below it. If retention or DeleteRecords raises the start above a log's end, the log
# restarts.
#
# As its last step, a complete log durably promises the epoch of the copies. A replica without a
# promise counts as one that has lost its log (`replication/copies.py`).
#
# Source: KIP-405 (`RemoteLogManager`), in the opposite direction.


FILLED_AT_ONCE: Final = 8
"""Logs that are filled at once, which share syncs. Each has two chunks in memory."""
EXTENTS_PER_CHUNK: Final = 64
"""Extents that are looked up for one chunk."""
GET_ATTEMPTS_MAX: Final = 5
"""Attempts to read a chunk, and attempts to append it to an overloaded log."""


Flush = Callable[[Callable[["StorageError | None"], None]], None]
"""Function that calls its argument back once all earlier appends are durable."""


class FilledLog:
    """A new log of this broker, and the leader epoch that its batches get."""

    def __init__(self, log: PartitionLog, epoch: int) -> None:
        log.state.committed_offset = 0  # retention still applies to the batch index
        self.log = log
        self.epoch = epoch
        self.key: PartitionKey = (log.topic_id, log.topic_partition.partition)
        self.begun = False

    def begin_at(self, offset: int, producers: bytes) -> None:
        self.begun = True
        self.log.replica.start_at(offset, producers=producers, floor=0)


class TopicFilling:
    """Filling of those logs of a topic that a broker will hold. Runs on the thread of its logs."""

    def __init__(
        self,
        logs: Sequence[FilledLog],
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
        flush: Flush,
        pause: Callable[[float], Awaitable[None]] = pause,
    ) -> None:
        self.copied_bytes = 0
        self._logs = logs
        self._plane = plane
        self._store = store
        self._clock = clock
        self._flush = flush
        self._pause = pause
        rate = settings.switch_bytes_per_second
        self._bucket = TokenBucket(rate, now=clock.monotonic()) if rate else None

    async def needed_bytes(self) -> int:
        return sum([mark.size_bytes for mark in await self._watermarks()])

    async def catch_up(self, *, at_once: bool = False) -> int:
        """Copy the records that all partitions have now to the logs; return the copied bytes.

        `at_once` ignores the rate limit.

        Raises:
            PenstockError: the store, a log or the control plane failed, or a log was removed.
        """
        before = self.copied_bytes
        left = iter(zip(self._logs, await self._watermarks(), strict=True))

        async def work() -> None:
            for log, watermarks in left:
                await self._fill(
                    log, watermarks.log_start_offset, watermarks.high_watermark, at_once=at_once
                )

        workers = [asyncio.ensure_future(work()) for _ in range(FILLED_AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        await self._durable()
        return self.copied_bytes - before

    async def finish(self) -> None:
        """Complete the logs durably, after appends have stopped.

        Raises the errors of `catch_up`.
        """
        await self.catch_up(at_once=True)
        for log, watermarks in zip(self._logs, await self._watermarks(), strict=True):
            if watermarks.log_start_offset > log.log.log_start_offset:
                log.log.state.move_start(watermarks.log_start_offset)
            log.log.replica.promise(log.epoch)
        await self._durable()

    async def _watermarks(self) -> list[Watermarks]:
        watermarks: list[Watermarks] = []
        for at in range(0, len(self._logs), WATERMARKS_PER_CALL_MAX):
            part = self._logs[at : at + WATERMARKS_PER_CALL_MAX]
            watermarks += await self._plane.watermarks([log.key for log in part])
        return watermarks

    async def _fill(self, one: FilledLog, start: int, end: int, *, at_once: bool) -> None:
        while not one.begun or one.log.log_end_offset < end:
            overtaken = not one.begun or one.log.log_end_offset < start
            offset = start if overtaken else one.log.log_end_offset
            if offset == end:
                one.begin_at(end, await self._producers_below(one.key, end))
                break
            run = await self._read(one, offset, end)
            if run is None:  # deleted meanwhile
                [watermarks] = await self._plane.watermarks([one.key])
                start, end = watermarks.log_start_offset, max(end, watermarks.log_start_offset)
                continue
            if overtaken:
                below = await self._producers_below(one.key, run.base_offset)
                one.begin_at(run.base_offset, below)
            await self._append(one, run, at_once=at_once)

    async def _read(self, one: FilledLog, offset: int, end: int) -> Run | None:
        """Return batches from an offset on, or None if retention has deleted them.

        Looks up extents again if their objects have been replaced by a segment.
        """
        for attempt in range(1, GET_ATTEMPTS_MAX + 1):
            extents = await self._plane.extents(
                *one.key, start=offset, end=end, limit=EXTENTS_PER_CHUNK
            )
            if not extents or extents[0].base_offset > offset:
                return None
            pieces = trim(extents, offset, max_bytes=CHUNK_BYTES, at_least_one=True)
            plan = merge(pieces)
            answers = await self._get(plan)
            results = results_of(pieces, plan, answers)
            run, failure = await asyncio.to_thread(assemble, pieces, results, one.epoch)
            if run is not None:
                return run
            if attempt == GET_ATTEMPTS_MAX or not isinstance(
                failure, (ObjectNotFound, StoreUnavailable)
            ):
                break
            logger.info("object %s is read again: %s", pieces[0].extent.key, failure)
            await self._pause(PUT_BACKOFF.pause_seconds(attempt))
        raise failure or ObjectNotFound(pieces[0].extent.key)

    async def _get(self, plan: Plan) -> list[Result]:
        found = await asyncio.gather(
            *[self._store.get(*object_range) for object_range in plan.ranges],
            return_exceptions=True,
        )
        answers: list[Result] = []
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, PenstockError):
                raise answer
            answers.append(answer)
        return answers

    async def _producers_below(self, key: PartitionKey, offset: int) -> bytes:
        entries = [
            SnapshotEntry(
                producer_id, producer.epoch, batch.last_sequence, batch.last_offset,
                batch.offset_delta, batch.timestamp, producer.coordinator_epoch,
            )
            for producer_id, producer in await self._plane.remembered_producers(*key)
            for batch in producer.batches or (NO_BATCH,)
            if batch.last_offset < offset
        ]  # fmt: skip
        return encode_snapshot(entries, BATCHES_VERSION) if entries else b""

    async def _append(self, one: FilledLog, run: Run, *, at_once: bool) -> None:
        data = run.data
        if self._bucket is not None and not at_once:
            seconds = self._bucket.take(self._clock.monotonic(), len(data))
            if seconds:
                await self._pause(seconds)
        for attempt in range(1, GET_ATTEMPTS_MAX + 1):
            try:
                one.log.replica.append(data, now_ms=self._clock.now_ms())
                break
            except AppendBacklog:
                if attempt == GET_ATTEMPTS_MAX:
                    raise
                await self._durable()
                await self._pause(PUT_BACKOFF.pause_seconds(attempt))
        self.copied_bytes += len(data)
        await self._durable()

    async def _durable(self) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: StorageError | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self._flush(told)
        await durable


class MigrationPart:
    """Creates the copies, requests and commits of this broker process.

    `ready_store` returns the object store. It raises NotServing if that cannot be used.
    """

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        ready_store: Callable[[], Awaitable[ObjectStore]],
        clock: Clock,
        randomness: Randomness,
        broker_id: int,
        incarnation: UUID,
    ) -> None:
        self.plane = plane
        self._settings = settings
        self._ready_store = ready_store
        self._clock = clock
        self._randomness = randomness
        self._broker_id = broker_id
        self._incarnation = incarnation

    async def copy_of(self, topic: Topic, partitions: Sequence[CopiedPartition]) -> TopicCopy:
        """Return a new copy of partitions whose logs this broker leads.

        Raises:
            NotServing: the store or the control plane cannot be used.
        """
        return TopicCopy(
            topic.topic_id,
            partitions,
            self._settings,
            plane=self.plane,
            store=await self._ready_store(),
            clock=self._clock,
        )

    async def filling_of(self, logs: Sequence[FilledLog], flush: Flush) -> TopicFilling:
        """Return a new filling of this broker's logs. Raises NotServing, as `copy_of` does."""
        return TopicFilling(
            logs,
            self._settings,
            plane=self.plane,
            store=await self._ready_store(),
            clock=self._clock,
            flush=flush,
        )

    def request(self, topic: Topic) -> MigrationRequest:
        return MigrationRequest(
            topic.topic_id, self._randomness.uuid(), self._broker_id, self._incarnation
        )

    def participant(
        self, state: ParticipantState, reason: str = "", copy: TopicCopy | None = None
    ) -> MigrationParticipant:
        return MigrationParticipant(
            broker_id=self._broker_id,
            incarnation=self._incarnation,
            state=state,
            reason=reason,
            partitions=() if copy is None else copy.partitions(),
        )

    async def commit(
        self,
        topic: Topic,
        configs: Mapping[str, str],
        copy: TopicCopy,
        request: MigrationRequest | None = None,
    ) -> None:
        """Commit this broker's copy, and those of the participants of a request.

        Raises the errors of `DisklessPlane.migrate_topic`.
        """
        await self.plane.migrate_topic(
            TopicMigration(
                topic_id=topic.topic_id,
                broker_id=self._broker_id,
                incarnation=self._incarnation,
                expected=topic.configs,
                configs=configs,
                partitions=copy.partitions(),
                migration_id=None if request is None else request.migration_id,
            )
        )

    async def replicate(
        self,
        topic: Topic,
        configs: Mapping[str, str],
        request: MigrationRequest,
        *,
        min_insync_replicas: int,
    ) -> None:
        """Commit the filled logs of all participants.

        Raises the errors of `DisklessPlane.replicate_topic`.
        """
        await self.plane.replicate_topic(
            TopicReplication(
                topic_id=topic.topic_id,
                broker_id=self._broker_id,
                incarnation=self._incarnation,
                expected=topic.configs,
                configs=configs,
                min_insync_replicas=min_insync_replicas,
                migration_id=request.migration_id,
            )
        )
