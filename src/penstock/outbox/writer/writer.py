"""Writer of the outbox: writes a payload as a durable file and publishes a pointer to it.

    check -> admission -> attempts on a bounded pool of threads, with pauses timed by the loop
    -> publish the pointer -> release

Admission waits until the payload fits into the limits of bytes and operations in progress
(`Limiter`).
`send` puts a small payload into the record itself, without a file.

**Retries.** A caller retries with the same payload, partition id, batch id and `at_ms`. The last
three determine the path. So a retry finds the file of an earlier attempt, even if that process was
killed, and only publishes the missing record. Results and errors have the three values as
`identity`, because the writer may have chosen `batch_id` and `at_ms`.

**A timeout frees nothing.** When a caller stops waiting, by the timeout or by cancellation, file
calls in progress continue. The write keeps its admission and the memory of its payload until they
end. A step that has not begun (an attempt, a publish) does not begin. A caller that wants to reuse
the memory passes `released`. It is called once, when the writer no longer needs the payload, which
may be long after the call has raised.

**Order.** If a caller awaits each `send` before the next, its records are in this order. The
records of concurrent calls are in the order in which their files became durable.

Source: `filesystem-outbox.txt`, "Failure semantics, in painful detail"; the design page.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.files import MACHINE_FILES, Files
from penstock.base.metrics import Sample
from penstock.base.retry import Backoff, RetryPolicy
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.outbox.errors import (
    AdmissionTimedOut,
    BatchError,
    BatchIdentity,
    InvalidPayload,
    OutboxBug,
    OutboxBusy,
    OutboxClosed,
    PublishTimedOut,
    WriteTimedOut,
)
from penstock.outbox.layout import (
    BATCH_PREFIX,
    check_batch_id,
    hour_directory,
    temporary_name,
)
from penstock.outbox.metrics import WriterCounts
from penstock.outbox.pointer import (
    Inline,
    OutboxRecord,
    Pointer,
    check_codec,
    check_event_count,
    inline_record,
    pointer_record,
)
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.jobs import Job, Late, SendResult, WriteResult, publish_error
from penstock.outbox.writer.publisher import PointerPublisher
from penstock.outbox.writer.safe_write import (
    MODES,
    Payload,
    Tree,
    WritePlan,
    Written,
    as_buffers,
    checksum,
)

__all__ = [
    "OutboxWriter",
    "SendResult",
    "WriteResult",
]


# Limiter of writes in progress, by bytes and by number, in the order of arrival.
#
# Bytes limit the memory of payloads. The number of operations limits the load on the file system. A
# limit on operations alone would let a few large payloads take all memory. A request is admitted
# when both limits allow it and no earlier request waits. Even a small request waits behind a large
# one, because otherwise small requests could delay the large one for ever. A request above the
# limit on bytes counts as the limit, so it runs alone.
#
# The limiter has no clock and no futures. A *ticket* is any hashable object that stands for a
# request.
#
# Source: `filesystem-outbox.txt`, "Byte-based backpressure, not request-based".


T = TypeVar("T", bound=Hashable)


class Admission(Enum):
    ADMITTED = "admitted"
    QUEUED = "queued"


class Limiter(Generic[T]):
    """Limit of the bytes and operations in progress, with a queue of at most `pending_max` tickets.

    A *ticket* stands for one operation. It is *admitted* when it gets its share of the limit.
    """

    __slots__ = (
        "_in_flight",
        "_pending",
        "bytes_max",
        "in_flight_bytes",
        "operations_max",
        "pending_bytes",
        "pending_max",
    )

    def __init__(self, *, bytes_max: int, operations_max: int, pending_max: int) -> None:
        self.bytes_max = bytes_max
        self.operations_max = operations_max
        self.pending_max = pending_max
        self.in_flight_bytes = 0
        self.pending_bytes = 0
        self._in_flight: dict[T, int] = {}
        self._pending: OrderedDict[T, int] = OrderedDict()

    @property
    def in_flight_operations(self) -> int:
        return len(self._in_flight)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def acquire(self, ticket: T, size_bytes: int) -> Admission:
        """Request a share of `size_bytes`: admit the ticket at once, or queue it.

        `release` or `withdraw` returns a queued ticket once it is admitted.

        Raises:
            OutboxBusy: `pending_max` requests are waiting.
            OutboxBug: the ticket is in use.
        """
        if ticket in self._in_flight or ticket in self._pending:
            raise OutboxBug(f"limiter: ticket {ticket!r} is in use")
        # An empty payload counts as one byte, so that it never runs beside one that runs alone.
        reserved = min(max(size_bytes, 1), self.bytes_max)
        if not self._pending and self._fits(reserved):
            self._admit(ticket, reserved)
            return Admission.ADMITTED
        if len(self._pending) >= self.pending_max:
            raise OutboxBusy(
                f"outbox: {len(self._pending)} writes wait for admission; the limit is"
                f" {self.pending_max}. In progress: {self.in_flight_bytes} of {self.bytes_max}"
                f" bytes, {len(self._in_flight)} of {self.operations_max} operations"
            )
        self._pending[ticket] = reserved
        self.pending_bytes += reserved
        return Admission.QUEUED

    def release(self, ticket: T) -> list[T]:
        """Release an admitted ticket. Return the tickets that are admitted now, in order.

        Raises:
            OutboxBug: the ticket was not admitted, or was released before.
        """
        reserved = self._in_flight.pop(ticket, None)
        if reserved is None:
            raise OutboxBug(f"limiter: ticket {ticket!r} was not admitted")
        self.in_flight_bytes -= reserved
        return self._drain()

    def withdraw(self, ticket: T) -> list[T]:
        """Remove a waiting ticket from the queue.

        Return the tickets that are admitted now, in order.

        Raises:
            OutboxBug: the ticket is not in the queue.
        """
        reserved = self._pending.pop(ticket, None)
        if reserved is None:
            raise OutboxBug(f"limiter: ticket {ticket!r} does not wait")
        self.pending_bytes -= reserved
        return self._drain()

    def _fits(self, reserved: int) -> bool:
        return (
            len(self._in_flight) < self.operations_max
            and self.in_flight_bytes + reserved <= self.bytes_max
        )

    def _admit(self, ticket: T, reserved: int) -> None:
        self._in_flight[ticket] = reserved
        self.in_flight_bytes += reserved

    def _drain(self) -> list[T]:
        admitted: list[T] = []
        while self._pending:
            ticket, reserved = next(iter(self._pending.items()))
            if not self._fits(reserved):
                break
            del self._pending[ticket]
            self.pending_bytes -= reserved
            self._admit(ticket, reserved)
            admitted.append(ticket)
        return admitted


ResultT = TypeVar("ResultT")
_TOKEN_BITS: Final = 64


def _resolve(waiter: asyncio.Future[None], *_: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


class OutboxWriter:
    """Writer below one root, for any number of tasks of one event loop.

    Args:
        settings: `root` must be set.
        publisher: publisher for `send`. The writer starts and stops it. Without a publisher, only
            `write` works.
        files: implementation of the file calls.
    """

    def __init__(
        self,
        settings: OutboxSettings,
        *,
        publisher: PointerPublisher | None = None,
        files: Files = MACHINE_FILES,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._retry = RetryPolicy(
            attempts_max=settings.attempts_max,
            backoff=Backoff(first_ms=settings.backoff_first_ms, ceiling_ms=settings.backoff_max_ms),
        )
        self._limiter: Limiter[Job] = Limiter(
            bytes_max=settings.in_flight_bytes,
            operations_max=settings.in_flight_operations,
            pending_max=settings.pending_max,
        )
        self.counts = WriterCounts()
        self._tasks: dict[asyncio.Task[Any], Job] = {}
        self._calls: set[asyncio.Future[None]] = set()
        self._tree: Tree | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._open = False

    async def start(self) -> None:
        """Open the root and start the publisher.

        Raises:
            RootUnavailable: the root is missing or is not a directory.
            PenstockError: the publisher cannot start.
        """
        pool = ThreadPoolExecutor(self._settings.io_threads, thread_name_prefix="outbox-io")
        loop = asyncio.get_running_loop()
        try:
            self._tree = await loop.run_in_executor(
                pool, partial(Tree, Path(self._settings.root), self._files)
            )
            if self._publisher is not None:
                await self._publisher.start()
        except BaseException:
            pool.shutdown(wait=False)
            if self._tree is not None:
                self._tree.close()
                self._tree = None
            raise
        self._pool = pool
        self._open = True

    async def stop(self, deadline_seconds: float | None = None) -> None:
        """Reject new calls, and wait until the deadline for the calls in progress.

        After the deadline, no further step of a call begins, and the call fails with OutboxClosed.
        File calls cannot be cancelled, so those in progress are awaited even then.
        """
        self._open = False
        ends = None
        if deadline_seconds is not None:
            ends = self._clock.monotonic() + deadline_seconds
        left = deadline_seconds
        while (under_way := self._under_way()) and (left is None or left > 0):
            await asyncio.wait(under_way, timeout=left)
            left = None if ends is None else ends - self._clock.monotonic()
        for job in self._tasks.values():
            job.abandon()
        if self._publisher is not None and self._pool is not None:
            await self._publisher.stop(0 if under_way else left)
        while under_way := self._under_way():
            await asyncio.wait(under_way)
        tree, pool = self._tree, self._pool
        self._tree = self._pool = None
        if pool is not None:
            pool.shutdown(wait=True)
        if tree is not None:
            tree.close()

    async def __aenter__(self) -> OutboxWriter:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def write(
        self,
        payload: Payload,
        *,
        partition_id: str,
        batch_id: str | None = None,
        event_count: int = 1,
        codec: str = "none",
        at_ms: int | None = None,
        released: Callable[[], None] | None = None,
    ) -> WriteResult:
        """Write a payload as a file, without publishing it.

        Args:
            payload: bytes, or buffers that are written one after another. Their memory must not
                change until the call returns or `released` is called.
            partition_id: first component of the path.
            batch_id: id of the batch. None chooses a random one.
            event_count: number of events in the payload, for the pointer.
            codec: name of the payload's compression, for the pointer.
            at_ms: time in milliseconds since 1970, whose hour is part of the path. None means now.
            released: function that is called once when the payload is no longer needed.

        Raises:
            InvalidError: an id, the payload or a number is invalid, or the batch id was used for
                another payload (BatchConflict).
            RetriableError: the call may succeed later, if it is repeated with the error's
                `identity`: OutboxBusy, AdmissionTimedOut, WriteTimedOut, StorageFull, SyncFailed, …
            UnavailableError: the file system is read-only, or denies access.
            OutboxClosed: the writer is not started, or is stopping.
        """
        job = self._job(payload, partition_id, batch_id, event_count, codec, at_ms, released)
        with self._call(job):
            return await self._file(job)

    async def send(
        self,
        payload: Payload,
        *,
        partition_id: str,
        batch_id: str | None = None,
        event_count: int = 1,
        codec: str = "none",
        at_ms: int | None = None,
        released: Callable[[], None] | None = None,
    ) -> SendResult:
        """Write a payload as `write` does, and publish a pointer to it.

        A small payload is put into the record, without a file. The record is published once the
        file is complete, and durable if the settings require it. A failed publish leaves the file,
        and another `send` finds it and publishes the record. So a record may be published twice,
        with the same message id.

        Raises:
            PublishRefused: the topic permanently rejects the record.
            PublishFailed, PublishTimedOut, OutboxBusy: the record may not have been published.
            PenstockError: the errors of `write`.
        """
        job = self._job(payload, partition_id, batch_id, event_count, codec, at_ms, released)
        with self._call(job):
            if self._publisher is None:
                raise InvalidPayload("outbox: send requires a publisher; the writer has none")
            if job.size_bytes <= self._settings.threshold_bytes:
                return await self._send_inline(job)
            job.to_publish = True
            written = await self._file(job)
            await self._published(job, pointer_record(written.pointer))
        return SendResult(
            identity=job.identity,
            pointer=written.pointer,
            size_bytes=job.size_bytes,
            crc32c=written.pointer.crc32c,
            idempotent_existing_write=written.idempotent_existing_write,
            attempts=written.attempts,
        )

    async def check(self, bytes_min: int) -> None:
        """Check whether a payload of `bytes_min` bytes would be accepted now.

        May wait long for the disk.

        Raises:
            PenstockError: it would not: StorageFull, ReadOnlyRoot, AccessDenied, …
        """
        tree = self._tree
        if tree is None:
            raise OutboxClosed("outbox: not started, or stopped")
        await asyncio.get_running_loop().run_in_executor(self._pool, tree.check, bytes_min)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the writer and its publisher. Call it on the loop's thread."""
        yield from self.counts.samples()
        if self._publisher is not None:
            yield from self._publisher.samples()

    # Calls: checks, and waiting callers

    def _job(
        self,
        payload: Payload,
        partition_id: str,
        batch_id: str | None,
        event_count: int,
        codec: str,
        at_ms: int | None,
        released: Callable[[], None] | None,
    ) -> Job:
        try:
            identity = BatchIdentity(
                partition_id=partition_id,
                batch_id=self._randomness.uuid().hex if batch_id is None else batch_id,
                at_ms=self._clock.now_ms() if at_ms is None else at_ms,
            )
            directory = hour_directory(partition_id, identity.at_ms)
            check_batch_id(identity.batch_id)
            check_codec(codec)
            check_event_count(event_count)
            buffers, size_bytes = as_buffers(payload)
            if size_bytes > self._settings.payload_bytes_max:
                raise InvalidPayload(
                    f"payload of {size_bytes} bytes: the limit is"
                    f" {self._settings.payload_bytes_max} (outbox.payload.bytes.max)"
                )
        except BaseException:
            if released is not None:
                released()
            raise
        return Job(
            identity=identity,
            hour_directory=directory,
            buffers=buffers,
            size_bytes=size_bytes,
            event_count=event_count,
            codec=codec,
            counts=self.counts.of(partition_id),
            released=released,
        )

    @contextmanager
    def _call(self, job: Job) -> Iterator[None]:
        """Register a call, for which `stop` waits, and add its identity to errors."""
        over: asyncio.Future[None] | None = None
        try:
            if not self._open:
                raise OutboxClosed("outbox: not started, or stopping")
            over = asyncio.get_running_loop().create_future()
            self._calls.add(over)
            yield
        except BatchError as error:
            error.identity = job.identity
            raise
        finally:
            if not job.begun:
                job.release()
            if over is not None:
                self._calls.discard(over)
                over.set_result(None)

    def _under_way(self) -> set[asyncio.Future[Any]]:
        return {*self._tasks, *self._calls}

    async def _file(self, job: Job) -> WriteResult:
        task = self._spawn(job, self._write_file(job))
        timeout_ms = self._settings.write_timeout_ms
        try:
            written = await self._await_task(task, job, timeout_ms)
        except Late:
            raise WriteTimedOut(
                f"{job.path}: {job.size_bytes} bytes were not written within {timeout_ms} ms"
                " (outbox.write.timeout.ms)"
            ) from None
        except BaseException:
            if task.done():  # it ended during the cancellation, and still holds its admission
                self._give_back(job)
            raise
        pointer = Pointer(
            file_path=job.path,
            batch_id=job.identity.batch_id,
            partition_id=job.identity.partition_id,
            size_bytes=written.size_bytes,
            crc32c=written.crc32c,
            codec=job.codec,
            event_count=job.event_count,
        )
        return WriteResult(
            identity=job.identity,
            pointer=pointer,
            idempotent_existing_write=written.existing,
            attempts=job.attempts,
        )

    async def _send_inline(self, job: Job) -> SendResult:
        value = b"".join(job.buffers)
        crc = checksum([memoryview(value)])
        job.release()
        inline = Inline(
            batch_id=job.identity.batch_id,
            partition_id=job.identity.partition_id,
            crc32c=crc,
            codec=job.codec,
            event_count=job.event_count,
        )
        await self._published(job, inline_record(inline, value))
        job.counts.inline += 1
        return SendResult(
            identity=job.identity,
            pointer=None,
            size_bytes=job.size_bytes,
            crc32c=crc,
            idempotent_existing_write=False,
            attempts=0,
        )

    async def _published(self, job: Job, record: OutboxRecord) -> None:
        timeout_ms = self._settings.publish_timeout_ms
        try:
            await self._await_task(self._spawn(job, self._publish(job, record)), job, timeout_ms)
        except Late:
            raise PublishTimedOut(
                f"batch {job.identity.batch_id} of {job.identity.partition_id}: its record was not"
                f" acknowledged within {timeout_ms} ms (outbox.publish.timeout.ms)"
            ) from None

    def _spawn(self, job: Job, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        task = asyncio.get_running_loop().create_task(work)
        job.begun = True
        self._tasks[task] = job
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # retrieved, since its caller may have gone

    async def _await_task(self, task: asyncio.Task[ResultT], job: Job, timeout_ms: int) -> ResultT:
        """Wait for a job's task, or raise Late after the timeout.

        The task continues after a timeout or a cancellation.
        """
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, _resolve, waiter)
        task.add_done_callback(partial(_resolve, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            job.abandon()
            raise
        finally:
            timer.cancel()
        if not task.done():
            job.abandon()
            job.counts.timed_out += 1
            raise Late
        return task.result()

    # The work, which continues after its caller has gone

    async def _write_file(self, job: Job) -> Written:
        started = self._clock.monotonic()
        keep_room = False
        try:
            await self._admit(job)
            written = await self._attempts(job)
            keep_room = job.to_publish and not job.abandoned
        except PenstockError:
            job.counts.failed += 1
            raise
        finally:
            job.release()
            if not keep_room:
                self._give_back(job)
        job.counts.succeeded += 1
        if written.existing:
            job.counts.existing += 1
        else:
            job.counts.written_bytes += written.size_bytes
        job.counts.latency.observe(self._clock.monotonic() - started)
        return written

    async def _admit(self, job: Job) -> None:
        if self._limiter.acquire(job, job.size_bytes) is Admission.ADMITTED:
            self._admitted(job)
            return
        job.counts.pending += 1
        timeout_ms = self._settings.acquire_timeout_ms
        try:
            await self._wait(job, timeout_ms / 1000)
        finally:
            job.counts.pending -= 1
            if not job.has_room:
                self._wake(self._limiter.withdraw(job))
        if not job.has_room:
            self._check_wanted(job)
            raise AdmissionTimedOut(
                f"{job.path}: {job.size_bytes} bytes were not admitted within {timeout_ms} ms"
                f" (outbox.acquire.timeout.ms). In progress: {self._limiter.in_flight_bytes} of"
                f" {self._limiter.bytes_max} bytes, {self._limiter.in_flight_operations} of"
                f" {self._limiter.operations_max} operations"
            )

    async def _attempts(self, job: Job) -> Written:
        token = f"{self._randomness.bits(_TOKEN_BITS):016x}"
        while True:
            self._check_wanted(job)
            job.attempts += 1
            plan = WritePlan(
                hour_directory=job.hour_directory,
                batch_name=f"{BATCH_PREFIX}{job.identity.batch_id}",
                temporary_name=temporary_name(token, job.attempts),
                buffers=job.buffers,
                size_bytes=job.size_bytes,
                durable=self._settings.durable,
                modes=MODES[self._settings.access],
            )
            try:
                return await self._attempt(plan)
            except RetriableError:
                chance = self._randomness.uniform()
                pause = self._retry.pause_seconds(job.attempts, chance=chance)
                if pause is None:
                    raise
            job.counts.retries += 1
            await self._wait(job, pause)

    async def _attempt(self, plan: WritePlan) -> Written:
        """Make one attempt on a thread.

        Wait for its end even if cancelled, because it reads the payload.
        """
        tree, pool = self._tree, self._pool
        if tree is None or pool is None:
            raise OutboxClosed("outbox: not started, or stopped")
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        running = pool.submit(tree.write, plan)
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(_resolve, ended))
        try:
            await ended
            return running.result()
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError, Exception):
                    await asyncio.wrap_future(running)
            raise

    async def _publish(self, job: Job, record: OutboxRecord) -> None:
        where = f"batch {job.identity.batch_id} of {job.identity.partition_id}"
        publisher = self._publisher
        try:
            if publisher is None:
                raise OutboxClosed("outbox: the writer has no publisher")
            await publisher.publish((record,))
        except PenstockError as error:
            job.counts.publish_failed += 1
            raise publish_error(error, where) from error
        finally:
            self._give_back(job)
        job.counts.published += 1

    async def _wait(self, job: Job, seconds: float) -> None:
        if job.abandoned:
            return
        job.waiter = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({job.waiter}, timeout=seconds)
        finally:
            job.waiter.cancel()
            job.waiter = None

    def _check_wanted(self, job: Job) -> None:
        if job.abandoned:
            raise OutboxClosed(f"{job.path}: cancelled before its next attempt")

    # Admission

    def _admitted(self, job: Job) -> None:
        job.has_room = True
        job.counts.in_flight_bytes += job.size_bytes
        job.counts.in_flight_operations += 1

    def _give_back(self, job: Job) -> None:
        if job.has_room:
            job.has_room = False
            job.counts.in_flight_bytes -= job.size_bytes
            job.counts.in_flight_operations -= 1
            self._wake(self._limiter.release(job))

    def _wake(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._admitted(job)
            job.wake()
