"""Bounds of the client.

Every wait, retry and buffer in this package has one of these limits; those that a caller may
want to change are arguments of `Client` with these as defaults.
"""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff, RetryPolicy

REQUEST_TIMEOUT_MS: Final = 30_000
"""Longest wait for one response."""
DELIVERY_TIMEOUT_MS: Final = 120_000
"""Longest time from the first attempt of a call or batch to its failure."""
ATTEMPTS_MAX: Final = 300
"""Attempts of one call or batch within its delivery timeout."""
BACKOFF_FIRST_MS: Final = 20
"""Ceiling of the pause before the first retry; it doubles up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 1_000
RETRY: Final = RetryPolicy(
    backoff=Backoff(first_ms=BACKOFF_FIRST_MS, ceiling_ms=BACKOFF_MAX_MS),
    attempts_max=ATTEMPTS_MAX,
    timeout_ms=DELIVERY_TIMEOUT_MS,
)

IN_FLIGHT_MAX: Final = 5
"""Unanswered produce requests per broker; Kafka stores five batches per idempotent producer."""
BATCH_BYTES: Final = 1_000_000
"""Size at which a record batch is closed: below the broker's default limit of 1,048,588."""
PRODUCE_REQUEST_BYTES: Final = 8 << 20
"""Record bytes in one produce request, when several partitions of a broker have batches."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows encoded at a time."""

FETCH_BYTES: Final = 8 << 20
"""Response size that a fetch requests."""
FETCH_PARTITION_BYTES: Final = 8 << 20
"""Limit of one partition's share of a fetch."""
FETCH_WAIT_MS: Final = 500
"""Longest time that a broker may hold a fetch without records."""
RESPONSE_BYTES_MAX: Final = 256 << 20
"""Largest accepted response; a longer one is rejected before memory is allocated."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 << 20
"""Limit of bytes read from a response of admin HTTP."""
ADMIN_ATTEMPTS_MAX: Final = 1_000
"""Attempts of one admin HTTP call within its timeout."""
