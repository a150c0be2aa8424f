"""Mapping of errors to Kafka's error codes (`PenstockError.code`), and the broker's errors."""

from __future__ import annotations

from typing import Any, ClassVar, Final

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
    code: ClassVar[str] = "unknown_topic_or_partition"


class InternalTopic(InvalidError):
    """Request of a client to change a topic that only brokers write (Kafka's `isInternal`)."""

    code: ClassVar[str] = "invalid_topic_exception"

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} is internal: only brokers write and delete its records")


class UnknownTopicId(RetriableError):
    code: ClassVar[str] = "unknown_topic_id"


class NotLeader(FencedError):
    """Request to a broker that does not lead the partition.

    `leader` is the id of the leader and its leader epoch, if known.
    """

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, message: str, *, leader: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class FencedLeaderEpoch(FencedError):
    code: ClassVar[str] = "fenced_leader_epoch"


class UnknownLeaderEpoch(RetriableError):
    code: ClassVar[str] = "unknown_leader_epoch"


class ElectionNotNeeded(InvalidError):
    """Election of a replica that already leads the partition."""

    code: ClassVar[str] = "election_not_needed"


class PreferredLeaderNotAvailable(RetriableError):
    """Election of a preferred leader that is not in sync or not reachable."""

    code: ClassVar[str] = "preferred_leader_not_available"


class EligibleLeadersNotAvailable(RetriableError):
    """Election in a partition without a replica that could lead it."""

    code: ClassVar[str] = "eligible_leaders_not_available"


class NoObjectStore(UnavailableError):
    code: ClassVar[str] = "kafka_storage_error"


class InvalidRequiredAcks(InvalidError):
    code: ClassVar[str] = "invalid_required_acks"


class InvalidGroupId(InvalidError):
    """Request with an empty group id or member id."""

    code: ClassVar[str] = "invalid_group_id"


class ShuttingDown(RetriableError):
    """Request that a stopping broker rejects; the client must retry on another broker."""

    code: ClassVar[str] = "coordinator_not_available"


def error_number(name: str) -> int:
    """Return Kafka's number of an error, by its lower-case name as in `PenstockError.code`.

    The number of an unknown name is `UNKNOWN_SERVER_ERROR`.
    """
    codes = error_codes()
    try:
        return int(codes[name])
    except KeyError:
        return UNKNOWN_SERVER_ERROR


def error_name(number: int) -> str:
    try:
        return str(error_codes()(number).name).upper()
    except ValueError:
        return f"ERROR_{number}"


def error_of(error: BaseException) -> tuple[int, str]:
    """Return the error number and message that a client gets for an exception."""
    if isinstance(error, PenstockError):
        return error_number(error.code), str(error)
    return UNKNOWN_SERVER_ERROR, "the broker failed to handle this request; its log has the cause"


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return the response fields `error_code` and `error_message` for an exception."""
    number, message = error_of(error)
    return {"error_code": number, "error_message": message}
