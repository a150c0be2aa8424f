"""Token bucket that returns how long to wait, and does not wait itself."""

from __future__ import annotations


class TokenBucket:
    """Bucket of `per_second` tokens that saves up those of `burst_seconds`.

    A caller that exceeds it reserves the next tokens and gets the time of their arrival; so callers
    are served in order.
    """

    __slots__ = ("_at", "_most", "_per_second", "_tokens")

    def __init__(self, per_second: int, *, now: float, burst_seconds: float = 1.0) -> None:
        self._per_second = float(per_second)
        self._tokens = self._most = per_second * burst_seconds
        self._at = now

    def take(self, now: float, tokens: int = 1) -> float:
        """Take tokens; return the seconds until they may be used, 0.0 for now."""
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._most, self._tokens + elapsed * self._per_second) - tokens
        return max(0.0, -self._tokens / self._per_second)
