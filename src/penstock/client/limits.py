"""Limits of the client.

Each wait, retry and buffer of this package has one of these limits. Limits that a caller may want
to change are parameters of `Client`, with these as defaults.
"""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff, RetryPolicy

REQUEST_TIMEOUT_MS: Final = 30_000
"""Maximum time in milliseconds for one response."""
DELIVERY_TIMEOUT_MS: Final = 120_000
"""Maximum time in milliseconds from the first attempt of a call or batch to its failure."""
ATTEMPTS_MAX: Final = 300
"""Maximum number of attempts of one call or batch within its delivery timeout."""
BACKOFF_FIRST_MS: Final = 20
"""Maximum pause before the first retry in milliseconds; it doubles up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 1_000
RETRY: Final = RetryPolicy(
    backoff=Backoff(first_ms=BACKOFF_FIRST_MS, ceiling_ms=BACKOFF_MAX_MS),
    attempts_max=ATTEMPTS_MAX,
    timeout_ms=DELIVERY_TIMEOUT_MS,
)

IN_FLIGHT_MAX: Final = 5
"""Maximum number of unanswered produce requests per broker.

Kafka remembers five batches per idempotent producer.
"""
BATCH_BYTES: Final = 1_000_000
"""Size at which a record batch is closed, below the broker's default limit of 1,048,588 bytes."""
PRODUCE_REQUEST_BYTES: Final = 8 << 20
"""Maximum bytes of records in one produce request with batches of several partitions."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Maximum number of rows that are encoded at a time."""

FETCH_BYTES: Final = 8 << 20
"""Maximum bytes of a response that a fetch requests."""
FETCH_PARTITION_BYTES: Final = 8 << 20
"""Maximum bytes of one partition in a fetch response."""
FETCH_WAIT_MS: Final = 500
"""Maximum time in milliseconds that a broker may wait for records before it responds to a fetch."""
RESPONSE_BYTES_MAX: Final = 256 << 20
"""Size above which a response is rejected before memory is allocated."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum bytes that are read of a response of the admin HTTP interface."""
ADMIN_ATTEMPTS_MAX: Final = 1_000
"""Maximum number of attempts of one admin HTTP call within its timeout."""
