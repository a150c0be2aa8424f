"""Bounds of the coordination runtime."""

from __future__ import annotations

from typing import Final

SAVE_KEYS_MAX: Final = 2_000
"""Keys that one transaction saves; the rest waits for the next."""

SAVE_BYTES_MAX: Final = 32 << 20
"""Bytes of rows that one transaction saves, unless a single key has more."""

SAVE_ATTEMPTS_MAX: Final = 5
LOAD_KEYS_MAX: Final = 500
LOADS_WAITING_MAX: Final = 10_000
"""Requests that may wait for the load of their key; more get COORDINATOR_LOAD_IN_PROGRESS."""

CATCH_UP_MS: Final = 1000
"""Time to read members' requests after the process was suspended, before any session expires."""

WORK_INLINE_MAX: Final = 2_000
"""Size of the largest computation that runs on the event loop: a few milliseconds."""

PRODUCER_ID_TRIES_MAX: Final = 3
