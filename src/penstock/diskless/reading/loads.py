"""Loads of batches from the object store: those in progress, their memory, and their results.

Several fetches may want the same batches, which are loaded once. The number of loads and their
bytes are limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.archive.assembly import Run
from penstock.base.errors import PenstockError
from penstock.control.values.diskless import PartitionKey
from penstock.diskless.errors import for_consumers
from penstock.objects import LaggingConsumerRejected

LOADS_MAX: Final = 1024
"""Running and waiting loads. Further loads are begun by a later fetch."""

Wanted = TypeVar("Wanted")


class Loads(Generic[Wanted]):
    """The loads in progress on one event loop, so that nothing is loaded twice at once.

    The coroutine of a load calls `end` itself.
    """

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


class ByteBudget:
    """A number of bytes shared by loads. Belongs to one event loop.

    A demand above the whole budget is granted when no other load has bytes.
    """

    __slots__ = ("_max_bytes", "_waiting", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self._max_bytes

    async def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` are free, and take them. The caller returns them with `give`."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done() and not self._fits(wanted):
                return
            self._waiting.popleft()
            if not turn.done():
                self.used_bytes += wanted
                turn.set_result(None)


# Loaded batches that wait for a fetch, and recent failures of loads.
#
# A load may take longer than a fetch may wait. The fetch then gets an empty response, and the
# consumer's next fetch finds the batches here. Consumers of a partition share them. The number of
# bytes and their age are limited, and the oldest run is dropped first. The newest run stays however
# large it is, so that consumers make progress.
#
# The error of a failed load is stored for half a second, so that retries do not overload the store.


FAILURE_SECONDS: Final = 0.5
"""Time for which requests get the error of a failed load, before a new attempt."""
READY_PER_PARTITION_MAX: Final = 64
"""Waiting runs of one partition, for consumers at different offsets."""

Place = tuple[PartitionKey, int]
"""A partition and an offset in it."""


class Failure(NamedTuple):
    """The error of a failed load, stored so that requests do not repeat the load until `until`.

    If it is `quiet`, consumers get an empty response instead of the error.
    """

    error: PenstockError
    until: float
    quiet: bool


class Ready:
    """Loaded batches that wait for a fetch, and recent failures, by partition.

    A `Run` is a sequence of adjacent batches. Times are seconds of a monotonic clock.
    """

    __slots__ = ("_failures", "_max_bytes", "_order", "_runs", "_seconds", "size_bytes")

    def __init__(self, *, max_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._runs: dict[PartitionKey, list[Run]] = {}
        self._order: deque[tuple[float, PartitionKey, Run]] = deque()
        self._failures: dict[Place, Failure] = {}
        self.size_bytes = 0

    @property
    def partitions(self) -> int:
        return len(self._runs)

    def put(self, key: PartitionKey, run: Run, now: float) -> None:
        """Store a loaded run. If several runs hold an offset, a fetch gets the newest."""
        runs = self._runs.setdefault(key, [])
        runs.append(run)
        self._order.append((now, key, run))
        self.size_bytes += len(run)
        if len(runs) > READY_PER_PARTITION_MAX:
            self._remove(key, runs[0])
        self.evict(now)

    def fail(self, key: PartitionKey, offset: int, error: PenstockError, now: float) -> Failure:
        """Store and return a failure, with an error that consumers can handle."""
        quiet = isinstance(error, LaggingConsumerRejected)
        failure = Failure(for_consumers(error), now + FAILURE_SECONDS, quiet)
        self._failures.pop((key, offset), None)
        self._failures[key, offset] = failure
        return failure

    def run(self, key: PartitionKey, offset: int) -> Run | None:
        for run in reversed(self._runs.get(key, ())):
            if run.base_offset <= offset < run.next_offset:
                return run
        return None

    def failure(self, key: PartitionKey, offset: int, now: float) -> Failure | None:
        found = self._failures.get((key, offset))
        if found is not None and found.until <= now:
            del self._failures[key, offset]
            return None
        return found

    def failed(self, key: PartitionKey, offset: int, now: float) -> bool:
        """Return whether a quiet failure is stored for an offset.

        Raise the error of another failure.
        """
        found = self.failure(key, offset, now)
        if found is not None and not found.quiet:
            raise found.error
        return found is not None

    def drop(self, key: PartitionKey) -> None:
        for run in list(self._runs.get(key, ())):
            self._remove(key, run)
        for place in [place for place in self._failures if place[0] == key]:
            del self._failures[place]

    def evict(self, now: float) -> None:
        order, oldest = self._order, now - self._seconds
        while order and (
            order[0][0] < oldest or (self.size_bytes > self._max_bytes and len(order) > 1)
        ):
            _, key, run = order.popleft()
            self._remove(key, run)
        while self._failures and next(iter(self._failures.values())).until <= now:
            del self._failures[next(iter(self._failures))]

    def _remove(self, key: PartitionKey, run: Run) -> None:
        runs = self._runs.get(key)
        if runs is None or run not in runs:
            return
        runs.remove(run)
        self.size_bytes -= len(run)
        if not runs:
            del self._runs[key]
