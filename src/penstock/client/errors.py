"""Errors of the client: one class per required action, with the broker's error name in `code`.

The six kinds of `penstock.base.errors` say what the caller should do. `broker_error` turns an
error code of a response into an error of the right kind; its message names the subject of the
call, Kafka's name of the error, its number and the broker's own message.
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
    """The broker rejected the call, which can never succeed in this form."""


class BrokerBusy(RetriableError):
    """The broker could not serve the call now; all allowed attempts were made."""


class BrokerFenced(FencedError):
    """A newer owner exists for the subject of the call."""


class BrokerFailed(UnavailableError):
    """The broker cannot serve the call: its storage or another part has failed."""


class BrokerFoundCorruption(CorruptError):
    """The broker found corrupt bytes in the request or in its storage."""


class BrokerBug(BugError):
    """The broker reported an unexpected error of its own."""


class UnknownBroker(BrokerRefused):
    code: ClassVar[str] = "broker_id_not_registered"


class UnknownTopic(BrokerRefused):
    code: ClassVar[str] = "unknown_topic_or_partition"


class TopicExists(BrokerRefused):
    code: ClassVar[str] = "topic_already_exists"


class OffsetOutOfRange(BrokerRefused):
    """A fetch from an offset outside the partition's log."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, message: str, *, partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class LogTruncated(OffsetOutOfRange):
    """Records that were read are not in the leader's log: a leader election discarded them.

    `read` is the position after the last record read, `left` the end of the records that the leader
    still has, each as (epoch, offset).
    """

    def __init__(
        self, topic: str, partition: int, *, read: tuple[int, int], left: tuple[int, int]
    ) -> None:
        self.topic, self.read, self.left = topic, read, left
        super().__init__(
            f"{topic}-{partition} was read up to offset {read[1]} of leader epoch {read[0]}; its"
            f" leader has the same records up to offset {left[1]} of epoch {left[0]} only: the"
            " later ones were discarded by a leader election",
            partition=partition,
            offset=left[1],
        )


class MessageTooLarge(BrokerRefused):
    """A batch above the topic's max.message.bytes."""

    code: ClassVar[str] = "message_too_large"


class UnsupportedByBroker(BrokerRefused):
    """The broker does not support the version of a call that this client needs."""

    code: ClassVar[str] = "unsupported_version"


class Disconnected(RetriableError):
    code: ClassVar[str] = "network_exception"


class ConnectionRefused(Disconnected):
    """A refused connection: no process listens at the address."""


class EncryptionExpected(InvalidError):
    """A connection without TLS to a listener that requires TLS."""

    code: ClassVar[str] = "network_exception"


class TimedOut(RetriableError):
    """No response within the time limit; whether the call took effect is unknown."""

    code: ClassVar[str] = "request_timed_out"


class NotAccepted(TimedOut):
    """A connection that was not accepted within the time limit."""


class BrokersUnreachable(UnavailableError):
    code: ClassVar[str] = "broker_not_available"


class AdminUnavailable(UnavailableError):
    """The admin address did not answer within the time limit, or not as Penstock does."""

    code: ClassVar[str] = "broker_not_available"


class NotHttp(InvalidError):
    """The peer at the admin address does not speak HTTP."""

    code: ClassVar[str] = "unsupported_version"


class MalformedResponse(CorruptError):
    """A response that does not follow its schema, or belongs to another call."""

    code: ClassVar[str] = "unknown_server_error"


class UnreadableBatch(CorruptError):
    """A stored batch that no consumer can read; continue after its `last_offset`."""

    code: ClassVar[str] = "corrupt_message"

    def __init__(
        self, topic: str, partition: int, header: BatchHeader, reason: PenstockError
    ) -> None:
        self.topic, self.partition = topic, partition
        self.base_offset, self.last_offset = header.base_offset, header.last_offset
        following = header.next_offset
        super().__init__(
            f"{topic}-{partition}: the batch at offsets {header.base_offset} to"
            f" {header.last_offset} cannot be read: {reason}; to skip it:"
            f" `penstock consume {topic} -p {partition} -o {following}`, or for a group"
            f" `penstock group seek GROUP -t {topic} -p {partition} --to {following} --execute`"
        )


class ClientClosed(FencedError):
    code: ClassVar[str] = "network_exception"


class InvalidArgument(InvalidError):
    """An invalid argument; the call can never succeed with it."""

    code: ClassVar[str] = "invalid_request"


def note_attempts(error: PenstockError, attempts: int) -> None:
    """Add the number of attempts to an error, if there were several and no call has added it."""
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
    """Return Kafka's name of an error number in lower case; `error_N` for an unknown number."""
    try:
        name: str = error_codes()(code).name
    except ValueError:
        return f"error_{code}"
    return name


def is_retriable(code: int) -> bool:
    """Whether the same call may succeed later, after fresh metadata."""
    codes = error_codes()
    try:
        error = codes(code)
    except ValueError:
        return False
    return bool(error.retriable) or error.name in _RETRIABLE


def broker_error(code: int, subject: str, message: str | None = None) -> PenstockError:
    """Return the error for a response's error code.

    `subject` names the subject of the call (topic, partition, value); `message` is the broker's.
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
