"""What the control plane refuses, and why."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS


class TopicExists(InvalidError):
    """A topic of this name is there already."""

    code: ClassVar[str] = "topic_already_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} already exists")
        self.name = name


class UnknownTopic(InvalidError):
    """No topic has this id; it may have been deleted in the meantime."""

    code: ClassVar[str] = "unknown_topic_id"

    def __init__(self, topic_id: UUID) -> None:
        super().__init__(f"there is no topic of id {topic_id}")
        self.topic_id = topic_id


class TopicIdTaken(InvalidError):
    """Another topic has this id."""

    code: ClassVar[str] = "topic_already_exists"

    def __init__(self, topic_id: UUID, name: str) -> None:
        super().__init__(f"topic {name!r} has the id {topic_id} already")
        self.topic_id = topic_id


class InvalidPartitions(InvalidError):
    """A topic cannot have, or get, this number of partitions."""

    code: ClassVar[str] = "invalid_partitions"


class InvalidReplicas(InvalidError):
    """A partition's replicas are none, repeat a broker, or name a negative one."""

    code: ClassVar[str] = "invalid_replica_assignment"


class TooLarge(InvalidError):
    """One call carries more than the control plane takes."""

    code: ClassVar[str] = "invalid_request"


class StaleTopic(FencedError):
    """The topic changed between the caller's reading and its writing."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, name: str, what: str, expected: object, found: object) -> None:
        super().__init__(f"topic {name!r}: {what} is {found!r}, the change expected {expected!r}")
        self.name = name


class StaleConfigs(FencedError):
    """Configs changed between the caller's reading and its writing."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, name: str, kind: str = "broker") -> None:
        super().__init__(f"the configs of {kind} {name or '(default)'} changed in the meantime")
        self.name = name


class InvalidQuorum(InvalidError):
    """So many replicas cannot be asked to have a record, of those that there are."""

    code: ClassVar[str] = "invalid_config"


class NotReplicated(InvalidError):
    """There is no such partition with several replicas."""

    code: ClassVar[str] = "unknown_topic_or_partition"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(f"partition {partition} of topic {topic_id} is none with replicas")


class NotReassigned(InvalidError):
    """No other replicas are ordered for a partition."""

    code: ClassVar[str] = "no_reassignment_in_progress"

    def __init__(self, topic_id: UUID, partition: int) -> None:
        super().__init__(f"partition {partition} of topic {topic_id} is not reassigned")


class NotReplica(InvalidError):
    """Only brokers of a partition's placement lead it."""

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
    """The database does not know what it has said: it is another one, or an older copy."""

    code: ClassVar[str] = "kafka_storage_error"


class StaleRecord(FencedError):
    """A coordinator's record was saved by someone else in the meantime."""

    code: ClassVar[str] = "not_coordinator"

    def __init__(self, kind: str, key: str, expected: int, found: int) -> None:
        super().__init__(f"{kind} {key!r} is at version {found}, the save expected {expected}")
        self.key = key


class NotInTransaction(InvalidError):
    """The offsets of a group are not part of the producer's transaction."""

    code: ClassVar[str] = "invalid_txn_state"

    def __init__(self, transactional_id: str, group_id: str) -> None:
        super().__init__(
            f"the offsets of group {group_id!r} are not part of the producer's transaction"
            f" {transactional_id!r}: it has ended, or was never told of them"
        )


class StaleProducerEpoch(FencedError):
    """A newer epoch of the producer has begun a transaction."""

    code: ClassVar[str] = "invalid_producer_epoch"

    def __init__(self, transactional_id: str, epoch: int, found: int) -> None:
        super().__init__(
            f"the producer of {transactional_id!r} has epoch {found}, its request is of {epoch}"
        )


class StaleSink(FencedError):
    """A query's commit was saved by someone else in the meantime, or cannot follow on this one."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, query_id: str, reason: str) -> None:
        super().__init__(f"the commit of query {query_id!r} {reason}")
        self.query_id = query_id


class StaleBroker(FencedError):
    """A newer incarnation of this broker has registered, or it is not registered any more."""

    code: ClassVar[str] = "stale_broker_epoch"

    def __init__(self, broker_id: int, *, registered: bool = True) -> None:
        reason = "was registered by a newer incarnation" if registered else "is not registered"
        super().__init__(f"broker {broker_id} {reason}")
        self.broker_id = broker_id
        self.registered = registered


class UnknownBroker(InvalidError):
    """No broker of this id was ever registered."""

    code: ClassVar[str] = "broker_id_not_registered"


class BrokerInUse(InvalidError):
    """A broker that is to be removed, and lives or holds replicas."""

    code: ClassVar[str] = "policy_violation"


class StaleClusterEpoch(FencedError):
    """Brokers have come or gone since the caller looked: another one may own the group now."""

    code: ClassVar[str] = "not_coordinator"

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the cluster epoch is {found}, the change expected {expected}")
        self.expected = expected
        self.found = found


class ControlUnavailable(UnavailableError):
    """The metadata database cannot be used now; the message gives its reason."""

    code: ClassVar[str] = "coordinator_not_available"


class DatabaseFull(ControlUnavailable):
    """The disk is full; the change was not made, and works once there is room."""


class DatabaseLocked(ControlUnavailable):
    """Another process holds the database."""


class DatabaseRefused(ControlUnavailable):
    """The database refuses this broker until an administrator changes something there."""


class DatabaseDamaged(ControlUnavailable):
    """The file is no database, or its pages are damaged."""


class DatabaseSlow(ControlUnavailable):
    """The database did not finish a statement in the time allowed; it may work again at once."""


class DatabaseStopped(ControlUnavailable):
    """Reading, writing or syncing failed: nothing is tried again before a restart."""


class ControlBusy(UnavailableError):
    """More operations wait for the metadata database than the limit allows."""

    code: ClassVar[str] = "coordinator_load_in_progress"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} operations wait for the metadata database, which is the limit")
        self.limit = limit


class UnstorableText(InvalidError):
    """A text holds what the database cannot store, such as a zero byte."""

    code: ClassVar[str] = "invalid_request"


class IncompatibleDatabase(InvalidError):
    """The database was written by a newer Penstock, or is not one of ours."""

    code: ClassVar[str] = "unsupported_version"


class ObjectLeaseLost(FencedError):
    """The sweeper marked an object before it was committed; its bytes go under a new key."""

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, object_id: int) -> None:
        super().__init__(f"object {object_id} is marked for deletion, or gone: its lease is lost")
        self.object_id = object_id


class CommitForgotten(FencedError):
    """An object was committed so long ago that the answer is not kept any more."""

    code: ClassVar[str] = "request_timed_out"

    def __init__(self, object_id: int) -> None:
        super().__init__(
            f"object {object_id} was committed more than {COMMIT_ANSWER_KEPT_MS} ms ago:"
            f" its first answer is forgotten"
        )
        self.object_id = object_id


class InvalidCommit(InvalidError):
    """An object whose entries contradict each other, or its size."""

    code: ClassVar[str] = "invalid_request"


class EntryRefused(InvalidError):
    """A commit that is made as a whole has an entry that cannot be placed."""

    code: ClassVar[str] = "unknown_topic_or_partition"

    def __init__(self, object_id: int, error: str, message: str) -> None:
        super().__init__(f"object {object_id} was refused: {message} ({error})")
        self.object_id = object_id
        self.error = error


class StaleExtents(FencedError):
    """Extents that were to be replaced have changed or are gone."""

    code: ClassVar[str] = "invalid_update_version"


class StaleTiers(FencedError):
    """A segment does not follow on what of its partition lies in the archive."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, topic_id: UUID, partition: int, reason: str) -> None:
        super().__init__(f"partition {partition} of topic {topic_id}: {reason}")


class NotTiered(InvalidError):
    """The topic is to have nothing in the archive."""

    code: ClassVar[str] = "invalid_config"


class OffsetBeyondEnd(InvalidError):
    """Records are to be deleted up to an offset that a partition does not have."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic_id: UUID, partition: int, offset: int, high_watermark: int) -> None:
        super().__init__(
            f"partition {partition} of topic {topic_id}: offset {offset} is not within"
            f" -1 and the high watermark {high_watermark}"
        )
        self.offset = offset


class NotWritable(RetriableError):
    """The control plane does not decide of a partition's ends: they are its brokers', or rest."""

    code: ClassVar[str] = "not_leader_or_follower"


class StaleMigration(FencedError):
    """The attempt to move a topic's records is over: by its end, or because somebody gave it up."""

    code: ClassVar[str] = "invalid_update_version"

    def __init__(self, topic_id: UUID) -> None:
        super().__init__(f"the attempt to move the records of topic {topic_id} is over")
        self.topic_id = topic_id


class MigrationRefused(InvalidError):
    """A topic cannot become diskless, or get replicas again; the message says why."""

    code: ClassVar[str] = "invalid_config"
