"""Archived part of one partition, which has the records below the start of its log.

The log has the newest records; the archive has the committed records of closed segments. Records in
both are read from the log. Start and end offset of the archive are those in the control plane's
last response (`core.py`). Only the leader changes them, so they are exact on the leader once it has
requested them. Followers request them periodically, and keep segments on disk until they know that
these are archived.

Source: KIP-405 (log start and local log start); KIP-1023 (the pending upload).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import RetriableError
from penstock.base.settings import LONG_MAX
from penstock.partitions.tiering.core import TierCore
from penstock.partitions.tiering.reading import TierReader, TierWant
from penstock.records.extents import Extent
from penstock.storage.epochs import EpochHistory
from penstock.storage.values import Later, OffsetAndTimestamp, Read

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from penstock.control.batch_index.values import PartitionKey
    from penstock.control.tiers.operations import TieredPartitions
    from penstock.control.tiers.values import TierBounds
    from penstock.partitions.tiering.fetching import TierFetcher
    from penstock.records.transactions import AbortedTransaction
    from penstock.storage import PartitionLog


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
        """Apply new offsets of the core to the log and the partition."""
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
        """Return the aborted transactions of a range that was just read or passed to `extents`.

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
