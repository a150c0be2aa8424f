"""Scan of partitions in rounds: reads, filters by columns, and merges the results by time.

In each round every partition contributes the records of one window: from its position on, or
before it if the newest records come first. The matches of a round are merged by timestamp, but
never against the order of offsets within a partition. Positions then move behind the records that
were returned, so a scan can be continued from its positions at any time.

    partition 0   … ──window── position           newest first: windows move to the left
    partition 1   … ────window──── position

A scan ends when it has found enough records, at the end of the log, or at one of its limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.apps.console.messages.columns import Filter, Inputs
from penstock.apps.console.messages.expressions import NUMBERS, SIDES
from penstock.apps.console.messages.reading import CHUNK_BYTES, COLUMNS, Chunk, TopicReader
from penstock.records.columnar.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from penstock.apps.console.messages.decoding import Decoder

ROUND_BYTES: Final = 32 << 20
"""Bytes that the partitions of a round read together."""
CHUNK_BYTES_MIN: Final = 256 << 10
SLACK_BYTES: Final = 64 << 10
"""Bytes that are requested beyond the estimated size of a window."""
WINDOW_MAX: Final = 1_000_000
"""Largest number of offsets of a window."""
FIRST_WINDOW: Final = 10_000
"""Number of offsets of the first window of a filter that searches backwards."""
PARTITIONS_AT_ONCE: Final = 4
SCHEMA: Final = RECORD_SCHEMA.insert(0, pa.field("partition", pa.int32()))
"""Columns of the records that a scan returns."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one scan."""

    records: int
    size_bytes: int
    seconds: float


class Progress(Struct, kw_only=True):
    """Work of a scan so far. `stopped` is why it ended: found, end, or the limit."""

    records: int = 0
    size_bytes: int = 0
    found: int = 0
    share: float = 0.0
    """Share of the range's offsets that was read, from 0 to 1."""
    stopped: str = ""


class Search(Struct, frozen=True, kw_only=True):
    """Search of a scan: the order, the number of records to return, and the filter."""

    newest_first: bool
    wanted: int
    filter: Filter | None = None


class _Window(Struct, frozen=True, kw_only=True):
    """Matches of a partition in scan order, and the position after the window."""

    partition: int
    table: Any
    position: int


class Scan:
    """Scan of a topic; it changes `positions` as it proceeds."""

    def __init__(
        self,
        reader: TopicReader,
        decoder: Decoder,
        search: Search,
        bounds: Mapping[int, tuple[int, int]],
        positions: Mapping[int, int],
        *,
        limits: Limits,
        turn: asyncio.Semaphore,
        now: Callable[[], float],
    ) -> None:
        """`bounds` are first and end offsets; a position is the offset that is read next.

        If the newest records come first, a position is the offset after the next record.
        """
        self._reader = reader
        self._decoder = decoder
        self._search = search
        self._bounds = bounds
        self.positions = {
            index: min(max(positions.get(index, start), start), end)
            for index, (start, end) in bounds.items()
        }
        self._limits = limits
        self._turn = turn
        self._now = now
        self._began = now()
        self._total = max(1, sum(self._left(index) for index in bounds))
        self._densities: dict[int, float] = {}
        """Bytes for each offset in the last chunk of a partition."""
        self.progress = Progress()

    def _left(self, partition: int) -> int:
        start, end = self._bounds[partition]
        position = self.positions[partition]
        return position - start if self._search.newest_first else end - position

    async def tables(self) -> AsyncIterator[Any]:
        """Yield a table with the matches of each round, which may be empty."""
        progress, wanted = self.progress, self._search.wanted
        while not progress.stopped:
            active = [index for index in self.positions if self._left(index) > 0]
            if not active:
                progress.stopped = "end"
                break
            windows = await self._windows(active)
            table = self._merged(windows, wanted - progress.found)
            progress.found += table.num_rows
            progress.share = 1 - sum(map(self._left, self.positions)) / self._total
            self._check_limits()
            yield table

    def _check_limits(self) -> None:
        progress, limits = self.progress, self._limits
        if progress.found >= self._search.wanted:
            progress.stopped = "found"
        elif not any(self._left(index) > 0 for index in self.positions):
            progress.stopped = "end"
        elif progress.records >= limits.records:
            progress.stopped = "records"
        elif progress.size_bytes >= limits.size_bytes:
            progress.stopped = "bytes"
        elif self._now() - self._began >= limits.seconds:
            progress.stopped = "seconds"

    async def _windows(self, active: list[int]) -> list[_Window]:
        share = min(CHUNK_BYTES, max(CHUNK_BYTES_MIN, ROUND_BYTES // len(active)))
        read = self._before if self._search.newest_first else self._after
        at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def one(partition: int) -> _Window:
            async with at_once:
                return await read(partition, share)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(partition)) for partition in active]
        return [task.result() for task in tasks]

    async def _after(self, partition: int, size_bytes: int) -> _Window:
        """Read the window from the position on.

        A broker may return less than requested, such as the rest of a segment. Without a filter
        more is requested then, because a list is sorted only if its partitions' windows are whole.
        """
        low, end = self.positions[partition], self._bounds[partition][1]
        if self._search.filter is None:
            end = min(end, low + self._search.wanted)
        tables, read = [], 0
        while low < end:
            chunk = await self._reader.fetch(partition, low, size_bytes - read)
            if not chunk.data:
                low = end
                break
            read += len(chunk.data)
            tables.append(await self._matches(chunk, end))
            low = min(chunk.following, end)
            if self._search.filter is not None or 2 * read > size_bytes:
                break
        table = pa.concat_tables([*tables, SCHEMA.empty_table()])
        return _Window(partition=partition, table=table, position=low)

    async def _before(self, partition: int, size_bytes: int) -> _Window:
        """Read the window before the position; a window with too many bytes is made smaller."""
        start, end = self._bounds[partition][0], self.positions[partition]
        width = self._search.wanted
        if self._search.filter is not None:
            density = self._densities.get(partition)
            width = FIRST_WINDOW if density is None else int(size_bytes / density)
        width = min(WINDOW_MAX, max(1, width))
        while True:
            low = max(start, end - width)
            tables = await self._range(partition, low, end, size_bytes)
            if tables is not None:
                break
            width = max(1, width // 8)
        table = pa.concat_tables([*tables, SCHEMA.empty_table()])
        rows = np.arange(table.num_rows - 1, -1, -1)
        return _Window(partition=partition, table=table.take(pa.array(rows)), position=low)

    async def _range(self, partition: int, low: int, end: int, size_bytes: int) -> list[Any] | None:
        """Return the matches in [low, end); None if there are too many bytes to read."""
        tables, read = [], 0
        while low < end:
            if read > 2 * size_bytes and end - low > 1:
                return None
            density = self._densities.get(partition)
            wanted = (
                CHUNK_BYTES_MIN if density is None else int(density * (end - low)) + SLACK_BYTES
            )
            chunk = await self._reader.fetch(partition, low, min(size_bytes, wanted))
            read += len(chunk.data)
            if not chunk.data:
                break
            self._densities[partition] = len(chunk.data) / max(1, chunk.following - low)
            tables.append(await self._matches(chunk, end))
            low = chunk.following
        return tables

    async def _matches(self, chunk: Chunk, end: int) -> Any:
        async with self._turn:
            table, count = await asyncio.to_thread(
                matches, self._search.filter, self._decoder, chunk, end
            )
        self.progress.records += count
        self.progress.size_bytes += len(chunk.data)
        return table

    def _merged(self, windows: list[_Window], wanted: int) -> Any:
        """Return the first matches of a round, and move the positions."""
        back = self._search.newest_first
        keys, owners, rows = [], [], []
        for number, window in enumerate(windows):
            times = window.table.column("timestamp").to_numpy()
            times = -np.maximum(times, -(1 << 62)) if back else times
            keys.append(np.maximum.accumulate(times) if times.size else times)
            owners.append(np.full(times.size, number))
            rows.append(np.arange(times.size))
        whole = pa.concat_tables([window.table for window in windows])
        order = np.argsort(np.concatenate(keys), kind="stable")
        taken = order[: max(0, wanted)]
        counts = np.bincount(np.concatenate(owners)[taken].astype(np.int64), minlength=len(windows))
        for window, count in zip(windows, counts.tolist(), strict=True):
            if count < window.table.num_rows:
                offset = window.table.column("offset")[count].as_py()
                self.positions[window.partition] = offset + 1 if back else offset
            else:
                self.positions[window.partition] = window.position
        return whole.take(pa.array(taken))


def matches(
    condition: Filter | None, decoder: Decoder, chunk: Chunk, end: int | None
) -> tuple[Any, int]:
    """Return the records of a chunk that match, as a table, and the number of all its records.

    Only the columns that the filter names are read first; whole records are decoded for matches.
    """
    if condition is None:
        return _table(chunk, decoder.masked(chunk.decoded(COLUMNS, end)))
    roots = condition.roots
    needed = {"offset", *(root for root in roots if root in COLUMNS)}
    if "size" in roots:
        needed |= set(SIDES)
    needed |= decoder.columns(roots)
    batch = decoder.masked(chunk.decoded([name for name in COLUMNS if name in needed], end))
    flags = condition.flags(_inputs(chunk.partition, batch, roots, decoder))
    count = batch.num_rows
    if not pc.any(flags).as_py():
        return SCHEMA.empty_table(), count
    if not needed.issuperset(COLUMNS):
        batch = decoder.masked(chunk.decoded(COLUMNS, end))
    return _table(chunk, batch.filter(flags))[0], count


def _table(chunk: Chunk, batch: Any) -> tuple[Any, int]:
    partition = pa.repeat(pa.scalar(chunk.partition, pa.int32()), batch.num_rows)
    columns = [partition, *(batch.column(name) for name in COLUMNS)]
    return pa.Table.from_arrays(columns, schema=SCHEMA), batch.num_rows


def _inputs(partition: int, batch: Any, roots: frozenset[str], decoder: Decoder) -> Inputs:
    headers = batch.column("headers") if "headers" in batch.schema.names else None
    numbers: dict[str, Any] = {}
    for name in roots.intersection(NUMBERS):
        if name == "partition":
            numbers[name] = pa.repeat(pa.scalar(partition, pa.int64()), batch.num_rows)
        elif name == "size":
            sizes = [pc.binary_length(batch.column(side)).fill_null(0) for side in SIDES]
            numbers[name] = pc.add(*sizes).cast(pa.int64())
        else:
            numbers[name] = batch.column(name)
    documents = {
        side: decoder.documents(side, batch.column(side), headers)
        for side in roots.intersection(SIDES)
    }
    return Inputs(numbers=numbers, documents=documents, headers=headers, count=batch.num_rows)
