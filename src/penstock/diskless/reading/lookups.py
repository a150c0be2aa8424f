"""Lookup of offsets by timestamp in diskless partitions, for ListOffsets.

The control plane finds the extent, by its highest timestamp. The extent's batches are loaded, and
the decisive one is decoded into columns, so the result is exact. If the matching records of the
extent were deleted, later extents are searched as well.

Source: KIP-79, KIP-734; `storage.lookups` for local logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.archive.assembly import LEADER_EPOCH, Run
from penstock.base.errors import PenstockError
from penstock.control.values.diskless import PartitionKey, Watermarks
from penstock.diskless.errors import Unreadable, for_consumers
from penstock.diskless.reading.loads import LOADS_MAX, Loads
from penstock.records import BatchHeader, decode_header
from penstock.records.extents import Extent
from penstock.records.transactions import AbortedTransaction
from penstock.storage.files.values import OffsetAndTimestamp

if TYPE_CHECKING:
    from penstock.control.operations.diskless import DisklessPlane
    from penstock.diskless.reading.reader import Reader


LOOKUP_EXTENTS: Final = 1000
"""Extents that a lookup by timestamp reads in one call."""
LOOKUP_PAGES_MAX: Final = 10_000
LOOKUPS_AT_ONCE: Final = 16
"""Concurrent lookups by timestamp."""


class Positions:
    """Looks up offsets by timestamp. Callers pass the start and end of the partition."""

    def __init__(self, *, plane: DisklessPlane, reader: Reader) -> None:
        self._plane = plane
        self._reader = reader
        self._turns = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def of(
        self,
        key: PartitionKey,
        timestamp: int | None,
        start: int,
        end: int,
        leader_epoch: int = LEADER_EPOCH,
    ) -> OffsetAndTimestamp | None:
        """Return the first record of [start, end) at or after a timestamp in milliseconds.

        None asks for the record with the highest timestamp.

        Raises:
            PenstockError: the lookup failed. Consumers can handle the error.
        """
        try:
            async with self._turns:
                if timestamp is None:
                    found = await self._newest(key, start, end)
                else:
                    found = await self._first(key, timestamp, start, end)
        except PenstockError as error:
            raise for_consumers(error) from None
        if found is None or found.offset >= end:
            return None
        return found._replace(leader_epoch=leader_epoch)

    async def _first(
        self, key: PartitionKey, timestamp: int, start: int, end: int
    ) -> OffsetAndTimestamp | None:
        extent = await self._plane.extent_at_time(*key, timestamp)
        if extent is None:
            return None
        found = first_at_or_after(await self._reader.run_of(extent), timestamp, start)
        if found is not None:
            return found
        async for later in self._extents(key, extent.next_offset, end):
            if later.max_timestamp >= timestamp:
                found = first_at_or_after(await self._reader.run_of(later), timestamp, start)
                if found is not None:
                    return found
        return None

    async def _newest(self, key: PartitionKey, start: int, end: int) -> OffsetAndTimestamp | None:
        extent = await self._plane.extent_at_time(*key, None)
        if extent is None or extent.max_timestamp < 0:
            return None
        found = first_at_or_after(await self._reader.run_of(extent), extent.max_timestamp, start)
        if found is not None:
            return found
        # Its newest record is deleted: return the newest of the remaining and later records.
        run = await self._reader.run_of(extent)
        left = [header for _, header in batches_from(run, start) if not header.is_control]
        highest = max((header.max_timestamp for header in left), default=-1)
        async for later in self._extents(key, extent.next_offset, end):
            if later.max_timestamp > highest:
                extent, highest = later, later.max_timestamp
        if highest < 0:
            return None
        # The timestamp in a producer's header may exceed those of its records.
        run = await self._reader.run_of(extent)
        found = first_at_or_after(run, highest, start, newest=True)
        return None if found is None or found.timestamp < 0 else found

    async def _extents(self, key: PartitionKey, start: int, end: int) -> AsyncIterator[Extent]:
        for _ in range(LOOKUP_PAGES_MAX):
            if start >= end:
                return
            page: Sequence[Extent] = await self._plane.extents(
                *key, start=start, end=end, limit=LOOKUP_EXTENTS
            )
            if not page:
                return
            for extent in page:
                yield extent
            start = page[-1].next_offset


def batches_from(run: Run, start: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (byte position, header) of each batch of a run that ends above offset `start`."""
    position = 0
    for end in run.ends:
        header = decode_header(run.data, position)
        if header.next_offset > start:
            yield position, header
        position = end


def first_at_or_after(
    run: Run, timestamp: int, start: int, *, newest: bool = False
) -> OffsetAndTimestamp | None:
    """Return the first record of a run at or after a timestamp and at or above offset `start`.

    `newest` asks for the newest record of the first batch whose header reaches the timestamp.
    """
    from penstock.records.columnar.rows import read_rows

    for position, header in batches_from(run, start):
        if header.max_timestamp < timestamp:
            continue
        rows = read_rows(
            run.data[position : position + header.size_bytes],
            columns=("offset", "timestamp"),
            start_offset=start,
        )
        times = rows.longs("timestamp")
        matches = (times >= (times.max() if newest and len(times) else timestamp)).nonzero()[0]
        if len(matches):
            row = int(matches[0])
            offset = int(rows.longs("offset")[row])
            return OffsetAndTimestamp(offset, int(times[row]), LEADER_EPOCH)
    return None


# Cache of the aborted transactions of diskless partitions, for consumers with read_committed.
#
# Rows of aborted transactions never change, and new rows have higher markers. Cached rows from an
# offset on are therefore complete until the partition's watermarks show a newer aborted
# transaction. For offsets below the last stable offset of a cached row they are complete for ever.
#
# Missing rows are loaded while the fetch request waits, and then wake it. A failed load wakes no
# request; the consumer's next request loads again.


ABORTED_PER_CALL: Final = 10_000
"""Aborted transactions that one call of the control plane returns."""
ABORTED_PAGES_MAX: Final = 100
"""Calls of the control plane for one request."""
ABORTED_KEPT_MAX: Final = 200_000
"""Aborted transactions in the cache. The least recently loaded partitions are dropped first."""
ABORTED_KEPT_PARTITIONS: Final = 10_000
"""Partitions in the cache, including those without aborted transactions."""
ABORTED_KEPT_PER_PARTITION: Final = 4
"""Cached results of one partition, for readers at different offsets."""

logger = logging.getLogger(__name__)

_FIRST: Final = attrgetter("first_offset")


class AbortedWant(NamedTuple):
    """A request for the aborted transactions with batches in [start, end)."""

    key: PartitionKey
    start: int
    end: int


class _Known(NamedTuple):
    """Cached aborted transactions with markers at or above `start`, in the order of markers.

    None is missing up to the marker at offset `newest`. If that is -1, none is missing for readers
    below the last stable offset of the last transaction.
    """

    start: int
    newest: int
    transactions: Sequence[AbortedTransaction]

    def answers(self, want: AbortedWant, aborted_offset: int) -> bool:
        if self.start > want.start:
            return False
        return (self.newest >= aborted_offset) or (
            bool(self.transactions) and self.transactions[-1].last_stable_offset >= want.end
        )

    def within(self, want: AbortedWant) -> list[AbortedTransaction]:
        found = [
            transaction
            for transaction in self.transactions
            if transaction.last_offset >= want.start and transaction.first_offset < want.end
        ]
        return sorted(found, key=_FIRST)


class AbortedTransactions:
    """Cache of aborted transactions by partition, for consumers that read committed records.

    Belongs to the event loop.
    """

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        learn: Callable[[PartitionKey, Watermarks], None],
        wake: Callable[[Sequence[PartitionKey]], None],
    ) -> None:
        self._plane = plane
        self._learn = learn
        self._wake = wake
        self._known: dict[PartitionKey, list[_Known]] = {}
        self._size = 0
        self._loads = Loads[AbortedWant](LOADS_MAX)

    def find(self, want: AbortedWant, aborted_offset: int) -> list[AbortedTransaction] | None:
        """Return the cached transactions of a range, or None if the cache may lack some.

        They are ordered by first offset.
        """
        for known in reversed(self._known.get(want.key, ())):
            if known.answers(want, aborted_offset):
                return known.within(want)
        return None

    def load(self, wants: Iterable[AbortedWant], max_bytes: int = 0) -> None:
        """Start loading the transactions of ranges that are not being loaded yet.

        Fetch requests that wait for the partitions are woken when a load ends.
        """
        fresh = self._loads.fresh(wants)
        if fresh:
            self._loads.begin(fresh, self._load(fresh))

    async def of(self, want: AbortedWant) -> list[AbortedTransaction]:
        """Load and return the transactions of a range.

        Raises:
            PenstockError: the control plane does not answer.
        """
        known = await self._ask(want)
        return known.within(want)

    def forget(self, key: PartitionKey) -> None:
        for known in self._known.pop(key, ()):
            self._size -= len(known.transactions)

    async def stop(self) -> None:
        await self._loads.stop()

    async def _load(self, wants: Sequence[AbortedWant]) -> None:
        woken: list[PartitionKey] = []
        try:
            for want in wants:
                try:
                    self._keep(want.key, await self._ask(want))
                    woken.append(want.key)
                except PenstockError as error:
                    logger.warning(
                        "cannot load the aborted transactions of %s: %s", want.key, error
                    )
        finally:
            self._loads.end(wants)
        if woken:
            self._wake(woken)

    async def _ask(self, want: AbortedWant) -> _Known:
        found: list[AbortedTransaction] = []
        at = want.start
        for _ in range(ABORTED_PAGES_MAX):
            page = await self._plane.aborted(*want.key, offset=at, limit=ABORTED_PER_CALL)
            self._learn(want.key, page.watermarks)
            found += page.transactions
            if page.complete_to is None:
                return _Known(want.start, page.watermarks.aborted_offset, found)
            if page.complete_to >= want.end:
                return _Known(want.start, -1, found)
            at = found[-1].last_offset + 1
        raise Unreadable(
            f"partition {want.key[1]} of topic {want.key[0]}: more than {len(found)} aborted"
            f" transactions end after offset {want.start}, more than a fetch can skip. Read from a"
            " later offset, or with isolation.level=read_uncommitted."
        )

    def _keep(self, key: PartitionKey, known: _Known) -> None:
        of_partition = self._known.pop(key, [])
        self._known[key] = of_partition
        of_partition.append(known)
        self._size += len(known.transactions)
        if len(of_partition) > ABORTED_KEPT_PER_PARTITION:
            self._size -= len(of_partition.pop(0).transactions)
        while len(self._known) > 1 and (
            self._size > ABORTED_KEPT_MAX or len(self._known) > ABORTED_KEPT_PARTITIONS
        ):
            self.forget(next(iter(self._known)))
