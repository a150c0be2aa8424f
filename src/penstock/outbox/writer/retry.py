"""When an attempt that failed is made again: bounded attempts, doubling ceilings, full jitter.

A core without clock or dice. The pause is any time between nothing and the ceiling, so that
writers that failed together, because their file system did, do not come back together.

Source: "Exponential backoff and jitter" (AWS architecture blog), full jitter;
`filesystem-outbox.txt`, "FSx becomes unavailable mid-write".
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.outbox import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a write is tried, and the ceilings of the pauses between."""

    attempts_max: int = limits.ATTEMPTS_MAX
    backoff_first_ms: int = limits.BACKOFF_FIRST_MS
    backoff_max_ms: int = limits.BACKOFF_MAX_MS

    def pause_seconds(self, failures: int, *, chance: float) -> float | None:
        """The pause after `failures` attempts; None to give up. `chance` is in [0, 1)."""
        if failures >= self.attempts_max:
            return None
        ceiling_ms = min(self.backoff_first_ms << min(failures - 1, 30), self.backoff_max_ms)
        return ceiling_ms * chance / 1000
