"""Every bound of the client, by name.

Nothing in this package waits, retries or buffers beyond one of these numbers; those that a
caller may want to change are arguments of `Client` with these as defaults.
"""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff, RetryPolicy

REQUEST_TIMEOUT_MS: Final = 30_000
"""Longest wait for one answer."""
CONNECT_TIMEOUT_MS: Final = 10_000
"""Longest wait for one TCP connection."""
DELIVERY_TIMEOUT_MS: Final = 120_000
"""Longest time from the first attempt of a call or batch to giving it up."""
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
"""Age at which metadata is asked for again although nothing failed."""

IN_FLIGHT_MAX: Final = 5
"""Unanswered produce requests per broker; Kafka remembers five batches per idempotent producer."""
BATCH_BYTES: Final = 1_000_000
"""Size at which a record batch is closed: below the broker's default limit of 1,048,588."""
PRODUCE_REQUEST_BYTES: Final = 8 << 20
"""Record bytes in one produce request, when several partitions of a broker have batches."""
BUFFER_BYTES: Final = 32 << 20
"""Encoded bytes that wait or are under way; above it the writer waits for answers."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Most rows encoded at a time."""

FETCH_BYTES: Final = 8 << 20
"""Answer size that a fetch asks for."""
FETCH_PARTITION_BYTES: Final = 8 << 20
"""Of which at most this much for one partition."""
FETCH_WAIT_MS: Final = 500
"""How long a broker may hold a fetch that finds nothing."""
FETCHES_UNDER_WAY: Final = 2
"""Fetches that one broker is asked for at a time, each of other partitions, while it is behind."""
FRAMES_KEPT: Final = 2
"""Pieces of memory that a reader keeps for its next answers."""
FRAME_KEPT_BYTES_MIN: Final = 1 << 20
"""Smaller answers get memory of exactly their size; it costs little."""
RESPONSE_BYTES_MAX: Final = 256 << 20
"""Largest answer that is read; a longer one is refused before memory is taken."""

TAKE_RECORDS: Final = 500
"""Records that a queue's member takes at a time, unless it says otherwise; Kafka's default."""
TAKE_RECORDS_MAX: Final = 100_000
TAKE_WAIT_MS: Final = 1_000
"""How long it waits for the first of them."""
TAKE_ROUND_MS: Final = 200
"""How long each of several brokers may hold its fetch: those that found something wait for them."""

IDLE_CONNECTIONS_MAX: Final = 8
"""Connections kept per broker for the next reader or writer."""
IDLE_PRODUCERS_MAX: Final = 16
"""Producer identities kept for the next writer."""
BUFFERS_PER_SEND_MAX: Final = 512
"""Pieces given to one `sendmsg`; Linux takes at most 1,024."""

PRODUCER_PARTITIONS_MAX: Final = 16_384
"""Producers of partitions that an appender remembers; beyond it idle ones are forgotten."""
APPENDER_UNDER_WAY_MAX: Final = 256
"""Unanswered requests on one connection of an appender, of all its producer partitions together."""
APPENDER_WRITE_BYTES: Final = 4 << 20
"""Bytes that may wait for a connection's socket before producer partitions are told to wait."""
APPENDER_ANSWER_BYTES_MAX: Final = 1 << 20
"""Largest answer that an appender's connection reads; one to Produce has about 100 bytes."""
APPENDER_CONNECT_TIMEOUT_MS: Final = 3_000
"""Longest wait for a connection while appends wait behind it."""
APPENDER_CALL_THREADS: Final = 2
"""Threads that ask for producer ids and topics for an appender's owner; the loop never blocks."""
APPENDER_PARTITIONS_LOOKED_AT: Final = 8
"""Producers of partitions among which one append looks for an idle one to forget."""
METADATA_PAUSE_MS: Final = 100
"""Shortest time between two questions for the metadata of one topic."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 << 20
"""Bytes that are read of an answer of admin HTTP."""
ADMIN_ATTEMPTS_MAX: Final = 1_000
"""Attempts of one call of admin HTTP within its time."""
ADMIN_BACKOFF: Final = Backoff(first_ms=50, ceiling_ms=2_000, steady=0.5)
"""Pauses between them."""

TRANSACTION_TIMEOUT_MS: Final = 60_000
"""How long a transaction may be open, unless its producer says otherwise; Kafka's default."""
