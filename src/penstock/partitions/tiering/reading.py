"""Reads what lies in the archive, for consumers below the start of a log.

`read` answers from what is ready, at once; what is not is asked for with `load`, and when it is
there, those who wait are woken and read again. A load finds the segment (control plane, kept for a
while), where in it to begin (its offset index, kept in memory), and reads a chunk of whole batches,
of which every one is checked. Once a consumer is well within a chunk the next ones are read ahead.

It goes by a path of its own: a client of the store, so many requests at once, so many that wait
(more are rejected, and the consumer asks again), so many bytes a second. Nothing of it is kept but
what is about to be fetched. So those who catch up are in the way of nobody at the end of a log.

A chunk that cannot be had is a failure at its offset: a consumer gets what precedes it, in order.

Source: KIP-405 (`RemoteLogReader`), KIP-1075 and `design/diskless.md` (the cold path).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import PenstockError
from penstock.diskless.reading.budget import ByteBudget
from penstock.diskless.reading.errors import Unreadable
from penstock.diskless.reading.loads import Loads
from penstock.diskless.reading.ready import Place, Ready
from penstock.partitions.tiering import limits
from penstock.partitions.tiering.fetching import TierFetcher
from penstock.partitions.tiering.runs import TierRun
from penstock.storage.values import Read

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.batch_index.values import PartitionKey
    from penstock.partitions.tiering.metrics import TierCounters
    from penstock.partitions.tiering.source import TierSource

logger = logging.getLogger(__name__)


class TierWant(NamedTuple):
    """What a fetch asks of one partition's tiers."""

    part: TierSource
    offset: int
    max_bytes: int

    @property
    def key(self) -> PartitionKey:
        return self.part.key


class TierReader:
    """See the module's text. Belongs to the event loop."""

    def __init__(
        self,
        fetcher: TierFetcher,
        *,
        clock: Clock,
        counters: TierCounters,
        wake: Callable[[Sequence[TierSource]], None],
    ) -> None:
        """`wake` is told whose loads have ended."""
        self._fetcher = fetcher
        self._clock = clock
        self._counters = counters
        self._wake = wake
        self._ready = Ready(max_bytes=limits.READY_BYTES_MAX, seconds=limits.READY_SECONDS)
        self._budget = ByteBudget(limits.LOADING_BYTES_MAX)
        self._loads = Loads[Place](limits.LOADS_MAX)
        self._following: dict[Place, int] = {}
        """Of loads that are under way, an offset in the first batch behind their chunks."""

    def read(self, want: TierWant, *, at_least_one: bool) -> Read | None:
        """What is ready of what is wanted; None if it must be loaded first.

        Raises:
            OffsetOutOfRange: it is below the partition's start.
            PenstockError: loading it failed a moment ago.
        """
        run = self.run_at(want.key, want.offset)
        if run is not None:
            data, next_offset = run.part(
                want.offset, max_bytes=want.max_bytes, at_least_one=at_least_one
            )
            if next_offset > run.ahead_from:
                self._read_ahead(want, run)
            return Read([data] if data else [], len(data), next_offset)
        self._ready.failed(want.key, want.offset, self._clock.monotonic())
        return None

    def run_at(self, key: PartitionKey, offset: int) -> TierRun | None:
        """What is ready from an offset on."""
        run = self._ready.run(key, offset)
        return run if isinstance(run, TierRun) else None

    def load(self, wants: Sequence[TierWant], max_bytes: int) -> None:
        """Begin to load what is not under way, for so many bytes of an answer; the first at least.

        Nothing happens while too much is under way.
        """
        now, left = self._clock.monotonic(), max_bytes
        for place, want in enumerate(dict.fromkeys(wants)):
            if left <= 0 and place:
                return
            left -= min(want.max_bytes, self._chunk_bytes(want))
            if self._ready.failure(want.key, want.offset, now) is None:
                self._begin(want)

    def forget(self, key: PartitionKey) -> None:
        """Drop all that is known and loaded of a partition."""
        self._fetcher.forget(key)
        self._ready.drop(key)

    def upkeep(self) -> None:
        """Let go of what nobody came for; to be called now and then."""
        self._ready.evict(self._clock.monotonic())

    async def stop(self) -> None:
        """End all loads. Idempotent."""
        await self._loads.stop()

    def _read_ahead(self, want: TierWant, run: TierRun) -> None:
        """Have the chunks that follow one loaded before they are asked for."""
        run.ahead_from = run.next_offset
        at = _behind(run)
        for left in range(limits.CHUNKS_AHEAD - 1, -1, -1):
            if not 0 <= at < want.part.tiered_end:
                return
            ready = self.run_at(want.key, at)
            if ready is None:
                self._begin(want._replace(offset=at), ahead=left)
            at = self._following.get((want.key, at), -1) if ready is None else _behind(ready)

    def _begin(self, want: TierWant, ahead: int = 0) -> None:
        """Load a chunk, and so many more behind it."""
        places = self._loads.fresh([(want.key, want.offset)])
        if places:
            self._loads.begin(places, self._load(want, ahead))

    async def _load(self, want: TierWant, ahead: int) -> None:
        place = want.key, want.offset
        try:
            chunk = await self._fetcher.chunk(want.part, want.offset, self._chunk_bytes(want))
            following = self._following[place] = chunk.following
            if ahead and 0 <= following < want.part.tiered_end:
                self._begin(want._replace(offset=following), ahead - 1)
            await self._budget.take(chunk.size_bytes)
            try:
                run = await self._fetcher.run(want.part, chunk)
            finally:
                self._budget.give(chunk.size_bytes)
            run.following = following
            self._ready.put(want.key, run, self._clock.monotonic())
            self._loads.is_same((want.key, following), (want.key, run.next_offset))
            self._counters.fetches += 1
            self._counters.fetched_bytes += len(run)
        except PenstockError as error:
            self._failed(want, error)
        except Exception:
            logger.exception("reading %s from the archive failed", want.part.name)
            self._failed(want, Unreadable("the broker failed on this read; its log has the cause"))
        finally:
            self._following.pop(place, None)
            self._loads.end([place])
            self._wake([want.part])

    def _chunk_bytes(self, want: TierWant) -> int:
        """What is read at once: less where many consumers share what may be ready."""
        share = limits.READY_BYTES_MAX // (limits.READY_SHARE * (1 + self._ready.partitions))
        return max(want.max_bytes, limits.CHUNK_BYTES_MIN, min(limits.CHUNK_BYTES, share))

    def _failed(self, want: TierWant, error: PenstockError) -> None:
        """Remember a failure, for a moment."""
        failure = self._ready.fail(want.key, want.offset, error, self._clock.monotonic())
        if failure.quiet:
            self._counters.fetch_rejected += 1
        elif failure.error.code == Unreadable.code:
            self._counters.fetch_errors += 1
            where = f"{want.part.name} at offset {want.offset}"
            logger.warning("%s cannot be read from the archive: %s", where, error)


def _behind(run: TierRun) -> int:
    """An offset of what follows, as a load of it is known by."""
    return run.next_offset if run.following < 0 else run.following
