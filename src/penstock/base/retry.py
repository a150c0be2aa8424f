"""Retry policies: doubling pauses, bounded attempts, bounded time.

These cores have no clock or randomness: the time and a number in [0, 1) are arguments, the pause
is the result. With full jitter a pause is drawn evenly between 0 and its ceiling, so that callers
which failed together do not retry together.

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

    `steady` is the share of the ceiling without jitter: 0 is full jitter.
    """

    first_ms: float
    ceiling_ms: float = inf
    steady: float = 0.0

    def pause_ms(self, failures: int, *, chance: float = 1.0) -> float:
        """Return the pause after `failures` attempts (1 or more); by default its ceiling."""
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        ceiling_ms = min(self.first_ms * (1 << doublings), self.ceiling_ms)
        return max(_SHORTEST_MS, ceiling_ms * (self.steady + (1.0 - self.steady) * chance))

    def pause_seconds(self, failures: int, *, chance: float = 1.0) -> float:
        return self.pause_ms(failures, chance=chance) / 1000


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Limits of a call's attempts and total time, and the pauses between attempts."""

    backoff: Backoff
    attempts_max: int
    timeout_ms: float = inf

    def pause_seconds(
        self, failures: int, *, chance: float, elapsed_ms: float = 0.0
    ) -> float | None:
        """Return the pause before the next attempt after `failures` ones; None to stop.

        `chance` is a number in [0, 1). The pause never exceeds the rest of the timeout.
        """
        if failures >= self.attempts_max or elapsed_ms >= self.timeout_ms:
            return None
        pause_ms = self.backoff.pause_ms(failures, chance=chance)
        return min(pause_ms, self.timeout_ms - elapsed_ms) / 1000
