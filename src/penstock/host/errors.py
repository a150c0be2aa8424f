"""Errors between a producer and its agent."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import (
    BugError,
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)


class NoCredit(RetriableError):
    """A frame needs more credit than is left; retry after `retry_after_ms`."""

    code: ClassVar[str] = "throttling_quota_exceeded"

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Draining(RetriableError):
    """The agent is stopping; publish again when the next agent is connected."""

    code: ClassVar[str] = "broker_not_available"


class NotConnected(RetriableError):
    """No agent is connected; the client continues to try."""

    code: ClassVar[str] = "broker_not_available"


class LostOnDisconnect(RetriableError):
    """The connection ended before the agent answered the frame."""

    code: ClassVar[str] = "network_exception"


class PublishTimedOut(RetriableError):
    """The agent did not accept the frame in time.

    It sent no answer, or failed the frame as retryable each time; `reason` is the last reason.
    """

    code: ClassVar[str] = "request_timed_out"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(f"{message}: {reason}" if reason else message)
        self.reason = reason


class FrameFailed(RetriableError):
    """The agent failed a frame; it may accept the frame later."""

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class FrameRefused(InvalidError):
    """The agent rejected a frame permanently."""


class FrameTooLarge(InvalidError):
    """A frame is over the agent's limit."""

    code: ClassVar[str] = "message_too_large"


class InvalidChunks(InvalidError):
    """The chunks of a publication are malformed, so they cannot be sent."""


class InvalidRing(InvalidError):
    """Shared memory cannot be created, or a peer's shared memory is unsafe."""


class ProducerFenced(FencedError):
    """A newer epoch of this producer exists; frames of this epoch are no longer written."""

    code: ClassVar[str] = "invalid_producer_epoch"


class HandshakeRefused(UnavailableError):
    """The agent rejected this producer's HELLO."""


class SinkUnavailable(UnavailableError):
    """The agent's sink does not accept frames now, or does not respond."""

    code: ClassVar[str] = "request_timed_out"


class ClientClosed(FencedError):
    """The client has been closed."""


class ProtocolViolation(CorruptError):
    """The peer sent a frame that the state does not allow, or with contradicting fields."""


class CreditBug(BugError):
    """Credit became negative, or exceeded the granted credit."""


VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
"""Lowest and highest supported version of the protocol."""

CHUNKS_PER_FRAME_MAX: Final = 4096
"""Maximum number of chunks in a DATA_BATCH frame.

Three arrays of as many 32-bit numbers fit into a header.
"""

TOPICS_PER_HELLO_MAX: Final = 256
"""Maximum number of topics that one producer may name."""

REASON_CHARS_MAX: Final = 512
"""Maximum number of characters of a reason in an answer."""

SEQUENCE_MAX: Final = 2**63 - 1
EVENTS_PER_FRAME_MAX: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
"""Maximum producer epoch; Kafka's epochs are signed 16-bit numbers."""

PARTITION_MAX: Final = 2**31 - 1
"""Maximum partition; Kafka's partitions are signed 32-bit numbers."""

LOG_SEQUENCES: Final = 2**31
"""Number of record sequences of a producer partition, after which they wrap, as in Kafka."""
