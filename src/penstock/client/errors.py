"""Errors of the client: one class per action that a caller can take.

The six kinds of `penstock.base.errors` state what the caller should do. `code` holds the broker's
error name. `broker_error` converts a response's error code to an error of the right kind. Its
message has the subject of the call, Kafka's name and number of the error, and the broker's own
message.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import (
    BugError,
    CorruptError,
    FencedError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)
from penstock.base.retry import Backoff, RetryPolicy
from penstock.records import BatchHeader
from penstock.wire.kafka.schema import error_codes

_FENCED: Final = frozenset(
    {
        "invalid_producer_epoch",
        "producer_fenced",
        "fenced_instance_id",
        "fenced_leader_epoch",
        "invalid_producer_id_mapping",
        "unknown_producer_id",
        "out_of_order_sequence_number",
        "illegal_generation",
        "unknown_member_id",
    }
)
_UNAVAILABLE: Final = frozenset({"broker_not_available", "kafka_storage_error"})
_RETRIABLE: Final = frozenset({"kafka_storage_error", "broker_not_available"})
_ATTEMPTS: Final = "failed after"


class BrokerRefused(InvalidError):
    """The broker rejected the call, which can never succeed with these arguments."""


class BrokerBusy(RetriableError):
    """The broker cannot serve the call now, and retries were exhausted."""


class BrokerFenced(FencedError):
    """A newer owner exists for the subject of the call, such as a transactional id."""


class BrokerFailed(UnavailableError):
    """The broker cannot serve the call, because its storage or another component has failed."""


class BrokerFoundCorruption(CorruptError):
    """The broker found corrupt bytes in the request or in its storage."""


class BrokerBug(BugError):
    """The broker reported an unexpected error in its own code."""


class UnknownBroker(BrokerRefused):
    code: ClassVar[str] = "broker_id_not_registered"


class UnknownTopic(BrokerRefused):
    code: ClassVar[str] = "unknown_topic_or_partition"


class TopicExists(BrokerRefused):
    code: ClassVar[str] = "topic_already_exists"


class OffsetOutOfRange(BrokerRefused):
    """The fetch offset is outside the partition's log."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, message: str, *, partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class LogTruncated(OffsetOutOfRange):
    """A leader election discarded records that were already read.

    `read` is the position after the last record read. `left` is the end of the records that the
    leader still has. Both are pairs of leader epoch and offset.
    """

    def __init__(
        self, topic: str, partition: int, *, read: tuple[int, int], left: tuple[int, int]
    ) -> None:
        self.topic, self.read, self.left = topic, read, left
        super().__init__(
            f"{topic}-{partition} was read up to offset {read[1]} of leader epoch"
            f" {read[0]}, but its leader has these records only up to offset {left[1]} of"
            f" epoch {left[0]}; a leader election discarded the later ones",
            partition=partition,
            offset=left[1],
        )


class MessageTooLarge(BrokerRefused):
    """A batch exceeds the topic's max.message.bytes."""

    code: ClassVar[str] = "message_too_large"


class UnsupportedByBroker(BrokerRefused):
    """The broker does not support a version of the call that this client can use."""

    code: ClassVar[str] = "unsupported_version"


class Disconnected(RetriableError):
    code: ClassVar[str] = "network_exception"


class ConnectionRefused(Disconnected):
    """The address refused the connection, because no process listens there."""


class EncryptionExpected(InvalidError):
    """The listener requires TLS, but the client connected without it."""

    code: ClassVar[str] = "network_exception"


class TimedOut(RetriableError):
    """No response arrived within the time limit; it is unknown whether the call took effect."""

    code: ClassVar[str] = "request_timed_out"


class NotAccepted(TimedOut):
    """The address did not accept the connection within the time limit."""


class BrokersUnreachable(UnavailableError):
    code: ClassVar[str] = "broker_not_available"


class AdminUnavailable(UnavailableError):
    """The admin address did not respond within the time limit, or not like a Penstock broker."""

    code: ClassVar[str] = "broker_not_available"


class NotHttp(InvalidError):
    """The server at the admin address does not use HTTP."""

    code: ClassVar[str] = "unsupported_version"


class MalformedResponse(CorruptError):
    """The response does not follow its schema, or belongs to another call."""

    code: ClassVar[str] = "unknown_server_error"


class UnreadableBatch(CorruptError):
    """No consumer can read a stored batch; continue after its `last_offset`."""

    code: ClassVar[str] = "corrupt_message"

    def __init__(
        self, topic: str, partition: int, header: BatchHeader, reason: PenstockError
    ) -> None:
        self.topic, self.partition = topic, partition
        self.base_offset, self.last_offset = header.base_offset, header.last_offset
        following = header.next_offset
        super().__init__(
            f"{topic}-{partition}: the batch with offsets {header.base_offset} to"
            f" {header.last_offset} cannot be read: {reason}. To skip it, run `penstock"
            f" consume {topic} -p {partition} -o {following}`, or for a group `penstock"
            f" group seek GROUP -t {topic} -p {partition} --to {following} --execute`"
        )


class ClientClosed(FencedError):
    code: ClassVar[str] = "network_exception"


class InvalidArgument(InvalidError):
    """An argument is invalid, so the call can never succeed with it."""

    code: ClassVar[str] = "invalid_request"


def note_attempts(error: PenstockError, attempts: int) -> None:
    """Add the number of attempts to an error as a note, if it is above 1 and not noted yet."""
    if attempts > 1 and not any(_ATTEMPTS in note for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_ATTEMPTS} {attempts} attempts")


_OWN: Final[dict[str, type[PenstockError]]] = {
    "unknown_topic_or_partition": UnknownTopic,
    "unknown_topic_id": UnknownTopic,
    "topic_already_exists": TopicExists,
    "offset_out_of_range": OffsetOutOfRange,
    "message_too_large": MessageTooLarge,
    "record_list_too_large": MessageTooLarge,
    "unsupported_version": UnsupportedByBroker,
    "corrupt_message": BrokerFoundCorruption,
    "unknown_server_error": BrokerBug,
}


def code_name(code: int) -> str:
    """Return Kafka's name of an error number in lower case, or `error_N` for an unknown number."""
    try:
        name: str = error_codes()(code).name
    except ValueError:
        return f"error_{code}"
    return name


def is_retriable(code: int) -> bool:
    """Whether the same call may succeed after a pause and a metadata refresh."""
    codes = error_codes()
    try:
        error = codes(code)
    except ValueError:
        return False
    return bool(error.retriable) or error.name in _RETRIABLE


def broker_error(code: int, subject: str, message: str | None = None) -> PenstockError:
    """Return the error for an error code of a response.

    `subject` names what the call was about (topic, partition, value). `message` is the broker's
    own.
    """
    name = code_name(code)
    text = f"{subject}: {name.upper()} ({int(code)})"
    if message:
        text += f": {message}"
    kind = _OWN.get(name) or _kind(name, code)
    error = kind(text)
    if kind.code != name:
        error.code = name  # type: ignore[misc]  # more precise than the class
    return error


def _kind(name: str, code: int) -> type[PenstockError]:
    if name in _FENCED:
        return BrokerFenced
    if name in _UNAVAILABLE:
        return BrokerFailed
    return BrokerBusy if is_retriable(code) else BrokerRefused


# Limits of the client.
#
# Each wait, retry and buffer of this package has one of these limits. Limits that a caller may want
# to change are parameters of `Client`, with these as defaults.


REQUEST_TIMEOUT_MS: Final = 30_000
"""Maximum time in milliseconds for one response."""
DELIVERY_TIMEOUT_MS: Final = 120_000
"""Maximum time in milliseconds from the first attempt of a call or batch to its failure."""
ATTEMPTS_MAX: Final = 300
"""Maximum number of attempts of one call or batch within its delivery timeout."""
BACKOFF_FIRST_MS: Final = 20
"""Maximum pause before the first retry in milliseconds; it doubles up to `BACKOFF_MAX_MS`."""
BACKOFF_MAX_MS: Final = 1_000
RETRY: Final = RetryPolicy(
    backoff=Backoff(first_ms=BACKOFF_FIRST_MS, ceiling_ms=BACKOFF_MAX_MS),
    attempts_max=ATTEMPTS_MAX,
    timeout_ms=DELIVERY_TIMEOUT_MS,
)

IN_FLIGHT_MAX: Final = 5
"""Maximum number of unanswered produce requests per broker.

Kafka remembers five batches per idempotent producer.
"""
BATCH_BYTES: Final = 1_000_000
"""Size at which a record batch is closed, below the broker's default limit of 1,048,588 bytes."""
PRODUCE_REQUEST_BYTES: Final = 8 << 20
"""Maximum bytes of records in one produce request with batches of several partitions."""
CHUNK_ROWS_MAX: Final = 1 << 20
"""Maximum number of rows that are encoded at a time."""

FETCH_BYTES: Final = 8 << 20
"""Maximum bytes of a response that a fetch requests."""
FETCH_PARTITION_BYTES: Final = 8 << 20
"""Maximum bytes of one partition in a fetch response."""
FETCH_WAIT_MS: Final = 500
"""Maximum time in milliseconds that a broker may wait for records before it responds to a fetch."""
RESPONSE_BYTES_MAX: Final = 256 << 20
"""Size above which a response is rejected before memory is allocated."""

ADMIN_ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum bytes that are read of a response of the admin HTTP interface."""
ADMIN_ATTEMPTS_MAX: Final = 1_000
"""Maximum number of attempts of one admin HTTP call within its timeout."""
