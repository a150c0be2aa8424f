"""Rate limit by a token bucket, which returns waiting times instead of waiting."""

from __future__ import annotations


class TokenBucket:
    """A bucket that gets `per_second` tokens per second, and holds up to `burst_seconds` of them.

    A caller that takes more tokens than the bucket has reserves the next ones, and waits until they
    arrive. Callers are therefore served in order.
    """

    __slots__ = ("_at", "_most", "_per_second", "_tokens")

    def __init__(self, per_second: int, *, now: float, burst_seconds: float = 1.0) -> None:
        self._per_second = float(per_second)
        self._tokens = self._most = per_second * burst_seconds
        self._at = now

    def take(self, now: float, tokens: int = 1) -> float:
        """Take tokens; return the seconds after which the caller may use them, 0.0 for now."""
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._most, self._tokens + elapsed * self._per_second) - tokens
        return max(0.0, -self._tokens / self._per_second)
