"""Filling of this broker's logs from objects, for a diskless topic that becomes replicated.

    objects   [start … … … … … … … … … … … …|high watermark: the end of committed records
    pass 1    |──────────────────────────|
    pass 2                               |──|
    fenced                                  |─|   appends have stopped

Every future replica fills its own log from the store. Batches keep offsets and times, and get the
leader epoch of the copies (`control/batch_index/replicating_rules.py`), so all logs are equal. A
log begins with the batch that holds the partition's start, and with the states of producers whose
batches are below it. If retention or DeleteRecords raises the start above a log's end, the log
restarts.

As its last step, a complete log durably promises the epoch of the copies. A replica without a
promise counts as one that has lost its log (`replication/copies.py`).

Source: KIP-405 (`RemoteLogManager`), in the opposite direction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.archive.assembly import Result, Run, assemble, results_of
from penstock.archive.planning import Plan, merge, trim
from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.diskless.migration.copying import CHUNK_BYTES, PUT_BACKOFF
from penstock.diskless.settings import WATERMARKS_PER_CALL_MAX
from penstock.objects import ObjectNotFound, StoreUnavailable
from penstock.objects.rate_limit import TokenBucket
from penstock.records.idempotence import NO_BATCH
from penstock.storage import AppendBacklog
from penstock.storage.formats.snapshot import BATCHES_VERSION, SnapshotEntry, encode_snapshot

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.batch_index.operations import DisklessPlane
    from penstock.control.batch_index.values import PartitionKey, Watermarks
    from penstock.diskless.settings import DisklessSettings
    from penstock.objects import ObjectStore
    from penstock.storage import PartitionLog, StorageError

FILLED_AT_ONCE: Final = 8
"""Logs that are filled at once, which share syncs. Each has two chunks in memory."""
EXTENTS_PER_CHUNK: Final = 64
"""Extents that are looked up for one chunk."""
GET_ATTEMPTS_MAX: Final = 5
"""Attempts to read a chunk, and attempts to append it to an overloaded log."""

logger = logging.getLogger(__name__)

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
        """Run one pass over all partitions; return the number of copied bytes.

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
