"""Retry decisions: bounded attempts, bounded time, full jitter.

A core without clock or dice: the time and a number in [0, 1) come as arguments, the pause comes
back as a result.

Source: "Exponential backoff and jitter" (AWS architecture blog): full jitter keeps many clients
that failed together from coming back together.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long a call is tried."""

    attempts_max: int = limits.ATTEMPTS_MAX
    backoff_first_ms: int = limits.BACKOFF_FIRST_MS
    backoff_max_ms: int = limits.BACKOFF_MAX_MS
    delivery_timeout_ms: int = limits.DELIVERY_TIMEOUT_MS

    def pause_seconds(self, failures: int, *, elapsed_ms: float, chance: float) -> float | None:
        """The pause before the next attempt after `failures` ones; None to give up.

        `chance` is a number in [0, 1). The pause never reaches beyond the delivery timeout.
        """
        if failures >= self.attempts_max or elapsed_ms >= self.delivery_timeout_ms:
            return None
        ceiling_ms = min(self.backoff_first_ms << min(failures - 1, 16), self.backoff_max_ms)
        pause_ms = max(1.0, ceiling_ms * (0.5 + chance / 2))
        return min(pause_ms, self.delivery_timeout_ms - elapsed_ms) / 1000
