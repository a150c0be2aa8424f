"""Cache of a broker's share partitions, which are loaded on demand.

A share partition is the state of a partition for one share group. The partition's leader serves it,
without a claim or a lease: a row is replaced only if its version is unchanged, and each response
waits for that. A broker that is no longer the leader can therefore not decide anything.

A new share partition begins at the position in the settings of its group. The start is stored
first: records that are produced afterwards belong to the group, even if the broker crashes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.broker.groups.runtime.core import Timers
from penstock.broker.groups.runtime.runtime import Ticker
from penstock.broker.groups.runtime.saving import KeyRows, Saver
from penstock.broker.share.partition import SharePartition
from penstock.broker.share.stored import KIND, ShareStateLost, StoredShare, decode_state
from penstock.broker.share.values import Cause, RecordState, Run, ShareSettings, Undeliverable
from penstock.control import KEY_ROW, CoordinationRecord
from penstock.records.extents import EARLIEST

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control import ControlPlane
    from penstock.partitions import Partition

LOAD_KEYS_MAX: Final = 500
SHARES_HELD_MAX: Final = 50_000
"""Maximum number of share partitions in memory; above it, the least recently used is dropped."""

logger = logging.getLogger(__name__)

SharePlace = tuple[str, UUID, int]


def share_key(group_id: str, topic_id: UUID, index: int) -> str:
    return f"{group_id}/{topic_id}/{index}"


def place_of(key: str) -> SharePlace:
    """Return group, topic id and partition of a key; group ids may contain slashes."""
    group_id, topic_id, index = key.rsplit("/", 2)
    return group_id, UUID(topic_id), int(index)


class _Unfenced:
    """Owner of all keys, for a `Saver` whose saves are fenced by row versions alone.

    There is no cluster epoch, because leaders of partitions, not coordinators, save these rows.
    """

    cluster_epoch: int | None = None

    def owns(self, key: str) -> bool:
        return True

    async def look_again(self) -> None:
        """Do nothing: without a cluster epoch no save can be stale."""


class Shares:
    """Share partitions of this broker. Belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        control: ControlPlane,
        clock: Clock,
        settings_of: Callable[[str], ShareSettings],
        changed: Callable[[Iterable[object]], None],
        archiving: Callable[[StoredShare], None],
    ) -> None:
        """Create the cache.

        `changed` is called with keys of share partitions, to wake the requests that wait for them.
        `archiving` is called with share partitions whose records wait for dead letters.
        """
        self._control = control
        self._settings_of = settings_of
        self._changed = changed
        self._archiving = archiving
        self._saver = Saver(control, _Unfenced())
        self._held: dict[str, StoredShare] = {}
        self._opening: dict[str, asyncio.Task[StoredShare]] = {}
        self._reads: dict[str, asyncio.Future[list[CoordinationRecord]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._timers = Timers()
        self.acquired = 0
        self._ticker = Ticker(clock, self._tick)
        self.undeliverable = dict.fromkeys(Cause, 0)
        """Numbers of archived records, by cause."""
        self.deleted = 0
        """Number of records that were deleted before their dead letters were written."""

    def __len__(self) -> int:
        return len(self._held)

    def now_ms(self) -> int:
        """Return the wall-clock time in ms; it never goes back."""
        return self._ticker.now_ms()

    # Lookup

    def held(self, group_id: str, source: Partition) -> StoredShare | None:
        """Return a share partition in memory; None if it must be opened."""
        key = share_key(group_id, source.topic_id, source.topic_partition.partition)
        stored = self._held.pop(key, None)
        if stored is None:
            return None
        if stored.leader_epoch != source.leader_epoch and not stored.saving:
            self._timers.stop(stored.timer)
            return None
        self._held[key] = stored
        self._set(stored)
        return stored

    def _set(self, stored: StoredShare) -> None:
        stored.share.limits = self._settings_of(place_of(stored.key)[0]).limits

    async def open(self, group_id: str, source: Partition) -> StoredShare:
        """Return a share partition, loading it if needed.

        Raises:
            PenstockError: the share partition cannot be read or stored.
        """
        stored = self.held(group_id, source)
        if stored is not None:
            return stored
        key = share_key(group_id, source.topic_id, source.topic_partition.partition)
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(key, group_id, source))
            self._opening[key] = task
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(task)

    async def _open(self, key: str, group_id: str, source: Partition) -> StoredShare:
        rows = await self._read(key)
        settings = self._settings_of(group_id)
        row = next((found.value for found in rows if found.member == KEY_ROW), None)
        if row is None:
            begin = await _position(source, settings, self.now_ms())
            stored = self._stored(SharePartition(limits=settings.limits, start=begin), key, rows)
            stored.leader_epoch = source.leader_epoch
            await asyncio.shield(stored.store())
        else:
            state = decode_state(key, row)
            latest_ms = self.now_ms() + settings.limits.lock_duration_ms
            runs = [_no_later(run, latest_ms) for run in state.runs]
            share = SharePartition(limits=settings.limits, start=state.start, runs=runs)
            if source.look_up is None:
                share.log_ends(source.log_end_offset)
            stored = self._stored(share, key, rows)
            stored.state_epoch, stored.leader_epoch = state.state_epoch, source.leader_epoch
        self.log_begins(stored, source)
        self._hold(stored)
        if stored.share.awaiting_dead_letters():
            self._archiving(stored)
        return stored

    def log_begins(self, stored: StoredShare, source: Partition) -> None:
        """Drop the state of records below the log start offset, which the log has deleted."""
        share, begin = stored.share, source.log_start_offset
        if begin > share.start:
            before = sum(run.records for run in share.awaiting_dead_letters())
            share.log_begins(begin)
            self.deleted += before - sum(run.records for run in share.awaiting_dead_letters())

    def _stored(
        self, share: SharePartition, key: str, rows: Sequence[CoordinationRecord]
    ) -> StoredShare:
        return StoredShare(
            share,
            KeyRows(key, rows),
            state_epoch=0,
            leader_epoch=-1,
            saver=self._saver,
            expired=self._expired,
            on_lost=self._lost,
        )

    def _hold(self, stored: StoredShare) -> None:
        self._held[stored.key] = stored
        if len(self._held) > SHARES_HELD_MAX:
            oldest = next(stored for stored in self._held.values() if not stored.saving)
            self._timers.stop(oldest.timer)
            del self._held[oldest.key]
        self.watch(stored)

    async def _read(self, key: str) -> list[CoordinationRecord]:
        future = self._reads.get(key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._reads[key] = loop.create_future()
            if self._reading is None:
                self._reading = loop.create_task(self._read_batched())
        return await asyncio.shield(future)

    async def _read_batched(self) -> None:
        try:
            while self._reads:
                keys = list(self._reads)[:LOAD_KEYS_MAX]
                waiting = {key: self._reads.pop(key) for key in keys}
                rows: dict[str, list[CoordinationRecord]] = {key: [] for key in keys}
                try:
                    for row in await self._control.records(KIND, keys):
                        rows[row.key].append(row)
                except Exception as error:
                    for future in waiting.values():
                        future.set_exception(error)
                        future.exception()
                    if not isinstance(error, PenstockError):
                        raise
                    continue
                for key, future in waiting.items():
                    future.set_result(rows[key])
        finally:
            self._reading = None

    # Changes

    def watch(self, stored: StoredShare) -> None:
        deadline_ms = stored.share.next_deadline_ms()
        if deadline_ms is None:
            self._timers.stop(stored.timer)
        elif deadline_ms != stored.timer.deadline_ms:
            self._timers.start(stored.timer, deadline_ms)
            self._ticker.arm(self._timers.next_deadline_ms())

    def _tick(self) -> None:
        for timer in self._timers.due(self.now_ms()):
            timer.fire()
        self._ticker.arm(self._timers.next_deadline_ms())

    def _expired(self, stored: StoredShare) -> None:
        if not stored.lost:
            self._set(stored)
            self.released(stored, stored.share.expire(self.now_ms()))

    def released(
        self, stored: StoredShare, undeliverable: Sequence[Undeliverable]
    ) -> asyncio.Future[None]:
        """Save that records were released or are undeliverable, and wake waiting fetches.

        The future ends with the save.
        """
        self.watch(stored)
        for run in undeliverable:
            self.undeliverable[run.cause] += run.records
        self._changed((stored.key,))
        saved = stored.store()
        if undeliverable and stored.share.limits.dead_letters:
            self._archiving(stored)
        return saved

    def release(
        self, group_id: str, member: str, partitions: Iterable[tuple[UUID, int]], *, delivered: bool
    ) -> None:
        """Release the records of a member that left; see `SharePartition.release`."""
        for topic_id, index in partitions:
            stored = self._held.get(share_key(group_id, topic_id, index))
            if stored is not None:
                self._set(stored)
                self.released(stored, stored.share.release(member, delivered=delivered))

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            stored = self._held.get(key)
            if stored is not None:
                stored.close(ShareStateLost(f"{key} was reset or deleted by an administrator"))

    def _lost(self, stored: StoredShare) -> None:
        self._timers.stop(stored.timer)
        if self._held.get(stored.key) is stored:
            del self._held[stored.key]
        self._changed((stored.key,))

    async def stop(self) -> None:
        """Finish saves under way and stop timers. Idempotent."""
        self._ticker.stop()
        for task in [*self._opening.values(), *([self._reading] if self._reading else [])]:
            task.cancel()
        for stored in list(self._held.values()):
            if not stored.saving:
                stored.close(ShareStateLost("the broker is stopping"))
        await self._saver.finish()


def _no_later(run: Run, latest_ms: int) -> Run:
    """Return a run whose lock ends at `latest_ms` or before.

    The clock of the broker that stored the deadline may have been ahead.
    """
    if run.state != RecordState.ACQUIRED or run.deadline_ms <= latest_ms:
        return run
    return run._replace(deadline_ms=latest_ms)


async def _position(source: Partition, settings: ShareSettings, now_ms: int) -> int:
    if source.look_up is not None:
        await source.look_up([source])
    if settings.begins_before_ms is not None:
        since = max(now_ms - settings.begins_before_ms, 0)
        found = source.position(since, committed=settings.committed)
        if isinstance(found, Awaitable):
            found = await found
        return source.high_watermark if found is None else found.offset
    return source.log_start_offset if settings.begins_at == EARLIEST else source.high_watermark
