"""When an attempt that failed is made again: doubling pauses, bounded attempts, bounded time.

Cores without clock or dice: the time and a number in [0, 1) come as arguments, the pause comes
back as a result. With full jitter a pause is drawn evenly from nothing to its ceiling, so that
those who failed together do not come back together.

Source: "Exponential backoff and jitter" (AWS architecture blog).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

_DOUBLINGS_MAX: Final = 32
_SHORTEST_MS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses whose ceiling doubles from `first_ms` up to `ceiling_ms`.

    `steady` is the share of the ceiling that is not left to chance: 0 is full jitter.
    """

    first_ms: float
    ceiling_ms: float = inf
    steady: float = 0.0

    def pause_ms(self, failures: int, *, chance: float = 1.0) -> float:
        """The pause after `failures` attempts (1 or more); without `chance` it is the ceiling."""
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        ceiling_ms = min(self.first_ms * (1 << doublings), self.ceiling_ms)
        return max(_SHORTEST_MS, ceiling_ms * (self.steady + (1.0 - self.steady) * chance))

    def pause_seconds(self, failures: int, *, chance: float = 1.0) -> float:
        """The same in seconds."""
        return self.pause_ms(failures, chance=chance) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long a call is tried, with which pauses."""

    backoff: Backoff
    attempts_max: int
    timeout_ms: float = inf

    def pause_seconds(
        self, failures: int, *, chance: float, elapsed_ms: float = 0.0
    ) -> float | None:
        """The pause before the next attempt after `failures` ones; None to give up.

        `chance` is a number in [0, 1). The pause never reaches beyond the timeout.
        """
        if failures >= self.attempts_max or elapsed_ms >= self.timeout_ms:
            return None
        pause_ms = self.backoff.pause_ms(failures, chance=chance)
        return min(pause_ms, self.timeout_ms - elapsed_ms) / 1000
