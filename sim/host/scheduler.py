"""Virtual time and chance: everything that happens is an action at a time, drawn from one seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

EVENTS_MAX = 60_000
"""A story that needs more is one that goes round in circles."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Scheduler:
    """Actions in the order of their times; those of one time in the order they were planned."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0.0
        self.events = 0
        self.faults = True
        self.trace: list[tuple[object, ...]] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def at(self, when_ms: float, action: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._agenda, (max(when_ms, self.now_ms), self._planned, action))

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, action)

    def chance(self, probability: float) -> bool:
        """Whether a fault happens; never after healing."""
        return self.faults and self.random.random() < probability

    def delay_ms(self) -> float:
        """How long something takes: mostly short, at times long enough to be overtaken."""
        draw = self.random.random()
        if self.faults and draw < 0.06:
            return 20 + 400 * self.random.random()
        return 0.1 + 6 * draw

    def note(self, *what: object) -> None:
        self.trace.append((round(self.now_ms, 3), *what))

    def run(self, end_ms: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen until `end_ms`, or until `done`."""
        agenda = self._agenda
        while not done():
            if not agenda or agenda[0][0] > end_ms:
                self.now_ms = max(self.now_ms, end_ms)
                return done()
            self.now_ms, _, action = heapq.heappop(agenda)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation(f"more than {EVENTS_MAX} events by {self.now_ms:.0f} ms")
            action()
        return True
