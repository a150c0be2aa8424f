"""A clock that tests move, so that hours pass while nothing waits."""

from __future__ import annotations

from penstock.base.system import SystemClock


class JumpingClock(SystemClock):
    """The system's clock, and the seconds that a test has added to it."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class StandingClock(SystemClock):
    """Monotonic time passes only as a test says."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds
