"""Single access point to the operating system's clocks and randomness.

Cores get times and ids as arguments. Shells get a `Clock` and a `Randomness`. Tests and the
simulator pass their own implementations.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final, Protocol
from uuid import UUID


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for timeouts."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary time; never decreases."""
        ...


class Randomness(Protocol):
    def uuid(self) -> UUID: ...

    def bits(self, count: int) -> int:
        """Return a random non-negative integer below 2 ** count."""
        ...

    def uniform(self) -> float:
        """Return a float in [0, 1)."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


class SystemRandomness:
    def uuid(self) -> UUID:
        return UUID(bytes=os.urandom(16), version=4)

    def bits(self, count: int) -> int:
        return random.SystemRandom().getrandbits(count)

    def uniform(self) -> float:
        return random.random()  # noqa: S311  (jitter, not a secret)


SYSTEM_CLOCK: Final = SystemClock()
SYSTEM_RANDOMNESS: Final = SystemRandomness()

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BLOCK_BYTES: Final = 32 << 20


def keep_memory(kept_bytes: int = 256 << 20) -> None:
    """Make the C library keep up to `kept_bytes` of freed memory for the next batch.

    By default it returns large blocks to the operating system at once. Page faults would then take
    half of the time of reading values of 100 bytes, and of reading segments for fetch requests.
    """
    import ctypes  # imported here, because clients start without it

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, kept_bytes)
        mallopt(_TOP_PAD, kept_bytes // 2)
