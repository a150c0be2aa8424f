"""Limits of the control plane."""

from __future__ import annotations

from typing import Final

from penstock.base.retry import Backoff

CHANGES_KNOWN_MAX: Final = 64
"""Recent topic changes that an image records.

A comparison with an image older than these compares all topics.
"""

WAITING_OPERATIONS_MAX: Final = 10_000
"""Operations of a process that may run or wait. Further ones fail with `ControlBusy`."""

CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""Timeout of one attempt to connect to PostgreSQL."""

OPERATION_TIMEOUT_SECONDS: Final = 8.0
"""Total time of an operation, including waits for a connection and retries."""

LOCK_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of locks in PostgreSQL, and of the write lock of a shared SQLite database.

It is longer than `IDLE_TRANSACTION_SECONDS`, so that an abandoned transaction ends before others
time out.
"""

BACKOFF: Final = Backoff(first_ms=20, ceiling_ms=1_000, steady=0.5)
"""Pauses between attempts to connect, and between attempts to run an operation."""

NOTICE_BYTES_MAX: Final = 7_900
"""Bytes of one change notice; PostgreSQL limits the payload of a NOTIFY to 8000."""

TOPIC_PARTITIONS_MAX: Final = 100_000
"""Partitions of one topic, whatever the broker's own limit."""

SINK_TARGETS_MAX: Final = 50_000
"""Partitions that one query's commits, the newest and earlier ones, have written to."""

SINK_OBJECTS_MAX: Final = 512
"""Objects in a sink's commit to diskless topics, which is one transaction."""

EPOCH_PARTITIONS_PER_CALL_MAX: Final = 10_000
"""Partitions in one call that reads or changes leader epochs."""

OBJECT_LEASES_PER_CALL_MAX: Final = 256
"""Object keys that one call leases."""

OBJECT_ENTRIES_MAX: Final = 10_000
"""Entries in the commit of one object."""

COMMIT_ANSWER_KEPT_MS: Final = 3_600_000
"""Minimum time for which the result of an object's commit is stored.

A repeated commit returns it.
"""

FIND_EXTENTS_MAX: Final = 1_000
"""Extents that a lookup returns for one partition, however small they are."""
