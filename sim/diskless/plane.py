"""The control plane as brokers see it: a network before it that loses, delays and repeats.

| a call is    | what happens                            | what is answered |
|--------------|-----------------------------------------|------------------|
| well         | the change is made                      | its answer       |
| lost         | nothing                                 | unavailable      |
| unanswered   | the change is made                      | unavailable      |
| late         | the change is made long after the answer | unavailable     |
| repeated     | the change is made, and again later     | its first answer |

Changes are made one after the other, by the real rules, in `MemoryControlPlane`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from penstock.base.errors import BugError, PenstockError
from penstock.control import ControlUnavailable, MemoryControlPlane
from sim.diskless.store import LATE_MS, Failed
from sim.host.scheduler import Scheduler

Answered = TypeVar("Answered")
START_MS = 1_700_000_000_000


class SkewedClock:
    """Wall time that is off by something, and virtual monotonic time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.skew_ms = 0

    def now_ms(self) -> int:
        return START_MS + int(self._scheduler.now_ms) + self.skew_ms

    def monotonic(self) -> float:
        return self._scheduler.now_ms / 1000


class SeededDice:
    """Randomness of one seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128))

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def uniform(self) -> float:
        return self._random.random()


def run_now(work: Coroutine[Any, Any, Answered]) -> Answered:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: Answered = end.value
        return answer
    work.close()
    raise BugError("the plane in memory waits for something")


class PlaneLine:
    """Calls of brokers over the network."""

    def __init__(self, scheduler: Scheduler, plane: MemoryControlPlane, trouble: float) -> None:
        self._scheduler = scheduler
        self.plane = plane
        self._trouble = trouble
        self.on_change: Callable[[], None] = lambda: None
        """Called after every call that took effect."""

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, Answered]],
        done: Callable[[Answered], None],
        failed: Failed,
        *,
        changes: bool = True,
    ) -> None:
        """Make a call; one that `changes` nothing is not followed by a check."""
        scheduler = self._scheduler
        delay = scheduler.delay_ms()
        back = delay + scheduler.delay_ms()
        trouble = self._trouble if scheduler.faults else 0.0
        fate = scheduler.random.random() / trouble if trouble else 1.0
        if fate >= 1:
            scheduler.after(delay, lambda: self._answer(work, back - delay, done, failed, changes))
        elif fate < 0.25:
            scheduler.after(back, lambda: failed(ControlUnavailable("lost")))
        elif fate < 0.5:
            scheduler.after(delay, lambda: self._alone(work))
            scheduler.after(back, lambda: failed(ControlUnavailable("unanswered")))
        elif fate < 0.75:
            late = back + LATE_MS * scheduler.random.random() ** 2
            scheduler.after(late, lambda: self._alone(work))
            scheduler.after(back, lambda: failed(ControlUnavailable("late")))
        else:
            again = delay + LATE_MS * scheduler.random.random() ** 2
            scheduler.after(delay, lambda: self._answer(work, back - delay, done, failed, changes))
            scheduler.after(again, lambda: self._alone(work))

    def _answer(
        self,
        work: Callable[[], Coroutine[Any, Any, Answered]],
        back: float,
        done: Callable[[Answered], None],
        failed: Failed,
        changes: bool,
    ) -> None:
        try:
            answer = run_now(work())
        except PenstockError as error:
            refusal = error
            self._scheduler.after(back, lambda: failed(refusal))
        else:
            self._scheduler.after(back, lambda: done(answer))
        if changes:
            self.on_change()

    def _alone(self, work: Callable[[], Coroutine[Any, Any, Answered]]) -> None:
        try:
            run_now(work())
        except PenstockError as error:
            self._scheduler.note("unheard", type(error).__name__)
        self.on_change()
