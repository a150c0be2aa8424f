"""Errors of the control plane."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS


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
    """A topic cannot have, or grow to, this number of partitions."""

    code: ClassVar[str] = "invalid_partitions"


class InvalidReplicas(InvalidError):
    """A partition's replicas are empty, repeat a broker, or name a negative one."""

    code: ClassVar[str] = "invalid_replica_assignment"


class TooLarge(InvalidError):
    """A call exceeds a limit of the control plane."""

    code: ClassVar[str] = "invalid_request"


class StaleTopic(FencedError):
    """The topic changed between the caller's read and its write."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, name: str, what: str, expected: object, found: object) -> None:
        super().__init__(f"topic {name!r}: {what} is {found!r}, the change expected {expected!r}")
        self.name = name


class StaleConfigs(FencedError):
    """The configs changed between the caller's read and its write."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, name: str, kind: str = "broker") -> None:
        super().__init__(f"the configs of {kind} {name or '(default)'} changed in the meantime")
        self.name = name


class InvalidQuorum(InvalidError):
    """An ack quorum is impossible with this number of replicas."""

    code: ClassVar[str] = "invalid_config"


class NotReplicated(InvalidError):
    """No such partition has several replicas."""

    code: ClassVar[str] = "unknown_topic_or_partition"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(f"partition {partition} of topic {topic_id} is not replicated")


class NotReassigned(InvalidError):
    code: ClassVar[str] = "no_reassignment_in_progress"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(f"partition {partition} of topic {topic_id} is not reassigned")


class NotReplica(InvalidError):
    """A broker outside of a partition's placement cannot lead it."""

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
    """The database is another one, or an older copy: it lacks changes that it confirmed."""

    code: ClassVar[str] = "kafka_storage_error"


class StaleRecord(FencedError):
    """Another coordinator saved the record in the meantime."""

    code: ClassVar[str] = "not_coordinator"

    def __init__(self, kind: str, key: str, expected: int, found: int) -> None:
        super().__init__(f"{kind} {key!r} is at version {found}, the save expected {expected}")
        self.key = key


class NotInTransaction(InvalidError):
    code: ClassVar[str] = "invalid_txn_state"

    def __init__(self, transactional_id: str, group_id: str) -> None:
        super().__init__(
            f"the offsets of group {group_id!r} are not part of the producer's transaction"
            f" {transactional_id!r}: it has ended, or never included them"
        )


class StaleProducerEpoch(FencedError):
    """A newer epoch of the producer has begun a transaction."""

    code: ClassVar[str] = "invalid_producer_epoch"

    def __init__(self, transactional_id: str, epoch: int, found: int) -> None:
        super().__init__(
            f"the producer of {transactional_id!r} has epoch {found}, its request is of {epoch}"
        )


class StaleSink(FencedError):
    """Another writer saved the query's commit, or the record cannot follow the saved one."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, query_id: str, reason: str) -> None:
        super().__init__(f"the commit of query {query_id!r} {reason}")
        self.query_id = query_id


class StaleBroker(FencedError):
    """A newer incarnation of this broker is registered, or none is."""

    code: ClassVar[str] = "stale_broker_epoch"

    def __init__(self, broker_id: int, *, registered: bool = True) -> None:
        reason = "was registered by a newer incarnation" if registered else "is not registered"
        super().__init__(f"broker {broker_id} {reason}")
        self.broker_id = broker_id
        self.registered = registered


class UnknownBroker(InvalidError):
    code: ClassVar[str] = "broker_id_not_registered"


class BrokerInUse(InvalidError):
    """A broker cannot be removed, because it runs or holds replicas."""

    code: ClassVar[str] = "policy_violation"


class StaleClusterEpoch(FencedError):
    """Brokers were added or removed: another broker may coordinate the group now."""

    code: ClassVar[str] = "not_coordinator"

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the cluster epoch is {found}, the change expected {expected}")
        self.expected = expected
        self.found = found


class ControlUnavailable(UnavailableError):
    """The metadata database cannot be used now; the message gives its reason."""

    code: ClassVar[str] = "coordinator_not_available"


class DatabaseFull(ControlUnavailable):
    """The disk is full; the change was not made, and may be retried."""


class DatabaseLocked(ControlUnavailable):
    pass


class DatabaseRefused(ControlUnavailable):
    """The database rejects this broker until an administrator acts."""


class DatabaseDamaged(ControlUnavailable):
    """The file is no database, or its pages are damaged."""


class DatabaseSlow(ControlUnavailable):
    """A statement exceeded its time limit; it may be retried at once."""


class DatabaseStopped(ControlUnavailable):
    """A read, write or sync failed; nothing is retried before a restart."""


class ControlBusy(UnavailableError):
    code: ClassVar[str] = "coordinator_load_in_progress"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} operations wait for the metadata database, which is the limit")
        self.limit = limit


class UnstorableText(InvalidError):
    """A text holds a character that the database cannot store, such as NUL."""

    code: ClassVar[str] = "invalid_request"


class IncompatibleDatabase(InvalidError):
    """The database was written by a newer Penstock, or by another program."""

    code: ClassVar[str] = "unsupported_version"


class ObjectLeaseLost(FencedError):
    """The sweeper marked an object before its commit; write it again under a new key."""

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, object_id: int) -> None:
        super().__init__(f"object {object_id} is marked for deletion, or gone: its lease is lost")
        self.object_id = object_id


class CommitForgotten(FencedError):
    """An object was committed so long ago that its answer has expired."""

    code: ClassVar[str] = "request_timed_out"

    def __init__(self, object_id: int) -> None:
        super().__init__(
            f"object {object_id} was committed more than {COMMIT_ANSWER_KEPT_MS} ms ago:"
            f" its first answer is forgotten"
        )
        self.object_id = object_id


class InvalidCommit(InvalidError):
    """An object's entries contradict each other, or its size."""

    code: ClassVar[str] = "invalid_request"


class EntryRefused(InvalidError):
    """An atomic commit has an entry that cannot be placed."""

    code: ClassVar[str] = "unknown_topic_or_partition"

    def __init__(self, object_id: int, error: str, message: str) -> None:
        super().__init__(f"object {object_id} was refused: {message} ({error})")
        self.object_id = object_id
        self.error = error


class StaleExtents(FencedError):
    """Extents to be replaced have changed or are gone."""

    code: ClassVar[str] = "invalid_update_version"


class StaleTiers(FencedError):
    """A segment does not follow the partition's segments in the archive."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, topic_id: UUID, partition: int, reason: str) -> None:
        super().__init__(f"partition {partition} of topic {topic_id}: {reason}")


class NotTiered(InvalidError):
    code: ClassVar[str] = "invalid_config"


class OffsetBeyondEnd(InvalidError):
    """DeleteRecords names an offset outside of the partition."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic_id: UUID, partition: int, offset: int, high_watermark: int) -> None:
        super().__init__(
            f"partition {partition} of topic {topic_id}: offset {offset} is not within"
            f" -1 and the high watermark {high_watermark}"
        )
        self.offset = offset


class NotWritable(RetriableError):
    """The control plane does not assign the partition's offsets, or it is fenced."""

    code: ClassVar[str] = "not_leader_or_follower"


class StaleMigration(FencedError):
    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, topic_id: UUID) -> None:
        super().__init__(f"the attempt to move the records of topic {topic_id} is over")
        self.topic_id = topic_id


class MigrationRefused(InvalidError):
    """A topic cannot become diskless, or replicated again; the message says why."""

    code: ClassVar[str] = "invalid_config"
