"""Limits of this package that are not settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

KEY_BYTES_MAX: Final = 512
"""S3 allows 1,024 bytes, including the store's prefix."""

KEY_NAME_BYTES_MAX: Final = 255
"""Each part of a key is a file name in a directory store (Linux's NAME_MAX)."""

DIRECTORY_THREADS: Final = 16
"""Maximum number of parallel file calls of a directory store."""

DIRECTORY_WAITING_MAX: Final = 4096
"""Maximum number of calls that wait for a thread; more are rejected as throttled."""

PARTIAL_AGE_MS: Final = 3_600_000
"""Age above which an opening directory store removes unfinished files: no write takes that long,
and other brokers may be writing younger ones."""

PARTIAL_REMOVALS_MAX: Final = 10_000
"""Maximum number of unfinished files that one opening removes."""

DURABLE_DIRECTORIES_MAX: Final = 65_536
"""Maximum number of directories remembered as durable; then all are synced again."""

LIST_PAGE_OBJECTS: Final = 1000
"""Objects per step of a listing (S3's own page)."""

CLOSE_TIMEOUT_SECONDS: Final = 10.0
"""Time that closing waits for running calls."""

INLINE_BODY_BYTES_MAX: Final = 256 << 10
"""Maximum size of bodies that the caller joins; joining larger ones takes milliseconds."""

BODY_THREADS: Final = 2

BODIES_WAITING_MAX: Final = 1024
"""Maximum number of puts that wait for such a thread; more are rejected as throttled."""

UPLOAD_PART_BYTES: Final = 8 << 20
"""Size of the parts of a streamed upload (S3 allows 10,000 of them)."""

UPLOAD_PARTS_AT_ONCE: Final = 2
"""Parts of one object that are sent in parallel; as many more are held in memory."""

UPLOAD_STALL_TIMEOUTS: Final = 3
"""Maximum time for one part of an upload, in request timeouts."""

DELETE_KEYS_MAX: Final = 1000
"""Maximum number of keys of one delete request (S3's own bound)."""

REQUEST_TIMEOUT_MS: Final = 10_000
"""Default timeout of a request to a remote store."""

CONNECT_TIMEOUT_MS: Final = 3_000
"""Connect timeout of a remote store, within the request's timeout."""

LAGGING_WAITING_PER_WORKER: Final = 100
"""Waiting requests of the cold path per running one."""

RECENT_WAITING_PER_WORKER: Final = 100
"""Waiting loads of the hot path per running one."""

LAGGING_RANGE_BYTES_MAX: Final = 64 << 20
"""Maximum span of ranges of one object that are read as one."""

GET_ATTEMPTS_MAX: Final = 3
"""Maximum number of attempts of a read."""

GET_BACKOFF: Final = Backoff(first_ms=50, steady=0.5)

THROTTLED_PAUSES: Final = 4
"""Factor of the pause after a throttled request."""

HEDGE_WINDOW: Final = 512
"""Number of latest latencies that the percentile is computed from."""

HEDGE_SAMPLES_MIN: Final = 64
"""Number of latencies below which nothing is hedged."""

HEDGE_REFRESH: Final = 32
"""Latencies between two computations of the percentile."""

HEDGE_PERCENTILE: Final = 0.99

HEDGE_DELAY_MIN_SECONDS: Final = 0.02
"""Minimum age of a hedged request: a hedge of a younger one would not be faster."""

HEDGE_SHARE: Final = 0.05
"""Long-term hedges per request: when all requests are slow, hedges do not help."""

HEDGES_SAVED_MAX: Final = 8.0
"""Maximum number of hedges saved up for a burst."""

CACHE_BLOCK_OVERHEAD_BYTES: Final = 512
"""Memory overhead of a cached block."""

CACHE_EXPIRY_CHECKS: Final = 4
"""Expiry checks of the cache per lifespan."""

SIGNED_READS: Final = 16
"""Maximum number of parallel reads by signed URLs, each with its own thread and connection."""

SIGNED_READS_WAITING_MAX: Final = 1024
"""Maximum number of reads that wait for such a thread; more are rejected as throttled."""

REFUSAL_BYTES_MAX: Final = 4096
"""Bytes of an error response that are searched for its code."""
