"""The bounds of the coordination runtime."""

from __future__ import annotations

from typing import Final

SAVE_KEYS_MAX: Final = 2_000
"""Keys that one transaction saves; the others wait for the next."""

SAVE_BYTES_MAX: Final = 32 << 20
"""Bytes of rows that one transaction saves, or one key's, if they are more."""

SAVE_ATTEMPTS_MAX: Final = 5
"""How often a key is saved anew because brokers came or went meanwhile."""

LOAD_KEYS_MAX: Final = 500
"""Keys that are read at once."""

LOADS_WAITING_MAX: Final = 10_000
"""Requests that wait until their key is loaded; others are told to come again."""

CATCH_UP_MS: Final = 1000
"""How long members are listened to after the process was held up, before any is expired."""

WORK_INLINE_MAX: Final = 2_000
"""Members and partitions whose target is computed within one turn of the loop: a few milliseconds;
what is larger goes to a thread."""

PRODUCER_ID_TRIES_MAX: Final = 3
"""How often a request is decided anew because it needs a producer id that nobody had."""
