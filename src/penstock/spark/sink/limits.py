"""Every bound of the sink to the log, by name."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 32 << 20
"""Rows that a task holds at a time, encoded; a chunk is one blob."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows of a chunk."""
CHUNK_HALVINGS_MAX: Final = 20
"""How often a chunk that encodes to more than a blob may hold is cut in two."""
RUN_ROWS_MIN: Final = 1_024
"""Rows without a key go to the partitions in runs of at least so many, so that batches are full."""
BATCH_BYTES_MIN: Final = 1_024
BATCH_BYTES_MAX: Final = 64 << 20
"""Bounds of what `batch_bytes` may be set to."""
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""`max.message.bytes` of a topic whose configuration may not be read: the default."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Largest batch that is staged, whatever its topic takes."""
TOPICS_MAX: Final = 1_000
"""Topics that one task may write to."""
MANIFEST_BYTES_MAX: Final = 16 << 20
"""Largest commit, as the broker limits it."""
REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for an answer other than a commit's."""
STAGED_COPIES: Final = 2
"""Brokers that have a blob, where several admin addresses are given: the commit goes to any."""
COPY_TIMEOUT_SECONDS: Final = 10.0
"""Longest time for a blob at one of several brokers, with its attempts."""
DISCARD_TIMEOUT_SECONDS: Final = 5.0
"""Longest wait for another broker to remove its copies after a commit."""
STAGING_TIMEOUT_SECONDS: Final = 60.0
"""Longest time for a blob, with its attempts, or for asking where blobs go."""
COMMIT_TIMEOUT_SECONDS: Final = 120.0
COMMIT_TIMEOUT_SECONDS_MAX: Final = 86_400.0
