"""Errors and limits of the control plane."""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
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


class TopicExists(InvalidError):
    code: ClassVar[str] = "topic_already_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} already exists")
        self.name = name


class UnknownTopic(InvalidError):
    code: ClassVar[str] = "unknown_topic_id"

    def __init__(self, topic_id: UUID) -> None:
        super().__init__(f"there is no topic of id {topic_id}")
        self.topic_id = topic_id


class TopicIdTaken(InvalidError):
    code: ClassVar[str] = "topic_already_exists"

    def __init__(self, topic_id: UUID, name: str) -> None:
        super().__init__(f"topic {name!r} has the id {topic_id} already")
        self.topic_id = topic_id


class InvalidPartitions(InvalidError):
    """A topic cannot have this number of partitions, or a call names a partition twice."""

    code: ClassVar[str] = "invalid_partitions"


class InvalidReplicas(InvalidError):
    """A partition's list of replicas is empty, repeats a broker, or has a negative id."""

    code: ClassVar[str] = "invalid_replica_assignment"


class TooLarge(InvalidError):
    """A call exceeds a limit of the control plane."""

    code: ClassVar[str] = "invalid_request"


class StaleTopic(FencedError):
    """The topic changed after the caller read it, so the caller's change was rejected."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, name: str, what: str, expected: object, found: object) -> None:
        super().__init__(
            f"topic {name!r}: {what} is {found!r}, but the change expected {expected!r}"
        )
        self.name = name


class StaleConfigs(FencedError):
    """The configs changed after the caller read them, so the caller's change was rejected."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, name: str, kind: str = "broker") -> None:
        super().__init__(f"the configs of {kind} {name or '(default)'} changed concurrently")
        self.name = name


class InvalidQuorum(InvalidError):
    """An acknowledgement quorum is impossible with this number of replicas."""

    code: ClassVar[str] = "invalid_config"


class NotReplicated(InvalidError):
    """The partition does not exist, or is not replicated."""

    code: ClassVar[str] = "unknown_topic_or_partition"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(f"partition {partition} of topic {topic_id} is not replicated")


class NotReassigned(InvalidError):
    code: ClassVar[str] = "no_reassignment_in_progress"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(f"partition {partition} of topic {topic_id} has no reassignment to cancel")


class NotReplica(InvalidError):
    """The broker is not a replica of the partition, so it cannot lead it."""

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(
        self, topic_id: UUID, partition: int, broker_id: int, replicas: tuple[int, ...]
    ) -> None:
        super().__init__(
            f"partition {partition} of topic {topic_id} has the replicas {replicas}:"
            f" broker {broker_id} cannot lead it"
        )


class StaleEpoch(FencedError):
    """Another epoch of the partition was reserved or opened in the meantime."""

    code: ClassVar[str] = "fenced_leader_epoch"

    def __init__(self, topic_id: UUID, partition: int, epoch: int, reason: str) -> None:
        super().__init__(f"partition {partition} of topic {topic_id}, epoch {epoch}: {reason}")
        self.epoch = epoch


class DatabaseSetBack(FencedError):
    """The metadata database is another one, or an older copy that lacks committed changes."""

    code: ClassVar[str] = "kafka_storage_error"


class StaleRecord(FencedError):
    """Another coordinator saved the record after the caller read it."""

    code: ClassVar[str] = "not_coordinator"

    def __init__(self, kind: str, key: str, expected: int, found: int) -> None:
        super().__init__(f"{kind} {key!r} is at version {found}, but the save expected {expected}")
        self.key = key


class NotInTransaction(InvalidError):
    code: ClassVar[str] = "invalid_txn_state"

    def __init__(self, transactional_id: str, group_id: str) -> None:
        super().__init__(
            f"the producer's transaction {transactional_id!r} does not include the offsets of"
            f" group {group_id!r}: it has ended, or they were not added to it"
        )


class StaleProducerEpoch(FencedError):
    """A newer epoch of the producer has begun a transaction."""

    code: ClassVar[str] = "invalid_producer_epoch"

    def __init__(self, transactional_id: str, epoch: int, found: int) -> None:
        super().__init__(
            f"the producer of {transactional_id!r} has epoch {found}, the request has epoch {epoch}"
        )


class StaleSink(FencedError):
    """Another writer saved the query's commit, or the new commit cannot follow the saved one."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, query_id: str, reason: str) -> None:
        super().__init__(f"the commit of query {query_id!r} {reason}")
        self.query_id = query_id


class StaleBroker(FencedError):
    """A newer incarnation of the broker is registered, or the broker is not registered."""

    code: ClassVar[str] = "stale_broker_epoch"

    def __init__(self, broker_id: int, *, registered: bool = True) -> None:
        reason = "was registered by a newer incarnation" if registered else "is not registered"
        super().__init__(f"broker {broker_id} {reason}")
        self.broker_id = broker_id
        self.registered = registered


class UnknownBroker(InvalidError):
    code: ClassVar[str] = "broker_id_not_registered"


class BrokerInUse(InvalidError):
    """A broker cannot be removed, because it is running or holds replicas."""

    code: ClassVar[str] = "policy_violation"


class StaleClusterEpoch(FencedError):
    """Brokers were added or removed after the caller read the image.

    Another broker may coordinate the caller's groups now, so the change was rejected.
    """

    code: ClassVar[str] = "not_coordinator"

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the cluster epoch is {found}, but the change expected {expected}")
        self.expected = expected
        self.found = found


class ControlUnavailable(UnavailableError):
    """The metadata database cannot be used now. The message has the reason."""

    code: ClassVar[str] = "coordinator_not_available"


class DatabaseFull(ControlUnavailable):
    """The database's disk is full. The change was not made, and may be retried."""


class DatabaseLocked(ControlUnavailable):
    pass


class DatabaseRefused(ControlUnavailable):
    """The database rejects this broker. An administrator must correct access rights or settings."""


class DatabaseDamaged(ControlUnavailable):
    """The database is damaged, or lacks Penstock's tables."""


class DatabaseSlow(ControlUnavailable):
    """A statement or the wait for a connection exceeded its time limit. It may be retried."""


class DatabaseStopped(ControlUnavailable):
    """A read, write or sync of the database file failed. It stays unusable until a restart."""


class ControlBusy(UnavailableError):
    code: ClassVar[str] = "coordinator_load_in_progress"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} operations wait for the metadata database, which is the maximum")
        self.limit = limit


class UnstorableText(InvalidError):
    """A text holds a character that the database cannot store, such as NUL."""

    code: ClassVar[str] = "invalid_request"


class IncompatibleDatabase(InvalidError):
    """The database was written by a newer Penstock, or by another program."""

    code: ClassVar[str] = "unsupported_version"


class ObjectLeaseLost(FencedError):
    """The sweeper marked the object for deletion before its commit.

    The caller must write the object again under a new key.
    """

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, object_id: int) -> None:
        super().__init__(f"object {object_id} is marked for deletion or deleted: its lease is lost")
        self.object_id = object_id


class CommitForgotten(FencedError):
    """The object was committed so long ago that the result of the commit was deleted."""

    code: ClassVar[str] = "request_timed_out"

    def __init__(self, object_id: int) -> None:
        super().__init__(
            f"object {object_id} was committed more than {COMMIT_ANSWER_KEPT_MS} ms ago:"
            f" the result of the commit is no longer stored"
        )
        self.object_id = object_id


class InvalidCommit(InvalidError):
    """The entries or extents of an object contradict each other, or the object's size."""

    code: ClassVar[str] = "invalid_request"


class EntryRefused(InvalidError):
    """A commit that must be complete has an entry that is rejected."""

    code: ClassVar[str] = "unknown_topic_or_partition"

    def __init__(self, object_id: int, error: str, message: str) -> None:
        super().__init__(f"the commit of object {object_id} was rejected: {message} ({error})")
        self.object_id = object_id
        self.error = error


class StaleExtents(FencedError):
    """The extents to replace have changed, or are gone."""

    code: ClassVar[str] = "invalid_update_version"


class StaleTiers(FencedError):
    """An archived segment does not follow the partition's last archived segment."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, topic_id: UUID, partition: int, reason: str) -> None:
        super().__init__(f"partition {partition} of topic {topic_id}: {reason}")


class NotTiered(InvalidError):
    code: ClassVar[str] = "invalid_config"


class OffsetBeyondEnd(InvalidError):
    """A DeleteRecords request names an offset outside of the partition."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic_id: UUID, partition: int, offset: int, high_watermark: int) -> None:
        super().__init__(
            f"partition {partition} of topic {topic_id}: offset {offset} is not between"
            f" -1 and the high watermark {high_watermark}"
        )
        self.offset = offset


class NotWritable(RetriableError):
    """The partition is not diskless, or it is fenced because it becomes replicated."""

    code: ClassVar[str] = "not_leader_or_follower"


class StaleMigration(FencedError):
    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, topic_id: UUID) -> None:
        super().__init__(f"the migration request of topic {topic_id} is closed")
        self.topic_id = topic_id


class MigrationRefused(InvalidError):
    """A topic cannot become diskless, or replicated. The message has the reason."""

    code: ClassVar[str] = "invalid_config"
