"""Retry policies: doubling pauses, bounded attempts, bounded time.

The classes have no clock and no randomness: the elapsed time and a random number in [0, 1) are
arguments, and the pause is the result. With full jitter, a pause is uniformly distributed between 0
and its ceiling. Callers that failed at the same time then retry at different times.

Source: "Exponential backoff and jitter" (AWS architecture blog).
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec import Struct

_DOUBLINGS_MAX: Final = 32
_SHORTEST_MS: Final = 1.0


class Backoff(Struct, frozen=True, kw_only=True):
    """Pauses whose ceiling doubles from `first_ms` up to `ceiling_ms`.

    `steady` is the share of the ceiling that every pause has at least; 0 means full jitter.
    """

    first_ms: float
    ceiling_ms: float = inf
    steady: float = 0.0

    def pause_ms(self, failures: int, *, chance: float = 1.0) -> float:
        """Return the pause after `failures` failed attempts (1 or more).

        `chance`, a random number in [0, 1), selects the pause; by default it is the ceiling.
        """
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        ceiling_ms = min(self.first_ms * (1 << doublings), self.ceiling_ms)
        return max(_SHORTEST_MS, ceiling_ms * (self.steady + (1.0 - self.steady) * chance))

    def pause_seconds(self, failures: int, *, chance: float = 1.0) -> float:
        return self.pause_ms(failures, chance=chance) / 1000


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Limits of the attempts and the total time of a call, and the pauses between attempts."""

    backoff: Backoff
    attempts_max: int
    timeout_ms: float = inf

    def pause_seconds(
        self, failures: int, *, chance: float, elapsed_ms: float = 0.0
    ) -> float | None:
        """Return the pause after `failures` failed attempts; None if no attempt is left.

        `chance` is a random number in [0, 1). The pause never exceeds the rest of the timeout.
        """
        if failures >= self.attempts_max or elapsed_ms >= self.timeout_ms:
            return None
        pause_ms = self.backoff.pause_ms(failures, chance=chance)
        return min(pause_ms, self.timeout_ms - elapsed_ms) / 1000
