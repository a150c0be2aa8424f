"""Limits of this package that are not settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHUNK_BYTES: Final = 8 << 20
"""Bytes of a segment that are read at once for one consumer, and again ahead of it."""

CHUNKS_AHEAD: Final = 3
"""Maximum number of chunks that are read ahead in parallel."""

REST_SHARE: Final = 4
"""The rest of a segment joins its last chunk, up to this fraction of a chunk."""

CHUNK_BYTES_MIN: Final = 1 << 20
"""Minimum size of a chunk, where many consumers share the buffer."""

READY_BYTES_MAX: Final = 128 << 20
"""Maximum size of buffered batches that wait for their fetch."""

READY_SECONDS: Final = 30.0
"""Time that batches stay buffered."""

READY_SHARE: Final = 4
"""Fraction of a consumer's share of the buffer that one of its chunks may take."""

LOADING_BYTES_MAX: Final = 256 << 20
"""Bytes being loaded from the store in parallel; more wait."""

LOADS_MAX: Final = 1_024
"""Maximum number of running and waiting loads; the next fetch retries the others."""

INLINE_BYTES_MAX: Final = 256 << 10
"""Size of chunks above which they are verified on a thread."""

ROWS_PER_PAGE: Final = 100
"""Segments per request to the control plane."""

ROWS_SECONDS: Final = 30.0
"""Time for which segment rows are cached: far below the sweeper's grace period."""

ROW_PAGES_MAX: Final = 1_024
"""Maximum number of partitions with cached rows."""

LOOKUPS_AT_ONCE: Final = 16
"""Maximum number of parallel lookups by timestamp."""

ABORTED_PAGES_MAX: Final = 1_000
"""Maximum pages of segments with aborted transactions that one read examines."""

MARKS_PER_CALL: Final = 1_000
"""Maximum number of partitions per request for tiers."""

STEPS_PER_LOOK_MAX: Final = 1_000
"""Maximum number of effects for one partition before others have their turn."""

LOOKS_PER_LIFE: Final = 100
"""Checks of the oldest segment's age per `retention.ms`."""

LAG_LOOKS: Final = 8
"""Measurements over which a copy lag counts as growing."""

RETRY: Final = Backoff(first_ms=500, ceiling_ms=60_000, steady=0.5)
"""Pauses after failed copies of a partition."""

FORGET_SECONDS: Final = 30.0
"""Interval at which tiers of deleted topics are searched."""

FORGET_CALLS_MAX: Final = 100
"""Maximum calls per such search."""
