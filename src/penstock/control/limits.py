"""The bounds of the control plane, each with its name."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHANGES_KNOWN_MAX: Final = 64
"""Changes of topics that an image remembers; who is further behind compares all topics."""

WAITING_OPERATIONS_MAX: Final = 10_000
"""Operations that may wait for the database's thread; more are refused as busy."""

GROUP_OPERATIONS_MAX: Final = 512
"""Operations that share one transaction and one sync."""

BUSY_TIMEOUT_SECONDS: Final = 2.0
"""How long the database's owner is waited for when it is opened."""

LONE_ROWS_MAX: Final = 64
"""Rows of an operation that may be committed on the event loop."""

LONE_COMMIT_SECONDS_MAX: Final = 0.002
"""After a commit that took longer the event loop commits nothing."""

CHECKPOINT_OPERATIONS: Final = 250
"""Operations after which the write-ahead log is copied back: about 1,000 pages, as SQLite does."""

POSTGRES_CONNECTIONS_MAX: Final = 8
"""Connections to PostgreSQL that one broker's operations share; another one listens."""

CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""How long one attempt to connect to PostgreSQL may take."""

OPERATION_TIMEOUT_SECONDS: Final = 8.0
"""How long an operation waits for a connection and is tried again, in all."""

OPERATION_ATTEMPTS_MAX: Final = 12
"""How often an operation is tried: after a lost connection, a deadlock, a serialisation failure."""

STATEMENT_TIMEOUT_SECONDS: Final = 10.0
"""What PostgreSQL gives one statement; the client gives up a little later."""

TURN_PAUSE_SECONDS: Final = 0.0003
"""Between two looks at whether a process may write to the database that it shares with others."""

LOCK_TIMEOUT_SECONDS: Final = 5.0
"""How long a statement waits for a lock, or a process that shares SQLite for its turn. Longer
than what an idle transaction is given, so that whoever waits for one that was left behind
outlives it."""

IDLE_TRANSACTION_SECONDS: Final = 2.0
"""How long a transaction may wait for its own broker before PostgreSQL ends it."""

MIGRATION_TIMEOUT_SECONDS: Final = 120.0
"""What one migration is given, and how long others that start meanwhile wait for it."""

BACKOFF: Final = Backoff(first_ms=20, ceiling_ms=1_000, steady=0.5)
"""Pauses between attempts to connect, and to do an operation."""

LISTEN_PROBE_SECONDS: Final = 10.0
"""How often the listening connection is asked whether it still is one."""

NOTICE_BYTES_MAX: Final = 7_900
"""Bytes of one NOTIFY; PostgreSQL's own limit is 8000."""

NOTICES_WAITING_MAX: Final = 100_000
"""Partitions whose marks wait to be told to other brokers; above it the oldest are left out."""

TOPIC_PARTITIONS_MAX: Final = 100_000
"""Partitions of one topic, whatever the broker's own limit says."""

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
"""Queries whose commits to the log are remembered."""

SINK_TARGETS_MAX: Final = 50_000
"""Partitions that one query's commit, and those before it, have written to."""

SINK_MANIFEST_BYTES_MAX: Final = 16 << 20
"""Bytes of one saved manifest, which is compressed."""

SINK_OBJECTS_MAX: Final = 512
"""Objects that one sink's commit to diskless topics brings, all in one transaction."""

EPOCH_PARTITIONS_PER_CALL_MAX: Final = 10_000
"""Partitions that one call claims, opens or asks for."""

CHAIN_EPOCHS_MAX: Final = 1_000
"""Epochs of a partition that are answered at once, the newest ones."""

LOSSES_MAX: Final = 1_000
"""Unclean elections that are answered at once, the newest ones."""

OWED_EPOCHS_MAX: Final = 10_000
"""Epochs of a broker that are answered at once."""

OBJECT_LEASES_PER_CALL_MAX: Final = 256
"""Keys of objects that one call leases."""

OBJECT_ENTRIES_MAX: Final = 10_000
"""Entries in one object's commit."""

COMMIT_ANSWER_KEPT_MS: Final = 3_600_000
"""How long a repeated commit is sure to get the first answer."""

FIND_EXTENTS_MAX: Final = 1_000
"""Extents that a find returns for one partition, however small they are."""

SWITCH_EXTENTS_MAX: Final = 100_000
"""Extents of a topic that becomes diskless, which are stored in one transaction; about 400 GB."""

SWITCH_PRODUCERS_MAX: Final = 100_000
"""Idempotent producers of a topic that becomes diskless."""

SWITCH_ABORTED_MAX: Final = 100_000
"""Aborted transactions of such a topic."""

SWITCH_SHARE_BYTES_MAX: Final = 64 << 20
"""Bytes of the index of what one of several brokers brings into such a topic."""

TIER_SEGMENTS_PER_CALL_MAX: Final = 1_000
"""Segments in the archive that one call answers with, or lets go."""
