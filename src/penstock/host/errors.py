"""Errors between a producer and its agent."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import (
    BugError,
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)


class NoCredit(RetriableError):
    """A frame is larger than the credit that is left; try again after `retry_after_ms`."""

    code: ClassVar[str] = "throttling_quota_exceeded"

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Draining(RetriableError):
    """The agent is going away; nothing new is taken until the next one is there."""

    code: ClassVar[str] = "broker_not_available"


class NotConnected(RetriableError):
    """No agent is connected; the client keeps trying."""

    code: ClassVar[str] = "broker_not_available"


class LostOnDisconnect(RetriableError):
    """The connection ended before the agent said what became of the frame."""

    code: ClassVar[str] = "network_exception"


class PublishTimedOut(RetriableError):
    """The agent did not say in time what became of the frame, or sent it back all the time:
    `reason` is then what it said last."""

    code: ClassVar[str] = "request_timed_out"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(f"{message}: {reason}" if reason else message)
        self.reason = reason


class FrameFailed(RetriableError):
    """The agent refused a frame, which may be accepted later."""

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class FrameRefused(InvalidError):
    """The agent rejected a frame permanently."""


class FrameTooLarge(InvalidError):
    """A frame is over the agent's limit."""

    code: ClassVar[str] = "message_too_large"


class InvalidChunks(InvalidError):
    """Chunks that cannot be sent as they are."""


class InvalidRing(InvalidError):
    """Shared memory that cannot be made, or that cannot be trusted."""


class ProducerFenced(FencedError):
    """A newer epoch of this producer has taken over; what it says is not written any more."""

    code: ClassVar[str] = "invalid_producer_epoch"


class HandshakeRefused(UnavailableError):
    """The agent did not take this producer in."""


class SinkUnavailable(UnavailableError):
    """The agent's sink does not accept at the moment, or does not say."""

    code: ClassVar[str] = "request_timed_out"


class ClientClosed(FencedError):
    """The client has been closed."""


class ProtocolViolation(CorruptError):
    """The peer sent a frame that its state does not allow, or one whose fields contradict."""


class CreditBug(BugError):
    """Credit would become negative, or more than was ever granted."""
