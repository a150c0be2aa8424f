"""The shell of the writer's core on an event loop: PUTs, commits, leases, timers, results.

It decides nothing. PUTs, commits and leases are tasks; results are passed to `done`. After the
commit of an object, its bytes are passed to `keep`, then `on_commit` is called, then the
submissions get results. Consumers that wake up therefore find the bytes in the cache.

A small submission is copied, so that it does not hold a large receive buffer. A larger one holds
its lease of the buffer until its object has ended. Pending work of an ended object is cancelled. A
PUT that runs on in the store writes an object that is never committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from typing import Any, Final
from uuid import UUID

from penstock.base.errors import BugError, PenstockError
from penstock.base.metrics import Sample
from penstock.base.system import Clock, Randomness
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.values.diskless import CommitAnswer, ObjectCommit
from penstock.diskless.errors import WriteFailed, WriterStopped
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.writing.accumulator import (
    Accumulator,
    Answer,
    CommitObject,
    Effect,
    Finished,
    LeaseKeys,
    PutObject,
)
from penstock.diskless.writing.objects import Submission
from penstock.objects.port import Buffer, ObjectStore

TIMER_GRAIN_MS: Final = 1.0
"""Time by which a timer of the event loop may fire too early."""
COPIED_SUBMISSION_BYTES_MAX: Final = 16 << 10
"""Bytes up to which a submission is copied, to release its receive buffer."""

logger = logging.getLogger(__name__)

OnCommit = Callable[[CommitAnswer], None]
Keep = Callable[[str, Sequence[Buffer]], None]


class ObjectWriter:
    """Writes submissions to objects. Belongs to one event loop."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        broker_id: int,
        incarnation: UUID,
        clock: Clock,
        randomness: Randomness,
        on_commit: OnCommit,
        keep: Keep,
        local: bool = False,
    ) -> None:
        """`local` means that the store completes a write within milliseconds."""
        self.core = Accumulator(
            settings, interval_ms=settings.interval_ms(local=local), broker_id=broker_id
        )
        self._settings = settings
        self._plane = plane
        self._store = store
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._clock = clock
        self._randomness = randomness
        self._on_commit = on_commit
        self._keep = keep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = inf
        self._performing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_object: dict[int, list[asyncio.Task[None]]] = {}
        self._idle = asyncio.Event()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop, on which all later calls must be made."""
        self._loop = loop

    def submit(self, submission: Submission) -> None:
        """Accept a submission. Its `done` is called later, once, on the loop.

        Raises:
            WriterStopped: after `stop`, or because another incarnation owns the broker's id.
            WriteBacklog: too many submissions have no result yet; retry later.
            SubmissionTooLarge, MixedBatches, OutOfOrderSequence: as in `objects.check`.
        """
        if self._loop is None:
            raise BugError("the writer has not been attached to a loop")
        core, lease = self.core, submission.lease
        if len(submission.batches) <= COPIED_SUBMISSION_BYTES_MAX:
            copy = memoryview(bytes(submission.batches))
            submission, lease = submission._replace(batches=copy, lease=None), None
        core.submit(submission, self._now_ms())
        if lease is not None:
            lease.retain()
        self._perform()

    async def stop(self) -> None:
        """Write accepted submissions within `diskless.drain.timeout.ms`, and fail the others."""
        core = self.core
        core.stop(self._now_ms())
        self._perform()
        if not core.idle:
            try:
                async with asyncio.timeout(self._settings.drain_timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning(
                    "%d objects were not committed within diskless.drain.timeout.ms",
                    core.objects_in_flight,
                )
        core.abandon(WriterStopped("the writer of diskless topics has been stopped"))
        self._perform()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def samples(self) -> Iterator[Sample]:
        core, counters = self.core, self.core.counters
        counters.pending_bytes = core.pending_bytes
        counters.pending_submissions = core.pending_submissions
        counters.in_flight = core.objects_in_flight
        counters.leases = core.leases
        return counters.samples()

    # Effects

    def _perform(self) -> None:
        """Perform effects until there are none. Callbacks may submit more."""
        if self._performing:
            return
        self._performing = True
        try:
            while effects := self.core.take():
                for effect in effects:
                    self._do(effect)
        finally:
            self._performing = False
        if self.core.wake_ms != self._armed_ms:
            self._arm()
        if self.core.stopped is not None and self.core.idle:
            self._idle.set()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Answer(outcomes):
                for submission, outcome in outcomes:
                    _call(submission.done, outcome)
            case PutObject(number):
                self._spawn(self._put(effect), number)
            case CommitObject(number):
                self._spawn(self._commit(effect), number)
            case Finished():
                self._finished(effect)
            case LeaseKeys(wanted):
                self._spawn(self._lease(wanted))

    def _finished(self, effect: Finished) -> None:
        current = asyncio.current_task()
        for task in self._by_object.pop(effect.number, ()):
            if task is not current:
                task.cancel()
        if effect.answer is not None and effect.lease is not None:
            _call(self._keep, effect.lease.key, effect.pieces)
            _call(self._on_commit, effect.answer)
        else:
            logger.warning("an object of %d appends failed", len(effect.submissions))
        for submission in effect.submissions:
            if submission.lease is not None:
                submission.lease.release()

    async def _put(self, effect: PutObject) -> None:
        number, lease, pieces = effect
        begun = self._clock.monotonic()
        try:
            await self._store.put(lease.key, pieces)
        except Exception as error:
            failure = _known(error, f"writing {lease.key}")
            logger.info("writing %s failed: %s", lease.key, failure)
            self.core.put_failed(
                number, lease.object_id, failure, self._now_ms(), self._randomness.uniform()
            )
        else:
            self.core.counters.put_seconds.observe(self._clock.monotonic() - begun)
            self.core.put_done(number, lease.object_id, self._now_ms())
        self._perform()

    async def _commit(self, effect: CommitObject) -> None:
        number, lease, size_bytes, entries = effect
        begun = self._clock.monotonic()
        commit = ObjectCommit(
            object_id=lease.object_id,
            size_bytes=size_bytes,
            entries=entries,
            now_ms=self._clock.now_ms(),
        )
        try:
            answer = await self._plane.commit_object(commit)
        except Exception as error:
            failure = _known(error, f"committing {lease.key}")
            logger.info("committing %s failed: %s", lease.key, failure)
            self.core.commit_failed(number, failure, self._now_ms(), self._randomness.uniform())
        else:
            counters = self.core.counters
            counters.commit_seconds.observe(self._clock.monotonic() - begun)
            counters.object_size.observe(size_bytes)
            counters.object_batches.observe(sum([len(entry.layout) for entry in entries]) // 8)
            counters.object_bytes += size_bytes
            self.core.committed(number, answer, self._now_ms())
        self._perform()

    async def _lease(self, count: int) -> None:
        try:
            leases = await self._plane.lease_objects(
                broker_id=self._broker_id, incarnation=self._incarnation, count=count
            )
        except Exception as error:
            failure = _known(error, "reserving keys of objects")
            logger.warning("could not reserve object keys: %s", failure)
            self.core.lease_failed(failure, self._now_ms(), self._randomness.uniform())
        else:
            self.core.leased(leases, self._now_ms())
        self._perform()

    # The loop

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _arm(self) -> None:
        wake_ms = self._armed_ms = self.core.wake_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_ms != inf and self._loop is not None:
            pause_ms = max(0.0, wake_ms - self._now_ms())
            self._timer = self._loop.call_later(pause_ms / 1000, self._wake)

    def _wake(self) -> None:
        armed_ms, self._timer, self._armed_ms = self._armed_ms, None, inf
        now_ms = self._now_ms()
        if now_ms < armed_ms < now_ms + TIMER_GRAIN_MS:
            # Loops round timers up to milliseconds: another timer would fire too late.
            now_ms = armed_ms
        self.core.tick(now_ms, self._randomness.uniform())
        self._perform()

    def _spawn(self, work: Coroutine[Any, Any, None], number: int | None = None) -> None:
        if self._loop is None:
            raise BugError("the writer has not been attached to a loop")
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if number is not None:
            self._by_object.setdefault(number, []).append(task)


def _known(error: Exception, what: str) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    logger.error("%s failed", what, exc_info=error)
    return WriteFailed(f"{what}: {error!r}")


def _call(function: Callable[..., None], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:
        logger.exception("a callback of the writer of diskless topics failed")
