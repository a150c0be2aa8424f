"""Chunks of the archive that are read ahead of a consumer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from penstock.base.pause import pause
from penstock.base.system import SYSTEM_CLOCK
from penstock.partitions.tiers.fetching import Chunk, TierFetcher, TierRun, TierSource
from penstock.partitions.tiers.part import CHUNKS_AHEAD, TierReader, TierWant
from penstock.partitions.tiers.settings import TierCounters

RECORDS = 10
END = 1000
DEADLINE = 20.0


@dataclass(frozen=True)
class Source:
    """An archived partition."""

    key: tuple[UUID, int] = (UUID(int=1), 0)
    name: str = "t-0"
    tiered_end: int = END


@dataclass
class Fetcher:
    """An archive whose loads end at once, or only when `together` of them are running."""

    together: int = 1
    running: int = 0
    most: int = 0
    loaded: list[int] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def chunk(self, part: Source, offset: int, size_bytes: int) -> Chunk:
        following = offset + RECORDS if offset + RECORDS < END else -1
        return Chunk(cast("Any", None), offset, offset, RECORDS, following)

    async def run(self, part: Source, chunk: Chunk) -> TierRun:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running >= self.together:
            self.enough.set()
        await self.enough.wait()
        await pause(0)
        self.running -= 1
        self.loaded.append(chunk.offset)
        ends = list(range(1, RECORDS + 1))
        offsets = [chunk.offset + end - 1 for end in ends]
        return TierRun(memoryview(bytes(RECORDS)), offsets, ends, chunk.offset + RECORDS)


class Consumer:
    """A reader of one partition from its start."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self._ended = asyncio.Event()
        self._source = cast("TierSource", Source())
        self.reader = TierReader(
            cast("TierFetcher", fetcher),
            clock=SYSTEM_CLOCK,
            counters=TierCounters(),
            wake=lambda parts: self._ended.set(),
        )

    async def read(self, offset: int) -> int:
        """Return the offset after the records that were read."""
        want = TierWant(self._source, offset, RECORDS)
        while (read := self.reader.read(want, at_least_one=True)) is None:
            self._ended.clear()
            self.reader.load([want], RECORDS)
            await self._ended.wait()
        await pause(0)  # loads begin between two fetches
        return read.next_offset

    async def until_loaded(self, count: int) -> None:
        while len(self.fetcher.loaded) < count:
            self._ended.clear()
            await self._ended.wait()


async def test_chunks_are_read_ahead_beside_each_other() -> None:
    async with asyncio.timeout(DEADLINE):
        consumer = Consumer(Fetcher())
        await consumer.read(0)
        await consumer.until_loaded(1 + CHUNKS_AHEAD)
        consumer.fetcher.together, consumer.fetcher.enough = CHUNKS_AHEAD, asyncio.Event()
        at = RECORDS
        for _ in range(CHUNKS_AHEAD):
            at = await consumer.read(at)
        await consumer.until_loaded(1 + 2 * CHUNKS_AHEAD)
    assert consumer.fetcher.most == CHUNKS_AHEAD
    await consumer.reader.stop()


async def test_a_partition_is_read_to_its_end_with_each_chunk_once() -> None:
    async with asyncio.timeout(DEADLINE):
        consumer, at = Consumer(Fetcher()), 0
        while at < END:
            at = await consumer.read(at)
    assert consumer.fetcher.loaded == list(range(0, END, RECORDS))
    await consumer.reader.stop()
