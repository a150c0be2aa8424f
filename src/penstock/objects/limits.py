"""The bounds of this package that are no settings."""

from __future__ import annotations

from typing import Final

KEY_BYTES_MAX: Final = 512
"""S3 allows 1,024 with the prefix of the store before the key."""

KEY_NAME_BYTES_MAX: Final = 255
"""One part of a key is a file name in a directory store (Linux's NAME_MAX)."""

DIRECTORY_THREADS: Final = 16
"""File calls that a directory store makes at once."""

DIRECTORY_WAITING_MAX: Final = 4096
"""Calls that wait for a thread; more are refused as throttled."""

BUFFERS_PER_CALL_MAX: Final = 1024
"""Buffers that one `writev` takes (Linux's IOV_MAX)."""

PARTIAL_AGE_MS: Final = 3_600_000
"""Unfinished files of this age are removed when a directory store is opened: no write takes
that long, and brokers that share the directory may be writing younger ones."""

PARTIAL_REMOVALS_MAX: Final = 10_000
"""Unfinished files that one opening removes; the next one goes on."""

DURABLE_DIRECTORIES_MAX: Final = 65_536
"""Directories known to be durable; above, all are forgotten and synced once more."""

LIST_PAGE_OBJECTS: Final = 1000
"""Objects that a listing finds per step (S3's own page)."""

CLOSE_TIMEOUT_SECONDS: Final = 10.0
"""How long closing waits for calls in flight."""
