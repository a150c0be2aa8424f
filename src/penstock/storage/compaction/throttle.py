"""Throttle of compaction: bytes a second, of all threads together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.base.settings import LONG_MAX
from penstock.base.system import Clock
from penstock.objects.rate_limit import TokenBucket
from penstock.storage.errors import CompactionStopped

_BURST_SECONDS: Final = 0.1
"""Burst, in seconds of the rate."""


class Throttle:
    """Rate limit for several threads; a lost update lets a little more through."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bucket: TokenBucket | None = None
        if bytes_per_second < LONG_MAX:
            now = clock.monotonic()
            self._bucket = TokenBucket(bytes_per_second, now=now, burst_seconds=_BURST_SECONDS)

    def spend(self, wait: Callable[[float], bool], size_bytes: int) -> None:
        """Wait until `size_bytes` may be read or written.

        `wait` pauses for the given seconds; it returns true, at once, when the pass must stop.

        Raises:
            CompactionStopped: the pass must stop.
        """
        bucket = self._bucket
        pause = 0.0 if bucket is None else bucket.take(self._clock.monotonic(), size_bytes)
        if wait(pause):
            raise CompactionStopped("the compaction pass was stopped")
