"""Windowed rate and token bucket, computed as in Kafka.

A rate is the use per second in the last `samples` windows of `window_ms` each, including the
current window. Its time is at least that of `samples` - 1 windows, even if fewer have passed. The
throttle time is the time until the rate is down to the quota if there is no further use:

    (rate - quota) / quota * time of the rate

A token bucket holds at most the tokens of all windows, and is refilled at the quota. A request may
overdraw it; later requests are throttled until it is not overdrawn any more. Times are arguments;
`now_ms` never goes backwards.

Source: Kafka's `SampledStat`, `Rate`, `TokenBucket`, `QuotaUtils`; KIP-13, KIP-599.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct


class Windows(Struct, frozen=True, kw_only=True):
    """Number and length of a rate's windows."""

    samples: int
    window_ms: float

    @property
    def burst_seconds(self) -> float:
        """Time in seconds whose quota may be used at once: all windows except the current one."""
        return max(self.samples - 1, 1) * self.window_ms / 1000


class WindowedRate:
    """Rate of use over windows, with its throttle time under a quota per second."""

    __slots__ = ("_windows", "_within", "quota")

    def __init__(self, quota: float, within: Windows) -> None:
        self.quota = quota
        self._within = within
        self._windows: deque[list[float]] = deque()
        """Start, time of the last record, and sum of each window."""

    def record(self, amount: float, now_ms: float) -> None:
        """Record use; at most `samples` + 1 windows are stored."""
        self._forget(now_ms)
        windows, length = self._windows, self._within.window_ms
        if not windows:
            windows.append([now_ms, now_ms, amount])
            return
        newest = windows[-1]
        if now_ms - newest[0] >= length:
            began = now_ms - (now_ms - newest[0]) % length
            windows.append([began, now_ms, amount])
            return
        newest[1] = now_ms
        newest[2] += amount

    def rate(self, now_ms: float) -> float:
        """Return the rate per second."""
        self._forget(now_ms)
        return sum([window[2] for window in self._windows]) * 1000 / self._over_ms(now_ms)

    def wait_ms(self, now_ms: float) -> float:
        """Return the time in ms until the rate is down to the quota; 0 if it is not above."""
        rate, quota = self.rate(now_ms), self.quota
        return 0.0 if rate <= quota else (rate - quota) / quota * self._over_ms(now_ms)

    @property
    def used_ms(self) -> float:
        """Time of the last use, in ms."""
        return self._windows[-1][1] if self._windows else 0.0

    def _over_ms(self, now_ms: float) -> float:
        samples, length = self._within.samples, self._within.window_ms
        elapsed = now_ms - self._windows[0][0] if self._windows else 0.0
        missing = samples - 1 - int(elapsed // length)
        if missing > 0:
            elapsed += missing * length
        return elapsed or length

    def _forget(self, now_ms: float) -> None:
        windows, kept_ms = self._windows, self._within.samples * self._within.window_ms
        while windows and now_ms - windows[0][1] >= kept_ms:
            windows.popleft()


class TokenBucket:
    """Token bucket: refilled at the quota, up to the tokens of all windows; full at first."""

    __slots__ = ("_burst_seconds", "_filled_ms", "_tokens", "quota")

    def __init__(self, quota: float, within: Windows) -> None:
        self.quota = quota
        self._burst_seconds = within.samples * within.window_ms / 1000
        self._tokens = quota * self._burst_seconds
        self._filled_ms: float | None = None

    def record(self, amount: float, now_ms: float) -> None:
        """Take tokens; the bucket may become overdrawn."""
        self._fill(now_ms)
        self._tokens -= amount

    def rate(self, now_ms: float) -> float:
        """Return the missing tokens, divided by the seconds in which the bucket is filled."""
        self._fill(now_ms)
        return self.quota - self._tokens / self._burst_seconds

    def wait_ms(self, now_ms: float) -> float:
        """Return the time in ms until the bucket is not overdrawn any more; 0 if it is not now."""
        self._fill(now_ms)
        return max(0.0, -self._tokens / self.quota * 1000)

    @property
    def used_ms(self) -> float:
        """Time of the last use or refill, in ms."""
        return self._filled_ms or 0.0

    def _fill(self, now_ms: float) -> None:
        if self._filled_ms is not None:
            came = self.quota * (now_ms - self._filled_ms) / 1000
            self._tokens = min(self.quota * self._burst_seconds, self._tokens + came)
        self._filled_ms = now_ms
