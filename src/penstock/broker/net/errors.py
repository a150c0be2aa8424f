"""Mapping of errors to Kafka's error codes (`PenstockError.code`), and the broker's errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final

from penstock.base.errors import (
    BugError,
    FencedError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)
from penstock.wire.kafka.apis import Api
from penstock.wire.kafka.schema import MISSING, Field, Struct, error_codes, load_struct

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


class NotEnoughReplicas(RetriableError):
    """Append that cannot be checked now; producers retry it."""

    code: ClassVar[str] = "not_enough_replicas"


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


# Error responses of all APIs, built from the response schemas.
#
# A response struct with an `error_code` gets the error and empty arrays. In a struct without one,
# the arrays whose elements have error codes are filled. Such an array gets an element with the
# error for each element of the corresponding request array. Fields with the same name are copied
# from there.
#
# Source: the `getErrorResponse` methods of Kafka's `org.apache.kafka.common.requests`.


_NUMBERS: Final = frozenset({"int32", "int64"})
_EVERYWHERE: Final = ("ElectLeaders",)
"""APIs whose response elements get the error in addition to the top level, because Kafka's clients
ignore the top-level error."""
_USERS: Final = {"deletions", "upsertions"}
_CODES: Final = ("error_code", "partition_error_code")
_TEXT_NAMES: Final = ("name", "key", "topic", "group_id", "transactional_id")
"""Response fields that receive a request element if the element is a string."""
_PARTITION_NAMES: Final = ("partition_index", "partition", "index", "partition_id")
_NAMES_OF: Final = {**dict.fromkeys(_PARTITION_NAMES, _PARTITION_NAMES), "user": ("name",)}
"""Names of the corresponding request fields, by response field, if the names differ."""
_ZERO: Final[dict[str, Any]] = {"string": "", "bytes": b"", "records": b"", "uuid": None}


def error_answer(api: Api, version: int, request: Any, number: int, message: str) -> dict[str, Any]:
    """Return the response to a failed request. `request` is None if it could not be decoded."""
    schema = load_struct(api.name, version, "response")
    return _fill(schema, request, number, message, everywhere=api.name in _EVERYWHERE)


def element_answers(
    api: Api, version: int, elements: Sequence[Any], number: int, message: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return response elements with an error, for request elements that are rejected.

    The result is the name of the array in the response, and the array's elements with the error.
    """
    schema = load_struct(api.name, version, "response")
    for field in schema.fields:
        if field.array and field.struct is not None and _carries_error(field.struct):
            return field.name, [
                _fill(field.struct, element, number, message) for element in elements
            ]
    raise BugError(f"the response of {api.name} version {version} has no array with error codes")


def _fill(
    schema: Struct, source: Any, number: int, message: str, *, everywhere: bool = False
) -> dict[str, Any]:
    has_code = not everywhere and any(field.name in _CODES for field in schema.fields)
    answer: dict[str, Any] = {}
    for field in schema.fields:
        if field.name in _CODES:
            answer[field.name] = number
        elif field.name == "error_message":
            answer[field.name] = message
        elif field.array:
            answer[field.name] = (
                () if has_code else _elements(field, source, number=number, message=message)
            )
        else:
            answer[field.name] = _value(field, source)
    return answer


def _elements(field: Field, source: Any, *, number: int, message: str) -> list[dict[str, Any]]:
    if field.struct is None or not _carries_error(field.struct) or source is None:
        return []
    return [_fill(field.struct, item, number, message) for item in _counterpart(field, source)]


def _counterpart(field: Field, source: Any) -> Any:
    slots = getattr(type(source), "__slots__", ())
    if {*slots} >= _USERS:
        return tuple([user for name in slots if name in _USERS for user in getattr(source, name)])
    if field.name in slots and isinstance(getattr(source, field.name), tuple):
        return getattr(source, field.name)
    for name in slots:
        value = getattr(source, name)
        if isinstance(value, tuple) and value:
            return value
    return ()


@cache
def _carries_error(schema: Struct) -> bool:
    return any(
        field.name in _CODES
        or (field.array and field.struct is not None and _carries_error(field.struct))
        for field in schema.fields
    )


def _value(field: Field, source: Any) -> Any:
    if source is None:
        return _default(field)
    if isinstance(source, str):
        return source if field.name in _TEXT_NAMES else _default(field)
    if isinstance(source, int):
        return source if field.name in _PARTITION_NAMES else _default(field)
    for name in _NAMES_OF.get(field.name, (field.name,)):
        if hasattr(source, name):
            value = getattr(source, name)
            return _default(field) if value is None and not field.nullable else value
    return _default(field)


def _default(field: Field) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.nullable:
        return None
    if field.struct is not None:
        return {item.name: _default(item) for item in field.struct.fields}
    return -1 if field.kind in _NUMBERS else _ZERO.get(field.kind, 0)


class BadRequest(InvalidError):
    code: ClassVar[str] = "invalid_request"


class InvalidPartitions(InvalidError):
    code: ClassVar[str] = "invalid_partitions"


class InvalidReplicationFactor(InvalidError):
    code: ClassVar[str] = "invalid_replication_factor"


class InvalidReplicaAssignment(InvalidError):
    code: ClassVar[str] = "invalid_replica_assignment"


class InvalidConfig(InvalidError):
    code: ClassVar[str] = "invalid_config"


class PolicyViolation(InvalidError):
    """Request that exceeds a limit of this cluster."""

    code: ClassVar[str] = "policy_violation"


class TopicNameCollision(InvalidError):
    """Topic name that differs from an existing one in '.' and '_' only."""

    code: ClassVar[str] = "invalid_topic_exception"


class TopicDeletionDisabled(InvalidError):
    """Request to delete a topic while `delete.topic.enable` is false."""

    code: ClassVar[str] = "topic_deletion_disabled"
