"""Reads of archived records, for consumers below the start of a log.

`read` returns buffered batches at once. `load` requests other batches, and wakes the waiting
fetches when they are loaded. A load finds the segment in the control plane, and the position in the
segment's offset index; both are cached. It then reads a chunk and verifies its batches. When a
consumer is beyond the middle of a chunk, the next chunks are read ahead.

Reads use a store client of their own, with limits on running requests, waiting requests, and bytes
per second. Consumers retry rejected requests. Only batches for the next fetches are buffered, so
consumers of old records do not slow down consumers at the end of a log.

If a chunk cannot be read, a fetch fails at the chunk's offset: a consumer gets the records before
it, in order.

Source: KIP-405 (`RemoteLogReader`), KIP-1075 and `design/diskless.md` (the cold path).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.diskless.reading.budget import ByteBudget
from penstock.diskless.reading.errors import Unreadable
from penstock.diskless.reading.loads import Loads
from penstock.diskless.reading.ready import Place, Ready
from penstock.partitions.tiering.fetching import CHUNK_BYTES_MIN, TierFetcher
from penstock.partitions.tiering.runs import TierRun
from penstock.storage.values import Read

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.control.batch_index.values import PartitionKey
    from penstock.partitions.tiering.metrics import TierCounters
    from penstock.partitions.tiering.source import TierSource

CHUNK_BYTES: Final = 8 << 20
"""Bytes of a chunk, unless many consumers share the buffer or a fetch asks for more."""
CHUNKS_AHEAD: Final = 3
"""Maximum number of chunks that are read ahead in parallel."""
READY_BYTES_MAX: Final = 128 << 20
"""Maximum bytes of buffered batches that wait for their fetch."""
READY_SECONDS: Final = 30.0
"""Seconds that batches stay buffered."""
READY_SHARE: Final = 4
"""A chunk takes at most 1 / READY_SHARE of a partition's share of the buffer."""
LOADING_BYTES_MAX: Final = 256 << 20
"""Maximum bytes that are loaded from the store in parallel; further loads wait."""
LOADS_MAX: Final = 1_024
"""Maximum number of running and waiting loads; the next fetch retries the others."""

logger = logging.getLogger(__name__)


class TierWant(NamedTuple):
    """Fetch of archived records of one partition."""

    part: TierSource
    offset: int
    max_bytes: int

    @property
    def key(self) -> PartitionKey:
        return self.part.key


class TierReader:
    """Buffered reader of archived records; belongs to the event loop."""

    def __init__(
        self,
        fetcher: TierFetcher,
        *,
        clock: Clock,
        counters: TierCounters,
        wake: Callable[[Sequence[TierSource]], None],
    ) -> None:
        """Create a reader; `wake` is called with the partitions whose loads ended."""
        self._fetcher = fetcher
        self._clock = clock
        self._counters = counters
        self._wake = wake
        self._ready = Ready(max_bytes=READY_BYTES_MAX, seconds=READY_SECONDS)
        self._budget = ByteBudget(LOADING_BYTES_MAX)
        self._loads = Loads[Place](LOADS_MAX)
        self._following: dict[Place, int] = {}
        """Offset in the first batch after the chunk, for each running load."""

    def read(self, want: TierWant, *, at_least_one: bool) -> Read | None:
        """Return buffered batches for a fetch; None if they must be loaded first.

        Raises:
            OffsetOutOfRange: the offset is below the partition's start.
            PenstockError: loading has just failed.
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
        run = self._ready.run(key, offset)
        return run if isinstance(run, TierRun) else None

    def load(self, wants: Sequence[TierWant], max_bytes: int) -> None:
        """Start the missing loads for a response of `max_bytes`, unless too many are running."""
        now, left = self._clock.monotonic(), max_bytes
        for place, want in enumerate(dict.fromkeys(wants)):
            if left <= 0 and place:
                return
            left -= min(want.max_bytes, self._chunk_bytes(want))
            if self._ready.failure(want.key, want.offset, now) is None:
                self._begin(want)

    def forget(self, key: PartitionKey) -> None:
        self._fetcher.forget(key)
        self._ready.drop(key)

    def upkeep(self) -> None:
        """Evict buffered batches that no consumer fetched; call this periodically."""
        self._ready.evict(self._clock.monotonic())

    async def stop(self) -> None:
        await self._loads.stop()

    def _read_ahead(self, want: TierWant, run: TierRun) -> None:
        run.ahead_from = run.next_offset
        at = _behind(run)
        for left in range(CHUNKS_AHEAD - 1, -1, -1):
            if not 0 <= at < want.part.tiered_end:
                return
            ready = self.run_at(want.key, at)
            if ready is None:
                self._begin(want._replace(offset=at), ahead=left)
            at = self._following.get((want.key, at), -1) if ready is None else _behind(ready)

    def _begin(self, want: TierWant, ahead: int = 0) -> None:
        """Start to load a chunk, and the next `ahead` chunks after it."""
        positions = self._loads.fresh([(want.key, want.offset)])
        if positions:
            self._loads.begin(positions, self._load(want, ahead))

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
            self._failed(want, Unreadable("an internal error of the broker; see its log"))
        finally:
            self._following.pop(place, None)
            self._loads.end([place])
            self._wake([want.part])

    def _chunk_bytes(self, want: TierWant) -> int:
        """Return the bytes of a chunk, which are fewer if many consumers share the buffer."""
        share = READY_BYTES_MAX // (READY_SHARE * (1 + self._ready.partitions))
        return max(want.max_bytes, CHUNK_BYTES_MIN, min(CHUNK_BYTES, share))

    def _failed(self, want: TierWant, error: PenstockError) -> None:
        failure = self._ready.fail(want.key, want.offset, error, self._clock.monotonic())
        if failure.quiet:
            self._counters.fetch_rejected += 1
        elif failure.error.code == Unreadable.code:
            self._counters.fetch_errors += 1
            where = f"{want.part.name} at offset {want.offset}"
            logger.warning("%s cannot be read from the archive: %s", where, error)


def _behind(run: TierRun) -> int:
    """Return the offset at which the load of the next chunk begins."""
    return run.next_offset if run.following < 0 else run.following
