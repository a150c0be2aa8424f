"""Limits of the control plane."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHANGES_KNOWN_MAX: Final = 64
"""Recent topic changes that an image records; comparisons with older images compare all topics."""

WAITING_OPERATIONS_MAX: Final = 10_000
"""Operations that may wait for the database's thread; more are refused as busy."""

CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""Timeout of one attempt to connect to PostgreSQL."""

OPERATION_TIMEOUT_SECONDS: Final = 8.0
"""Total time for which an operation waits for a connection and is retried."""

LOCK_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of locks in PostgreSQL, and of the write lock of a shared SQLite database. Longer than
`IDLE_TRANSACTION_SECONDS`, so that an abandoned transaction ends first."""

BACKOFF: Final = Backoff(first_ms=20, ceiling_ms=1_000, steady=0.5)
"""Pauses between attempts to connect, and between attempts at an operation."""

NOTICE_BYTES_MAX: Final = 7_900
"""Bytes of one NOTIFY; PostgreSQL's own limit is 8000."""

TOPIC_PARTITIONS_MAX: Final = 100_000
"""Partitions of one topic, regardless of the broker's own limit."""

SINK_TARGETS_MAX: Final = 50_000
"""Partitions that one query's commit, and those before it, have written to."""

SINK_OBJECTS_MAX: Final = 512
"""Objects in one sink's commit to diskless topics, which is one transaction."""

EPOCH_PARTITIONS_PER_CALL_MAX: Final = 10_000
"""Partitions in one call."""

OBJECT_LEASES_PER_CALL_MAX: Final = 256
"""Keys of objects that one call leases."""

OBJECT_ENTRIES_MAX: Final = 10_000
"""Entries in one object's commit."""

COMMIT_ANSWER_KEPT_MS: Final = 3_600_000
"""Minimum time for which a repeated commit gets the first answer."""

FIND_EXTENTS_MAX: Final = 1_000
"""Extents that a find returns for one partition, however small they are."""
