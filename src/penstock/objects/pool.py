"""Limit of running and waiting requests: a pool without threads."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Generic, TypeVar

J = TypeVar("J")


class Admission(Enum):
    """Result of offering a job to a pool."""

    START = auto()
    WAIT = auto()
    REJECT = auto()


class Pool(Generic[J]):
    """A pool that lets `running_max` jobs run and `waiting_max` jobs wait, and rejects others."""

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
        """Offer a job; return whether the caller starts it now, later or never.

        A waiting job is started when `finish` returns it.
        """
        if self._running < self._running_max:
            self._running += 1
            return Admission.START
        if len(self._waiting) >= self._waiting_max:
            return Admission.REJECT
        self._waiting.append(job)
        return Admission.WAIT

    def finish(self) -> J | None:
        """Record the end of a job; return the next waiting job to start, or None."""
        if self._waiting:
            return self._waiting.popleft()
        self._running -= 1
        return None

    def drain(self) -> list[J]:
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs
