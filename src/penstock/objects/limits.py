"""The bounds of this package that are no settings."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

KEY_BYTES_MAX: Final = 512
"""S3 allows 1,024 with the prefix of the store before the key."""

KEY_NAME_BYTES_MAX: Final = 255
"""One part of a key is a file name in a directory store (Linux's NAME_MAX)."""

DIRECTORY_THREADS: Final = 16
"""File calls that a directory store makes at once."""

DIRECTORY_WAITING_MAX: Final = 4096
"""Calls that wait for a thread; more are refused as throttled."""

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

INLINE_BODY_BYTES_MAX: Final = 256 << 10
"""Bodies of puts up to this size are joined by the caller; above, that takes milliseconds."""

BODY_THREADS: Final = 2
"""Threads that join larger bodies."""

BODIES_WAITING_MAX: Final = 1024
"""Puts that wait for such a thread; more are refused as throttled."""

UPLOAD_PART_BYTES: Final = 8 << 20
"""Parts of objects that are uploaded while they are made (S3 takes 10,000 of them)."""

UPLOAD_PARTS_AT_ONCE: Final = 2
"""Parts of one object that are sent at a time; as many more are held."""

UPLOAD_STALL_TIMEOUTS: Final = 3
"""How many times a request's timeout an upload may take for one part."""

DELETE_KEYS_MAX: Final = 1000
"""Keys of one request to delete (S3's own bound)."""

REQUEST_TIMEOUT_MS: Final = 10_000
"""What a request to a remote store may take where nothing else is said."""

CONNECT_TIMEOUT_MS: Final = 3_000
"""What connecting to a remote store may take, within the request's time."""

LAGGING_WAITING_PER_WORKER: Final = 100
"""Requests of the cold path that wait, per request that runs."""

RECENT_WAITING_PER_WORKER: Final = 100
"""Loads of the hot path that wait, per load that runs."""

LAGGING_RANGE_BYTES_MAX: Final = 64 << 20
"""Ranges of one object are read as one while together they span no more than this."""

GET_ATTEMPTS_MAX: Final = 3
"""How often a read is tried that the store did not answer."""

GET_BACKOFF: Final = Backoff(first_ms=50, steady=0.5)
"""Pauses between them."""

THROTTLED_PAUSES: Final = 4
"""How much longer the pause is where the store asked for fewer requests."""

HEDGE_WINDOW: Final = 512
"""Latencies that the percentile is taken of; the oldest are forgotten."""

HEDGE_SAMPLES_MIN: Final = 64
"""Latencies without which nothing is hedged."""

HEDGE_REFRESH: Final = 32
"""Latencies between two computations of the percentile."""

HEDGE_PERCENTILE: Final = 0.99

HEDGE_DELAY_MIN_SECONDS: Final = 0.02
"""Requests younger than this are not hedged: the second would not be faster than the first."""

HEDGE_SHARE: Final = 0.05
"""Hedges per request, in the long run: when all are slow, a second request helps none."""

HEDGES_SAVED_MAX: Final = 8.0
"""Hedges that may be made at once after a time without."""

CACHE_BLOCK_OVERHEAD_BYTES: Final = 512
"""What a cached block costs beside its bytes."""

CACHE_EXPIRY_CHECKS: Final = 4
"""How often per lifespan the cache is looked through for what has expired."""

SIGNED_READS: Final = 16
"""Ranges that are read by their URLs at once, each by a thread with a connection of its own."""

SIGNED_READS_WAITING_MAX: Final = 1024
"""Reads that wait for such a thread; more are refused as throttled."""

REFUSAL_BYTES_MAX: Final = 4096
"""What is read of an answer that is no range, for its code."""
