"""Lookup of offsets by timestamp in diskless partitions, for ListOffsets.

The control plane finds the extent, by its highest timestamp. The extent's batches are loaded, and
the decisive one is decoded into columns, so the result is exact. If the matching records of the
extent were deleted, later extents are searched as well.

Source: KIP-79, KIP-734; `storage.lookups` for local logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.archive.assembly import LEADER_EPOCH, Run
from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import PartitionKey
from penstock.diskless.reading.errors import for_consumers
from penstock.records import BatchHeader, decode_header
from penstock.records.extents import Extent
from penstock.storage.values import OffsetAndTimestamp

if TYPE_CHECKING:
    from penstock.control.batch_index.operations import DisklessPlane
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
    from penstock.records.columnar.decode import decode_batches

    for position, header in batches_from(run, start):
        if header.max_timestamp < timestamp:
            continue
        columns: Any = decode_batches(
            run.data[position : position + header.size_bytes],
            columns=("offset", "timestamp"),
            start_offset=start,
        )
        times = columns.column(1).to_numpy()
        matches = (times >= (times.max() if newest and len(times) else timestamp)).nonzero()[0]
        if len(matches):
            row = int(matches[0])
            offset = int(columns.column(0)[row].as_py())
            return OffsetAndTimestamp(offset, int(times[row]), LEADER_EPOCH)
    return None
