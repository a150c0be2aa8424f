"""Objects of a sink's commit: written first, then committed together by the caller.

    take, take, … ──> an object is full ──> PUT, a few at a time ──> finish: all written objects

Objects have the batches in the order of `take`. An object whose PUT fails is written again under a
new key. The old key stays PENDING until it is swept, like all keys without a commit. Nothing is
visible before the commit.
"""

from __future__ import annotations

import asyncio
from math import inf
from types import TracebackType
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.archive.wal import OBJECT_BATCHES_MAX
from penstock.base.errors import RetriableError
from penstock.base.pause import pause
from penstock.base.system import Clock, Randomness
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.values.diskless import ObjectCommit, ObjectLease
from penstock.control.values.errors import OBJECT_ENTRIES_MAX, OBJECT_LEASES_PER_CALL_MAX
from penstock.diskless.errors import WriteFailed
from penstock.diskless.settings import STAGED_PUTS_AT_ONCE_MAX, DisklessSettings
from penstock.diskless.writing.objects import OpenObject, Submission, WalObject, check
from penstock.objects import ObjectStore
from penstock.records import BatchHeader
from penstock.records.appends import Outcome

STAGED_PUT_ATTEMPTS_MAX: Final = 6
"""Attempts to write one object, each under a new key."""


class ObjectPlace(NamedTuple):
    """Target of the writes: control plane, store and broker."""

    plane: DisklessPlane
    store: ObjectStore
    broker_id: int
    incarnation: UUID


class StagedObjects:
    """The objects of one commit. As a context manager, it cancels pending writes at the end."""

    def __init__(
        self,
        settings: DisklessSettings,
        place: ObjectPlace,
        *,
        size_bytes: int,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        """`size_bytes` is the approximate total. Keys for as many objects are reserved at once."""
        self._settings = settings
        self._place = place
        self._clock = clock
        self._randomness = randomness
        self._wanted = 1 + size_bytes // settings.buffer_bytes_max
        self._leases: list[ObjectLease] = []
        self._leasing = asyncio.Lock()
        self._open = OpenObject(0.0)
        self._puts: list[asyncio.Task[ObjectCommit]] = []

    async def __aenter__(self) -> StagedObjects:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._puts:
            task.cancel()
        await asyncio.gather(*self._puts, return_exceptions=True)

    async def take(
        self,
        topic_id: UUID,
        partition: int,
        batches: memoryview,
        headers: list[BatchHeader],
        append_time: bool,
    ) -> None:
        """Accept validated batches, which must not change any more.

        Waits while `STAGED_PUTS_AT_ONCE_MAX` objects are being written.

        Raises:
            SubmissionTooLarge: the call has more batches than an object may have.
            WriteFailed, FencedError, UnavailableError: as in `finish`.
        """
        submission = Submission(topic_id, partition, batches, headers, append_time, None, _nobody)
        check(submission)
        gathered = self._open
        if gathered.submissions and (
            gathered.batches + len(headers) > OBJECT_BATCHES_MAX
            or gathered.submissions >= OBJECT_ENTRIES_MAX
        ):
            await self._close()
        self._open.add(submission)
        if self._open.size_bytes >= self._settings.buffer_bytes_max:
            await self._close()

    async def finish(self) -> list[ObjectCommit]:
        """Write the last object; return the commits of all written objects, in order.

        Raises:
            WriteFailed: all attempts to write an object failed.
            StoreRefused: the store rejects an object permanently.
            StaleBroker: another incarnation owns the broker's id, or it is not registered.
            ControlUnavailable, ControlBusy: no keys could be reserved.
        """
        if self._open.submissions:
            await self._close()
        now_ms = self._clock.now_ms()
        return [replace(await put, now_ms=now_ms) for put in self._puts]

    async def _close(self) -> None:
        closed = WalObject(len(self._puts), self._open, inf)
        self._open = OpenObject(0.0)
        self._puts.append(asyncio.create_task(self._put(closed)))
        if len(self._puts) >= STAGED_PUTS_AT_ONCE_MAX:
            await self._puts[-STAGED_PUTS_AT_ONCE_MAX]

    async def _put(self, closed: WalObject) -> ObjectCommit:
        place, settings = self._place, self._settings
        failure: Exception | None = None
        for attempt in range(STAGED_PUT_ATTEMPTS_MAX):
            if attempt:
                chance = self._randomness.uniform()
                await pause(settings.backoff.pause_seconds(attempt, chance=chance))
            lease = await self._lease()
            try:
                async with asyncio.timeout(settings.put_timeout_ms / 1000):
                    await place.store.put(
                        lease.key, closed.pieces(lease.object_id, place.broker_id)
                    )
            except (RetriableError, TimeoutError) as error:
                failure = error
                continue
            return ObjectCommit(
                object_id=lease.object_id,
                size_bytes=closed.size_bytes,
                entries=closed.entries(),
                now_ms=0,
            )
        raise WriteFailed(
            f"an object of {closed.size_bytes} bytes was not written in"
            f" {STAGED_PUT_ATTEMPTS_MAX} attempts: {failure!r}"
        ) from failure

    async def _lease(self) -> ObjectLease:
        async with self._leasing:
            if not self._leases:
                count = max(1, min(self._wanted, OBJECT_LEASES_PER_CALL_MAX))
                self._wanted -= count
                self._leases = await self._place.plane.lease_objects(
                    broker_id=self._place.broker_id,
                    incarnation=self._place.incarnation,
                    count=count,
                )
            return self._leases.pop(0)


def _nobody(outcome: Outcome) -> None: ...
