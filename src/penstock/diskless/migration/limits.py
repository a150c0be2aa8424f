"""Bounds of copying logs to the store, and back, that are no settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read from a log, and checked, in one turn; a larger batch is one of its own."""

OBJECT_BYTES: Final = 32 << 20
"""Bytes after which an object is written: what a copy takes in memory, twice."""

PUT_ATTEMPTS_MAX: Final = 5
"""Keys under which the writing of one object is tried."""

PUT_BACKOFF: Final = Backoff(first_ms=200)
"""Pauses between them."""

FILLED_AT_ONCE: Final = 8
"""Logs that are filled side by side, each with a chunk in memory, twice; they share syncs."""

EXTENTS_PER_CHUNK: Final = 64
"""Extents of which one chunk for a log is read, side by side."""

GET_ATTEMPTS_MAX: Final = 5
"""How often reading a chunk is tried, and appending it to a log that has too much under way."""

RENEWALS_PER_LIFE: Final = 4
"""How often within their life the leases of what is copied are renewed."""
