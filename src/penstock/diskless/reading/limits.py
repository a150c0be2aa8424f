"""Limits of reading."""

from __future__ import annotations

from typing import Final

COORDINATES_MAX_BYTES: Final = 64 << 20
"""Memory of the cached extents of all partitions."""

COORDINATES_AGE_SECONDS: Final = 30.0
"""Age at which a cached extent expires. Far below the grace of the sweeper, so that its object
exists as long as it may be read."""

EXTENT_OVERHEAD_BYTES: Final = 400
"""Memory of an extent beside its layout and its key."""

READY_MAX_BYTES: Final = 128 << 20
"""Size of assembled batches that wait for their fetch."""

READY_SECONDS: Final = 30.0
"""Time for which they wait: longer than a consumer's pauses between fetches."""

FAILURE_SECONDS: Final = 0.5
"""Time for which a failed load is answered with its error before a retry."""

READY_PER_PARTITION_MAX: Final = 64
"""Waiting runs of batches of one partition, for consumers at different offsets."""

LOADING_MAX_BYTES: Final = 256 << 20
"""Bytes that are loaded from the store at once; further loads wait."""

LOADS_MAX: Final = 1024
"""Running and waiting loads; further ones are retried at the next fetch."""

FIND_REQUESTS_MAX: Final = 500
"""Partitions in one call of the control plane."""

INLINE_BYTES_MAX: Final = 1 << 20
"""Size above which batches are assembled on a thread, so as not to block the event loop."""

READ_ATTEMPTS_MAX: Final = 2
"""Attempts to read an extent whose object is gone, each with newly read coordinates."""

LOOKUP_EXTENTS: Final = 1000
"""Extents of one page of a lookup by time."""

LOOKUP_PAGES_MAX: Final = 10_000

LOOKUPS_AT_ONCE: Final = 16
"""Concurrent lookups by time."""

ABORTED_PER_CALL: Final = 10_000
"""Aborted transactions in one answer of the control plane."""

ABORTED_PAGES_MAX: Final = 100
"""Answers that one request may need."""

ABORTED_KEPT_MAX: Final = 200_000
"""Cached aborted transactions; the least recently used partitions are dropped first."""

ABORTED_KEPT_PARTITIONS: Final = 10_000
"""Partitions in that cache, including those without aborted transactions."""

ABORTED_KEPT_PER_PARTITION: Final = 4
"""Offsets of readers of one partition in that cache."""
