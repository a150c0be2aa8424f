"""A store, a clock and pauses that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from penstock.objects import Buffer, MemoryStore, ObjectInfo


class Get(NamedTuple):
    """A read that was asked for."""

    key: str
    start: int
    size_bytes: int


class ScriptedStore:
    """Objects in memory; reads wait for the gate and fail as the test says."""

    def __init__(self) -> None:
        self.gets: list[Get] = []
        self.running = 0
        self.running_most = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.gates: dict[int, asyncio.Event] = {}
        """Gates of single reads, by their number from 0."""
        self.fail: Callable[[int, Get], BaseException | None] = lambda _number, _get: None
        self._objects = MemoryStore()

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        await self._objects.put(key, pieces)

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        gathered = [bytes(piece) async for piece in pieces]
        await self.put(key, gathered)
        return sum(map(len, gathered))

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        number, get = len(self.gets), Get(key, start, size_bytes)
        self.gets.append(get)
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            await self.gates.get(number, self.gate).wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        error = self.fail(number, get)
        if error is not None:
            raise error
        return await self._objects.get(key, start, size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        return await self._objects.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._objects.delete(keys)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._objects.list(prefix, after=after)

    async def close(self) -> None:
        await self._objects.close()


class Clock:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.pauses: list[float] = []

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def pause(self, seconds: float) -> None:
        """Record the pause, and advance the time at once."""
        self.pauses.append(seconds)
        self.seconds += seconds
        await turns(1)


async def turns(count: int = 20) -> None:
    """Yield to the event loop `count` times, so that all ready tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)
