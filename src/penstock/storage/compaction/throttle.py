"""How fast compaction reads and writes: bytes a second, of all threads together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.base.settings import LONG_MAX
from penstock.base.system import Clock
from penstock.storage.errors import CompactionStopped

_BURST_SECONDS: Final = 0.1
"""What may be spent at once, in time."""


class Throttle:
    """Several threads may spend; a lost update lets a little more through."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self.bytes_per_second = bytes_per_second
        self._free_at = clock.monotonic()

    def spend(self, wait: Callable[[float], bool], size_bytes: int) -> None:
        """Wait until so many bytes may be read or written.

        `wait` pauses for so many seconds; it returns true, at once, when the pass is to end.

        Raises:
            CompactionStopped: it is.
        """
        pause = 0.0
        if self.bytes_per_second < LONG_MAX:
            now = self._clock.monotonic()
            begin = max(self._free_at, now - _BURST_SECONDS)
            self._free_at = begin + size_bytes / self.bytes_per_second
            pause = max(0.0, begin - now)
        if wait(pause):
            raise CompactionStopped("a pass is to end")
