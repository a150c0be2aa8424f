"""Limits of the control plane."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHANGES_KNOWN_MAX: Final = 64
"""Recent topic changes that an image records; comparisons with older images compare all topics."""

WAITING_OPERATIONS_MAX: Final = 10_000
"""Operations that may wait for the database's thread; more are refused as busy."""

GROUP_OPERATIONS_MAX: Final = 512
"""Operations that share one transaction and one sync."""

BUSY_TIMEOUT_SECONDS: Final = 2.0
"""Wait for another owner of the database when it is opened."""

LONE_ROWS_MAX: Final = 64
"""Rows that an operation on the event loop may touch."""

LONE_COMMIT_SECONDS_MAX: Final = 0.002
"""Duration of a commit above which the event loop commits nothing."""

CHECKPOINT_OPERATIONS: Final = 250
"""Operations after which the write-ahead log is copied back: about 1,000 pages, as SQLite does."""

POSTGRES_CONNECTIONS_MAX: Final = 8
"""Connections to PostgreSQL that one broker's operations share; another one listens."""

CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""Timeout of one attempt to connect to PostgreSQL."""

OPERATION_TIMEOUT_SECONDS: Final = 8.0
"""Total time for which an operation waits for a connection and is retried."""

OPERATION_ATTEMPTS_MAX: Final = 12
"""Attempts at an operation after lost connections, deadlocks and serialisation failures."""

STATEMENT_TIMEOUT_SECONDS: Final = 10.0
"""PostgreSQL's `statement_timeout`; the client's own timeout is slightly longer."""

TURN_PAUSE_SECONDS: Final = 0.0003
"""Interval of attempts to lock a shared SQLite database."""

LOCK_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of locks in PostgreSQL, and of the write lock of a shared SQLite database. Longer than
`IDLE_TRANSACTION_SECONDS`, so that an abandoned transaction ends first."""

IDLE_TRANSACTION_SECONDS: Final = 2.0
"""Time after which PostgreSQL ends an idle transaction."""

MIGRATION_TIMEOUT_SECONDS: Final = 120.0
"""Timeout of a schema migration, and of other starting brokers that wait for it."""

BACKOFF: Final = Backoff(first_ms=20, ceiling_ms=1_000, steady=0.5)
"""Pauses between attempts to connect, and between attempts at an operation."""

LISTEN_PROBE_SECONDS: Final = 10.0
"""Interval of liveness checks of the listening connection."""

NOTICE_BYTES_MAX: Final = 7_900
"""Bytes of one NOTIFY; PostgreSQL's own limit is 8000."""

NOTICES_WAITING_MAX: Final = 100_000
"""Partitions whose watermarks wait to be sent to other brokers; the oldest are dropped first."""

TOPIC_PARTITIONS_MAX: Final = 100_000
"""Partitions of one topic, regardless of the broker's own limit."""

OFFSETS_PER_CALL_MAX: Final = 100_000
"""Offsets in one commit or deletion."""

RECORD_BYTES_MAX: Final = 128 << 20
"""Bytes of one row that a coordinator saves."""

PRODUCER_IDS_PER_CALL_MAX: Final = 1_000_000
"""Producer ids allocated by one call."""

ENTITY_CONFIGS_MAX: Final = 10_000
"""Entities of one kind: quotas, subscriptions to clients' metrics, ACL bindings, users."""

ENTITY_CONFIGS_BYTES_MAX: Final = 16_384
"""Characters of one entity's name and configs together."""

SINKS_MAX: Final = 10_000
"""Queries with a stored commit."""

SINK_TARGETS_MAX: Final = 50_000
"""Partitions that one query's commit, and those before it, have written to."""

SINK_MANIFEST_BYTES_MAX: Final = 16 << 20
"""Bytes of one saved manifest, which is compressed."""

SINK_OBJECTS_MAX: Final = 512
"""Objects in one sink's commit to diskless topics, which is one transaction."""

EPOCH_PARTITIONS_PER_CALL_MAX: Final = 10_000
"""Partitions in one call."""

CHAIN_EPOCHS_MAX: Final = 1_000
"""Epochs of a partition in one answer, the newest ones."""

LOSSES_MAX: Final = 1_000
"""Unclean elections in one answer, the newest ones."""

ASSIGNED_EPOCHS_MAX: Final = 10_000
"""Epochs of a broker in one answer."""

OBJECT_LEASES_PER_CALL_MAX: Final = 256
"""Keys of objects that one call leases."""

OBJECT_ENTRIES_MAX: Final = 10_000
"""Entries in one object's commit."""

COMMIT_ANSWER_KEPT_MS: Final = 3_600_000
"""Minimum time for which a repeated commit gets the first answer."""

FIND_EXTENTS_MAX: Final = 1_000
"""Extents that a find returns for one partition, however small they are."""

SWITCH_EXTENTS_MAX: Final = 100_000
"""Extents of a topic that becomes diskless (about 400 GB), stored in one transaction."""

SWITCH_PRODUCERS_MAX: Final = 100_000
"""Idempotent producers of a topic that becomes diskless."""

SWITCH_ABORTED_MAX: Final = 100_000
"""Aborted transactions of such a topic."""

SWITCH_SHARE_BYTES_MAX: Final = 64 << 20
"""Encoded size of one participant's share in such a topic."""

TIER_SEGMENTS_PER_CALL_MAX: Final = 1_000
"""Archived segments that one call returns or drops."""
