"""Bounds of the sink to the log."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 32 << 20
"""Encoded bytes of rows that a task holds at a time; a chunk is one blob."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows of a chunk."""
CHUNK_HALVINGS_MAX: Final = 20
"""Most halvings of a chunk that encodes to more than a blob may hold."""
RUN_ROWS_MIN: Final = 1_024
"""Fewest rows without a key that go to one partition in a run, so that batches are full."""
BATCH_BYTES_MIN: Final = 1_024
BATCH_BYTES_MAX: Final = 64 << 20
"""Bounds of `batch_bytes`."""
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""`max.message.bytes` of a topic whose configuration is not readable: the default."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Largest batch that is staged, whatever its topic's limit."""
TOPICS_MAX: Final = 1_000
"""Most topics that one task may write to."""
MANIFEST_BYTES_MAX: Final = 16 << 20
"""Largest commit, as the broker limits it."""
REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for a response other than a commit's."""
STAGED_COPIES: Final = 2
"""Number of brokers that get a blob, if several admin addresses are given."""
COPY_TIMEOUT_SECONDS: Final = 10.0
"""Longest time for a blob at one of several brokers, with its attempts."""
DISCARD_TIMEOUT_SECONDS: Final = 5.0
"""Longest wait for another broker to remove its copies after a commit."""
STAGING_TIMEOUT_SECONDS: Final = 60.0
"""Longest time for a blob, with its attempts, or for a request of staging locations."""
COMMIT_TIMEOUT_SECONDS: Final = 120.0
COMMIT_TIMEOUT_SECONDS_MAX: Final = 86_400.0
