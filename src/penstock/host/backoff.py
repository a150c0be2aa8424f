"""Pauses between attempts to connect: 50 ms doubling to 5 s, with full jitter.

The pause is drawn evenly from zero to the ceiling, so that producers that lost the same agent at
the same instant do not come back at the same instant.

Source: `host-ipc.txt`, reconnecting; "Exponential backoff and jitter" (AWS architecture blog).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 5_000
_DOUBLINGS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A schedule of pauses."""

    first_ms: int = BACKOFF_FIRST_MS
    ceiling_ms: int = BACKOFF_MAX_MS

    def pause_ms(self, failures: int, *, chance: float) -> float:
        """The pause after `failures` attempts (1 or more); `chance` is a number in [0, 1)."""
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        return max(1.0, min(self.first_ms << doublings, self.ceiling_ms) * chance)
