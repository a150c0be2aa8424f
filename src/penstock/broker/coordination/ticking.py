"""Ticker of a core: calls the core at its deadlines.

Its time starts at the wall clock and advances with the monotonic clock. Setting the wall clock thus
expires no session. After the process was suspended, queued requests are read before any session
expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.base.system import Clock

HELD_UP_SECONDS: Final = 2.0
"""Delay of a timer which shows that the event loop was blocked. Received data is then read before
clients count as slow or disconnected."""

CATCH_UP_MS: Final = 1000
"""Time to read members' requests after the process was suspended, before any session expires."""


class Ticker:
    def __init__(self, clock: Clock, tick: Callable[[], None]) -> None:
        self._monotonic = clock.monotonic
        self._wall_offset_ms = clock.now_ms() - int(clock.monotonic() * 1000)
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ms = 0
        self._not_before_ms = 0

    def now_ms(self) -> int:
        return int(self._monotonic() * 1000) + self._wall_offset_ms

    def arm(self, deadline_ms: int | None) -> None:
        """Schedule a tick at a deadline, unless an earlier tick is scheduled already."""
        if deadline_ms is None:
            return
        deadline_ms = max(deadline_ms, self._not_before_ms)
        if self._timer is not None:
            if self._deadline_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_seconds = max(0, deadline_ms - self.now_ms()) / 1000
        self._deadline_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_seconds, self.ring)

    def ring(self) -> None:
        """Tick; if the process was suspended, first wait until queued requests have been read."""
        self._timer = None
        now_ms = self.now_ms()
        if now_ms - self._deadline_ms < HELD_UP_SECONDS * 1000:
            self._tick()
        else:
            self._not_before_ms = now_ms + CATCH_UP_MS
            self.arm(self._not_before_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
