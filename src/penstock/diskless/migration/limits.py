"""Limits of copying logs to the store, and back."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHUNK_BYTES: Final = 1 << 20
"""Bytes that one read of a log returns; a larger batch is read alone."""

OBJECT_BYTES: Final = 32 << 20
"""Size at which an object is written; a copy takes twice as much memory."""

PUT_ATTEMPTS_MAX: Final = 5
"""Attempts to write one object, each under a new key."""

PUT_BACKOFF: Final = Backoff(first_ms=200)
"""Pauses between these attempts."""

FILLED_AT_ONCE: Final = 8
"""Logs that are filled at once, each with two chunks in memory; they share syncs."""

EXTENTS_PER_CHUNK: Final = 64
"""Extents that are read at once for one chunk."""

GET_ATTEMPTS_MAX: Final = 5
"""Attempts to read a chunk, and to append it to an overloaded log."""

RENEWALS_PER_LIFE: Final = 4
"""Renewals of the leases of copied objects within their lifetime."""
