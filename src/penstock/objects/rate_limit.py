"""A token bucket that says how long to wait, and waits itself for nobody."""

from __future__ import annotations


class TokenBucket:
    """`per_second` tokens, of which those of `burst_seconds` may be taken at once after a pause.

    A taker whose tokens are not there yet gets the next ones in turn, and is told when that is; so
    takers are served in order, and as many wait as were let in.
    """

    __slots__ = ("_at", "_most", "_per_second", "_tokens")

    def __init__(self, per_second: int, *, now: float, burst_seconds: float = 1.0) -> None:
        self._per_second = float(per_second)
        self._tokens = self._most = per_second * burst_seconds
        self._at = now

    def take(self, now: float, tokens: int = 1) -> float:
        """Take tokens; the seconds until they may be used, 0.0 when that is now."""
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._most, self._tokens + elapsed * self._per_second) - tokens
        return max(0.0, -self._tokens / self._per_second)
