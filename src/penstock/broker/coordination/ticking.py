"""Ticker of a core: calls it at its deadlines, by a wall clock that never jumps.

It starts at the wall clock and advances with the monotonic one, so that setting the clock expires
no session. After the process was suspended, queued requests are read before any session expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.base.system import Clock

HELD_UP_SECONDS: Final = 2.0
"""Timer delay that shows a blocked loop: received data is read before clients count as slow or
gone."""

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
        """Ensure a tick at a deadline; an earlier tick does no harm."""
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
        """Tick, or first wait for queued requests if the process was suspended."""
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
