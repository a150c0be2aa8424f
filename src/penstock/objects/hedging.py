"""Hedging: a slow request is sent again after the observed 99th percentile, within a budget.

The percentile is that of the latest requests, so that it follows the store. The budget bounds
hedges to a share of the requests: while the store is slow as a whole, they would only make it
slower.

Source: Dean and Barroso, "The Tail at Scale" (2013), hedged requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final

HEDGE_WINDOW: Final = 512
"""Number of latest latencies that the percentile is computed from."""
HEDGE_SAMPLES_MIN: Final = 64
"""Number of latencies below which nothing is hedged."""
HEDGE_REFRESH: Final = 32
"""Latencies between two computations of the percentile."""
HEDGE_PERCENTILE: Final = 0.99
HEDGE_DELAY_MIN_SECONDS: Final = 0.02
"""Minimum age of a hedged request: a hedge of a younger one would not be faster."""
HEDGE_SHARE: Final = 0.05
"""Long-term hedges per request: when all requests are slow, hedges do not help."""
HEDGES_SAVED_MAX: Final = 8.0
"""Maximum number of hedges saved up for a burst."""


class Hedging:
    """Latencies and hedging budget of one path."""

    __slots__ = ("_budget", "_delay", "_fresh", "_latencies")

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=HEDGE_WINDOW)
        self._fresh = 0
        self._delay: float | None = None
        self._budget = 1.0

    @property
    def delay(self) -> float | None:
        """Seconds after which a request is slow; None before enough latencies are known."""
        return self._delay

    def observe(self, seconds: float) -> None:
        """Record a response's latency; each earns a part of a hedge."""
        self._latencies.append(seconds)
        self._budget = min(HEDGES_SAVED_MAX, self._budget + HEDGE_SHARE)
        self._fresh += 1
        known = len(self._latencies)
        if known < HEDGE_SAMPLES_MIN:
            return
        if self._delay is None or self._fresh >= HEDGE_REFRESH:
            self._fresh = 0
            ordered = sorted(self._latencies)
            slow = ordered[min(known - 1, int(known * HEDGE_PERCENTILE))]
            self._delay = max(HEDGE_DELAY_MIN_SECONDS, slow)

    def spend(self) -> bool:
        """Return whether a slow request may be hedged now, and count it as hedged."""
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True
