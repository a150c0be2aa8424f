"""Timers of a core in one heap, with lazy deletion.

Every heartbeat postpones a timer, which is one assignment: the heap entry moves to the new deadline
when the old deadline passes. The entry of a stopped timer stays in the heap as a stale entry. The
heap is rebuilt when more than half of its entries are stale. A tick examines only entries whose
deadline has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

STALE_ENTRIES_MIN: Final = 64


class Timer:
    """Deadline and its callback; stopped while `deadline_ms` is None."""

    __slots__ = ("deadline_ms", "entry", "fire")

    def __init__(self, fire: Callable[[], None]) -> None:
        self.fire = fire
        self.deadline_ms: int | None = None
        self.entry: tuple[int, int] | None = None


class Timers:
    """Heap of entries (deadline in ms, sequence number, timer)."""

    __slots__ = ("_heap", "_live", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._live = 0

    def __len__(self) -> int:
        """Return the number of heap entries, stale ones included."""
        return len(self._heap)

    def start(self, timer: Timer, deadline_ms: int) -> None:
        timer.deadline_ms = deadline_ms
        entry = timer.entry
        if entry is None:
            self._live += 1
            self._push(timer, deadline_ms)
        elif deadline_ms < entry[0]:
            self._push(timer, deadline_ms)
            self._compact()

    def stop(self, timer: Timer) -> None:
        timer.deadline_ms = None
        if timer.entry is not None:
            timer.entry = None
            self._live -= 1
            self._compact()

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next tick, which may be too early, but never too late."""
        heap = self._heap
        while heap:
            when, sequence, timer = heap[0]
            if timer.entry == (when, sequence):
                return when
            heappop(heap)
        return None

    def due(self, now_ms: int) -> Iterator[Timer]:
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            when, sequence, timer = heappop(heap)
            if timer.entry != (when, sequence) or timer.deadline_ms is None:
                continue
            if timer.deadline_ms > now_ms:
                self._push(timer, timer.deadline_ms)
                continue
            timer.entry = None
            timer.deadline_ms = None
            self._live -= 1
            yield timer

    def _push(self, timer: Timer, when: int) -> None:
        self._sequence += 1
        timer.entry = (when, self._sequence)
        heappush(self._heap, (when, self._sequence, timer))

    def _compact(self) -> None:
        if len(self._heap) - self._live > max(self._live, STALE_ENTRIES_MIN):
            self._heap[:] = [entry for entry in self._heap if entry[2].entry == entry[:2]]
            heapify(self._heap)
