"""Running loads of readers, without repetition and limited in number."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Final, Generic, TypeVar

LOADS_MAX: Final = 1024
"""Running and waiting loads. Further loads are begun by a later fetch."""

Wanted = TypeVar("Wanted")


class Loads(Generic[Wanted]):
    """The running loads of one event loop. A load reports its own end."""

    __slots__ = ("_max", "_same", "_stopped", "_tasks", "_under_way")

    def __init__(self, count_max: int) -> None:
        self._max = count_max
        self._under_way: set[Wanted] = set()
        self._same: dict[Wanted, Wanted] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def fresh(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Return those of `wanted` that are not being loaded, without repetition.

        Returns none while too many loads are running, or after `stop`.
        """
        if self._stopped or len(self._under_way) >= self._max:
            return []
        return [fromkey for fromkey in dict.fromkeys(wanted) if fromkey not in self._under_way]

    def begin(self, wanted: Iterable[Wanted], work: Coroutine[None, None, None]) -> None:
        self._under_way.update(wanted)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_same(self, one: Wanted, other: Wanted) -> None:
        """Record that the running load of `one` also provides `other`."""
        if one in self._under_way and other not in self._under_way:
            self._same[one] = other
            self._under_way.add(other)

    def end(self, wanted: Iterable[Wanted]) -> None:
        for piece in wanted:
            self._under_way.discard(piece)
            self._under_way.discard(self._same.pop(piece, piece))

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
