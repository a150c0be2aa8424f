"""Hedging: repeats a request that is slower than the 99th percentile, within a budget.

The percentile is computed from the latest requests, so that it follows the store's latency. The
budget limits hedges to a share of the requests. While the store is slow as a whole, hedges would
only make it slower.

Source: Dean and Barroso, "The Tail at Scale" (2013), hedged requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final

HEDGE_WINDOW: Final = 512
"""Latest latencies from which the percentile is computed."""
HEDGE_SAMPLES_MIN: Final = 64
"""Latencies that must be known before a request is hedged."""
HEDGE_REFRESH: Final = 32
"""New latencies after which the percentile is computed again."""
HEDGE_PERCENTILE: Final = 0.99
HEDGE_DELAY_MIN_SECONDS: Final = 0.02
"""Minimum age of a request that is hedged. Hedging a younger one would not be faster."""
HEDGE_SHARE: Final = 0.05
"""Hedges per request that the budget allows in the long run."""
HEDGES_SAVED_MAX: Final = 8.0
"""Hedges that the budget may save for a burst."""


class Hedging:
    """The latencies and the hedging budget of one fetch path."""

    __slots__ = ("_budget", "_delay", "_fresh", "_latencies")

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=HEDGE_WINDOW)
        self._fresh = 0
        self._delay: float | None = None
        self._budget = 1.0

    @property
    def delay(self) -> float | None:
        """Seconds after which a request is slow, or None before enough latencies are known."""
        return self._delay

    def observe(self, seconds: float) -> None:
        """Record the latency of a response, and add `HEDGE_SHARE` to the budget."""
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
        """Return whether a slow request may be hedged now.

        If so, take one hedge from the budget.
        """
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True
