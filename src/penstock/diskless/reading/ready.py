"""Loaded batches that wait for a fetch, and recent failures of loads.

A load may take longer than a fetch may wait. The fetch then gets an empty response, and the
consumer's next fetch finds the batches here. Consumers of a partition share them. The number of
bytes and their age are limited, and the oldest run is dropped first. The newest run stays however
large it is, so that consumers make progress.

The error of a failed load is stored for half a second, so that retries do not overload the store.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock.archive.assembly import Run
from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import PartitionKey
from penstock.diskless.reading.errors import for_consumers
from penstock.objects import LaggingConsumerRejected

FAILURE_SECONDS: Final = 0.5
"""Time for which requests get the error of a failed load, before a new attempt."""
READY_PER_PARTITION_MAX: Final = 64
"""Waiting runs of one partition, for consumers at different offsets."""

Place = tuple[PartitionKey, int]
"""A partition and an offset in it."""


class Failure(NamedTuple):
    """A failed load at an offset.

    Consumers get an empty response, not the error, if it is `quiet`.
    """

    error: PenstockError
    until: float
    quiet: bool


class Ready:
    """Runs of batches and failures, by partition. Times are seconds of a monotonic clock."""

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
        """Store a run. If several runs hold an offset, the newest is used."""
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
