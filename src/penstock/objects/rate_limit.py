"""Rate limits, which return waiting times instead of waiting."""

from __future__ import annotations

from typing import Final


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


YIELDING_PER_SECOND_MIN: Final = 32_000_000
"""Rate in bytes per second that a `YieldingLimit` always allows."""
YIELDING_PER_SECOND_FIRST: Final = 256_000_000
YIELDING_PER_SECOND_MAX: Final = 1 << 40
YIELDING_GROWTH: Final = 1.01


class YieldingLimit:
    """A rate limit that falls while the reads that it limits make the broker respond late."""

    __slots__ = ("_free_at", "per_second")

    def __init__(self) -> None:
        self._free_at = 0.0
        self.per_second: float = YIELDING_PER_SECOND_FIRST

    @property
    def lifted(self) -> bool:
        """Whether reads need not wait, because no other client uses the broker."""
        return self.per_second >= YIELDING_PER_SECOND_MAX

    def take(self, now: float, size_bytes: int) -> float:
        """Reserve the next bytes; return the seconds after which they may be read."""
        begins_at = max(now, self._free_at)
        self._free_at = begins_at + size_bytes / self.per_second
        return begins_at - now

    def adjust(self, *, shared: bool, late: bool) -> None:
        """Set the rate; `shared` means that others use the broker, too, `late` that they wait."""
        if not shared:
            self.per_second, self._free_at = YIELDING_PER_SECOND_MAX, 0.0
        elif late:
            rate = min(self.per_second, YIELDING_PER_SECOND_FIRST) / 2
            self.per_second = max(rate, YIELDING_PER_SECOND_MIN)
        else:
            self.per_second = min(self.per_second * YIELDING_GROWTH, YIELDING_PER_SECOND_MAX)
