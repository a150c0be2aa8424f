"""Archived part of one partition, which has the records below the start of its log.

The log has the newest records; the archive has the committed records of closed segments. Records in
both are read from the log. Start and end offset of the archive are those in the control plane's
last response (`partitions/tiers/core.py`). Only the leader changes them, so they are exact on the
leader once it has requested them. Followers request them periodically, and keep segments on disk
until they know that these are archived.

Source: KIP-405 (log start and local log start); KIP-1023 (the pending upload).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from msgspec import Struct

from penstock.base.errors import PenstockError, RetriableError
from penstock.base.settings import LONG_MAX
from penstock.diskless.errors import Unreadable
from penstock.diskless.reading.loads import ByteBudget, Loads, Place, Ready
from penstock.partitions.tiers.core import TierCore
from penstock.partitions.tiers.fetching import CHUNK_BYTES_MIN, TierFetcher, TierRun, TierSource
from penstock.records.extents import Extent
from penstock.storage.files.epochs import EpochHistory
from penstock.storage.files.values import Later, OffsetAndTimestamp, Read

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from penstock.base.system import Clock
    from penstock.control.operations.tiers import TieredPartitions
    from penstock.control.values.diskless import PartitionKey
    from penstock.control.values.tiers import TierBounds
    from penstock.partitions.tiers.settings import TierCounters
    from penstock.records.transactions import AbortedTransaction
    from penstock.storage import PartitionLog


# Reads of archived records, for consumers below the start of a log.
#
# `read` returns buffered batches at once. `load` requests other batches, and wakes the waiting
# fetches when they are loaded. A load finds the segment in the control plane, and the position in
# the segment's offset index; both are cached. It then reads a chunk and verifies its batches. When
# a consumer is beyond the middle of a chunk, the next chunks are read ahead.
#
# Reads use a store client of their own, with limits on running requests, waiting requests, and
# bytes per second. Consumers retry rejected requests. Only batches for the next fetches are
# buffered, so consumers of old records do not slow down consumers at the end of a log.
#
# If a chunk cannot be read, a fetch fails at the chunk's offset: a consumer gets the records before
# it, in order.
#
# Source: KIP-405 (`RemoteLogReader`), KIP-1075 and `design/diskless.md` (the cold path).


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
    """Return the offset at which the chunk after `run` begins."""
    return run.next_offset if run.following < 0 else run.following


class TiersUnknown(RetriableError):
    """State of a partition's archive that is not loaded yet; a retry may find it loaded."""

    code: ClassVar[str] = "kafka_storage_error"


_ABORTS_KEPT: Final = 16
"""Maximum number of offset ranges whose aborted transactions `extents` caches for `aborted`."""


class TierParts(Struct, frozen=True, kw_only=True):
    """Objects that the archived parts of all partitions of a broker share."""

    plane: TieredPartitions
    reader: TierReader
    fetcher: TierFetcher
    turns: asyncio.Semaphore
    store_url: str
    look_up: Callable[[Sequence[TieredPart]], Awaitable[None]]


class TieredPart:
    """Archived part of one partition; belongs to the event loop."""

    __slots__ = ("_aborts", "_moved", "_shared", "busy", "copies", "core", "key", "log", "name")

    def __init__(
        self, shared: TierParts, log: PartitionLog, topic_id: UUID, moved: Callable[[], None]
    ) -> None:
        """Create a part; `moved` is called when the partition's start moves."""
        self._shared = shared
        self._moved = moved
        self._aborts: OrderedDict[tuple[int, int], list[AbortedTransaction]] = OrderedDict()
        self.log = log
        self.key: PartitionKey = (topic_id, log.topic_partition.partition)
        self.name = str(log.topic_partition)
        self.core = TierCore()
        self.copies = True
        """Whether more segments may be copied."""
        self.busy = False
        """Whether an effect is being performed."""

    # -- start and end -----------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the archive is known to have records of the partition."""
        return self.core.bounds is not None and self.core.bounds.alive

    @property
    def start_offset(self) -> int:
        bounds, here = self.core.bounds, self.log.log_start_offset
        if bounds is None:
            return here
        return bounds.log_start_offset if bounds.alive else max(here, bounds.log_start_offset)

    @property
    def tiered_end(self) -> int:
        """End offset of the archive; 0 for none."""
        return self.core.tiered_offset

    @property
    def aborted_offset(self) -> int:
        return -1 if self.core.bounds is None else self.core.bounds.aborted_offset

    @property
    def store_url(self) -> str:
        return self._shared.store_url if self.alive else ""

    def changed(self) -> None:
        """Pass the archive's changed offsets on to the log and the partition.

        The log may delete local segments that are archived.
        """
        done = not self.copies and self.core.known and not self.alive
        self.log.state.tiered_offset = LONG_MAX if done else self.tiered_end
        self._moved()

    def learned(self, bounds: TierBounds | None, leader_epoch: int = -1) -> None:
        self.core.learned(bounds, leader_epoch)
        self.changed()

    async def look_up(self) -> None:
        """Request the archive's start and end offset; raises PenstockError."""
        await self._shared.look_up([self])

    async def look_up_unknown(self) -> None:
        if not self.core.known:
            await self.look_up()

    # -- interface for the partition ---------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, at_least_one: bool) -> Read | Later:
        """Read below the log's start, as `Partition.read`.

        Raises:
            OffsetOutOfRange: `offset` is below the partition's start.
            PenstockError: loading has just failed.
        """
        want = TierWant(self, offset, max_bytes)
        read = self._shared.reader.read(want, at_least_one=at_least_one)
        return Later(self._shared.reader.load, want) if read is None else read

    def aborted(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions of [start, end), without loading anything.

        The caller has just read this range or called `extents` for it, so they are in memory.

        Raises:
            TiersUnknown: the transactions of the range are not in memory.
        """
        known = self._aborts.get((start, end))
        if known is not None:
            return known
        run = self._shared.reader.run_at(self.key, start)
        if run is None or end > run.next_offset:
            raise TiersUnknown(
                f"{self.name}: aborted transactions of offsets [{start}, {end}) are not loaded"
            )
        return [txn for txn in run.aborted if txn.first_offset < end and txn.last_offset >= start]

    async def position(
        self, timestamp: int | None, here: OffsetAndTimestamp | None
    ) -> OffsetAndTimestamp | None:
        """Return the position of a timestamp, or of the highest timestamp for None.

        `here` is the position in the log. It is returned if the archive has no match or, for None,
        only lower timestamps.

        Raises:
            PenstockError: the archive cannot be read now.
        """
        async with self._shared.turns:
            await self.look_up_unknown()
            found = None
            if self.alive:
                found = await self._shared.fetcher.position(self, timestamp)
        if found is None or found.offset >= self.log.log_start_offset:
            return here
        if timestamp is None and here is not None and here.timestamp > found.timestamp:
            return here
        return found

    def epochs(self) -> EpochHistory:
        here = self.log.state.epochs.entries
        bounds = self.core.bounds
        if bounds is None or not bounds.alive:
            return EpochHistory(here)
        entries = list(bounds.epochs)
        newest = entries[-1][0] if entries else -1
        return EpochHistory([*entries, *(entry for entry in here if entry[0] > newest)])

    async def extents(self, start: int, end: int, *, limit: int) -> list[Extent]:
        """Return extents of archived objects below the log's start.

        Their aborted transactions are cached for `aborted`.
        """
        shared, found = self._shared, []
        end = min(end, self.log.log_start_offset)
        for segment in await shared.fetcher.segments(self, start, end, limit):
            index = await shared.fetcher.offsets_of(segment)
            first = index.by_offset(start).position
            last = segment.size_bytes
            if end < segment.next_offset:
                last = index.position_behind(end - 1, segment.size_bytes)
            found.append(
                Extent(
                    segment.object_id,
                    segment.key,
                    "segment",
                    first,
                    last - first,
                    max(start, segment.base_offset),
                    min(end, segment.next_offset),
                    segment.max_timestamp,
                    -1,
                    b"",
                )
            )
        if found:
            covered = (start, found[-1].next_offset)
            self._aborts[covered] = await shared.fetcher.aborted(self, *covered)
            while len(self._aborts) > _ABORTS_KEPT:
                self._aborts.popitem(last=False)
        return found

    async def delete_records(self, before_offset: int, leader_epoch: int) -> None:
        """Move the partition's start to an offset, and delete archived records below it.

        Raises:
            PenstockError: the control plane cannot record it; nothing has changed.
        """
        await self.look_up_unknown()
        bounds = self.core.bounds
        more = bounds is not None and before_offset > bounds.log_start_offset
        while more:
            dropped = await self._shared.plane.retain_tiers(
                self.key, leader_epoch=leader_epoch, start_offset=before_offset
            )
            self.core.trimmed(dropped)
            self.changed()
            more = dropped is not None and dropped.more
