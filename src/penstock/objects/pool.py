"""How many requests run at once and how many wait: a pool without threads."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Generic, TypeVar

J = TypeVar("J")


class Admission(Enum):
    """What becomes of a job that is offered."""

    START = auto()
    WAIT = auto()
    REJECT = auto()


class Pool(Generic[J]):
    """`running_max` jobs run, `waiting_max` wait in order, the others are rejected."""

    __slots__ = ("_running", "_running_max", "_waiting", "_waiting_max")

    def __init__(self, *, running_max: int, waiting_max: int) -> None:
        self._running_max = running_max
        self._waiting_max = waiting_max
        self._running = 0
        self._waiting: deque[J] = deque()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_max(self) -> int:
        return self._waiting_max

    def offer(self, job: J) -> Admission:
        """Let a job in: the caller starts it, or `finish` returns it later, or neither."""
        if self._running < self._running_max:
            self._running += 1
            return Admission.START
        if len(self._waiting) >= self._waiting_max:
            return Admission.REJECT
        self._waiting.append(job)
        return Admission.WAIT

    def finish(self) -> J | None:
        """A job has ended; the one that is to be started in its place."""
        if self._waiting:
            return self._waiting.popleft()
        self._running -= 1
        return None

    def drain(self) -> list[J]:
        """Take out all that wait."""
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs
