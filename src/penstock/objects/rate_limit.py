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
"""Rate in bytes per second at which reads no longer wait."""
YIELDING_GROWTH: Final = 1.01
"""Factor by which an adjustment raises the rate."""
ADJUSTMENT_BEATS: Final = 5
"""Number of beats between adjustments of the rate."""
FIRST_BEATS: Final = 2
"""Beats until the first adjustment, so that a reader that is alone soon has the full rate."""
LATE_SECONDS_MAX: Final = 0.004
"""Lateness of a beat above which reads yield."""
IDLE_BEATS_MAX: Final = 100


class YieldingLimit:
    """Rate limit that falls while the reads that it limits delay other clients of the broker.

    The caller calls `beat` at a fixed interval, and passes how late the event loop made the call.
    """

    __slots__ = ("_beats", "_free_at", "_idle_beats", "_late_seconds", "_uses", "per_second")

    def __init__(self, uses: int = 0) -> None:
        """Create a limit; `uses` counts how often other clients have used the broker so far."""
        self._uses = uses
        self._free_at = self._late_seconds = 0.0
        self._beats, self._idle_beats = ADJUSTMENT_BEATS - FIRST_BEATS, 0
        self.per_second: float = YIELDING_PER_SECOND_FIRST

    @property
    def lifted(self) -> bool:
        """Whether reads need not wait."""
        return self.per_second >= YIELDING_PER_SECOND_MAX

    def take(self, now: float, size_bytes: int) -> float:
        """Reserve the next bytes; return the seconds after which they may be read."""
        self._idle_beats = 0
        begins_at = max(now, self._free_at)
        self._free_at = begins_at + size_bytes / self.per_second
        return begins_at - now

    def beat(self, uses: int, late_seconds: float) -> bool:
        """Record how late a beat is; return whether more beats are needed.

        They end when no read has begun for `IDLE_BEATS_MAX` beats.
        """
        if self._idle_beats >= IDLE_BEATS_MAX:
            return False
        self._beats += 1
        self._idle_beats += 1
        self._late_seconds = max(self._late_seconds, late_seconds)
        if self._beats >= ADJUSTMENT_BEATS:
            self.adjust(shared=uses != self._uses, late=self._late_seconds > LATE_SECONDS_MAX)
            self._uses, self._late_seconds, self._beats = uses, 0.0, 0
        return True

    def adjust(self, *, shared: bool, late: bool) -> None:
        """Set the rate: `shared` if other clients use the broker, `late` if they have to wait."""
        if not shared:
            self.per_second, self._free_at = YIELDING_PER_SECOND_MAX, 0.0
        elif late:
            rate = min(self.per_second, YIELDING_PER_SECOND_FIRST) / 2
            self.per_second = max(rate, YIELDING_PER_SECOND_MIN)
        else:
            self.per_second = min(self.per_second * YIELDING_GROWTH, YIELDING_PER_SECOND_MAX)
