"""The one mapping from errors to Kafka's error codes, and errors of the broker's own.

Every `PenstockError` carries the name of its Kafka error in `code`; what is not a
`PenstockError` is a fault of ours and reads UNKNOWN_SERVER_ERROR to the client, while the log
has the traceback.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import (
    FencedError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)
from penstock.wire.kafka.schema import error_codes

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0


class UnknownTopicOrPartition(RetriableError):
    """A topic or partition that this cluster does not have."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class InternalTopic(InvalidError):
    """What brokers write for themselves is changed by nobody else (Kafka's `Topic.isInternal`)."""

    code: ClassVar[str] = "invalid_topic_exception"

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} is internal: only brokers write and delete its records")


class UnknownTopicId(RetriableError):
    """A topic id that this cluster does not have."""

    code: ClassVar[str] = "unknown_topic_id"


class NotLeader(FencedError):
    """Another broker leads this partition; `leader` says which, in which epoch, if it is known."""

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, message: str, *, leader: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class FencedLeaderEpoch(FencedError):
    """The client's leader epoch is older than the partition's."""

    code: ClassVar[str] = "fenced_leader_epoch"


class UnknownLeaderEpoch(RetriableError):
    """The client's leader epoch is newer than the partition's."""

    code: ClassVar[str] = "unknown_leader_epoch"


class ElectionNotNeeded(InvalidError):
    """The partition has the leader that an election would give it."""

    code: ClassVar[str] = "election_not_needed"


class PreferredLeaderNotAvailable(RetriableError):
    """The first replica is not in sync, or cannot be reached."""

    code: ClassVar[str] = "preferred_leader_not_available"


class EligibleLeadersNotAvailable(RetriableError):
    """No replica may lead the partition without losing what is acknowledged."""

    code: ClassVar[str] = "eligible_leaders_not_available"


class NoObjectStore(UnavailableError):
    """A diskless topic on a broker without an object store."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidRequiredAcks(InvalidError):
    """`acks` is none of 0, 1 and -1."""

    code: ClassVar[str] = "invalid_required_acks"


class InvalidGroupId(InvalidError):
    """A group without a name, or a member without one."""

    code: ClassVar[str] = "invalid_group_id"


class ShuttingDown(RetriableError):
    """The broker is stopping; another one, or this one after its restart, will serve."""

    code: ClassVar[str] = "coordinator_not_available"


def error_number(name: str) -> int:
    """Kafka's number of an error by its lower-case name, as in `PenstockError.code`."""
    codes = error_codes()
    try:
        return int(codes[name])
    except KeyError:
        return UNKNOWN_SERVER_ERROR


def error_name(number: int) -> str:
    """Kafka's upper-case name of an error number."""
    try:
        return str(error_codes()(number).name).upper()
    except ValueError:
        return f"ERROR_{number}"


def error_of(error: BaseException) -> tuple[int, str]:
    """The error code and the message that a client gets for an exception."""
    if isinstance(error, PenstockError):
        return error_number(error.code), str(error)
    return UNKNOWN_SERVER_ERROR, "the broker failed on this request; its log has the cause"
