"""Bounds of the client.

Every wait, retry and buffer in this package has one of these limits; those that a caller may
want to change are arguments of `Client` with these as defaults.
"""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff, RetryPolicy

REQUEST_TIMEOUT_MS: Final = 30_000
"""Longest wait for one response."""
CONNECT_TIMEOUT_MS: Final = 10_000
"""Longest wait for one TCP connection."""
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
METADATA_MAX_AGE_MS: Final = 300_000
"""Age at which metadata is refreshed even without a failure."""

IN_FLIGHT_MAX: Final = 5
"""Unanswered produce requests per broker; Kafka stores five batches per idempotent producer."""
BATCH_BYTES: Final = 1_000_000
"""Size at which a record batch is closed: below the broker's default limit of 1,048,588."""
PRODUCE_REQUEST_BYTES: Final = 8 << 20
"""Record bytes in one produce request, when several partitions of a broker have batches."""
BUFFER_BYTES: Final = 32 << 20
"""Encoded bytes that are queued or in flight; above it the writer waits for responses."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows encoded at a time."""

FETCH_BYTES: Final = 8 << 20
"""Response size that a fetch requests."""
FETCH_PARTITION_BYTES: Final = 8 << 20
"""Limit of one partition's share of a fetch."""
FETCH_WAIT_MS: Final = 500
"""Longest time that a broker may hold a fetch without records."""
FETCHES_UNDER_WAY: Final = 2
"""Fetches in flight to one broker while the reader is behind, each for other partitions."""
FRAMES_KEPT: Final = 2
"""Pieces of memory that a reader keeps for its next responses."""
FRAME_KEPT_BYTES_MIN: Final = 1 << 20
"""Smaller responses get memory of exactly their size, which is cheap."""
RESPONSE_BYTES_MAX: Final = 256 << 20
"""Largest accepted response; a longer one is rejected before memory is allocated."""

TAKE_RECORDS: Final = 500
"""Default number of records that a queue acquires at a time; Kafka's default."""
TAKE_RECORDS_MAX: Final = 100_000
TAKE_WAIT_MS: Final = 1_000
"""Default wait for the first of them."""
TAKE_ROUND_MS: Final = 200
"""Longest time that each of several brokers may hold its fetch, since the others wait for it."""

IDLE_CONNECTIONS_MAX: Final = 8
"""Connections kept per broker for the next reader or writer."""
IDLE_PRODUCERS_MAX: Final = 16
"""Producer identities kept for the next writer."""
BUFFERS_PER_SEND_MAX: Final = 512
"""Pieces per `sendmsg` call; Linux allows at most 1,024."""

PRODUCER_PARTITIONS_MAX: Final = 16_384
"""Producer partitions in an appender's memory; beyond it idle ones are dropped."""
APPENDER_UNDER_WAY_MAX: Final = 256
"""Unanswered requests on one connection of an appender, of all its producer partitions together."""
APPENDER_WRITE_BYTES: Final = 4 << 20
"""Unsent bytes of a connection at which its producer partitions have to wait."""
APPENDER_ANSWER_BYTES_MAX: Final = 1 << 20
"""Largest response that an appender's connection reads; one to Produce has about 100 bytes."""
APPENDER_CONNECT_TIMEOUT_MS: Final = 3_000
"""Longest wait for a connection while appends wait behind it."""
APPENDER_CALL_THREADS: Final = 2
"""Threads that request producer ids and topics for an appender's owner; the loop never blocks."""
APPENDER_PARTITIONS_LOOKED_AT: Final = 8
"""Producer partitions that one append checks for an idle one to drop."""
METADATA_PAUSE_MS: Final = 100
"""Shortest time between two metadata requests for one topic."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 << 20
"""Limit of bytes read from a response of admin HTTP."""
ADMIN_ATTEMPTS_MAX: Final = 1_000
"""Attempts of one admin HTTP call within its timeout."""
ADMIN_BACKOFF: Final = Backoff(first_ms=50, ceiling_ms=2_000, steady=0.5)
"""Pauses between them."""

TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Default timeout of an open transaction; Kafka's default."""
