"""What a handler is told of the request that it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.broker.connection import Buffers, Connection
    from penstock.wire.kafka.apis import Api


class Expiring(Protocol):
    """A request that waits for its records to be kept as their topics promise."""

    deadline: float

    def expire(self) -> None:
        """Answer that it took too long."""


class RequestContext:
    """One request between its frame and its answer.

    `api`, `version`, `correlation_id` and `client_id` come from the request's header;
    `started` is monotonic seconds. `connection` knows the peer: `connection.client_host`,
    `connection.listener`, `connection.principal`. `abandon` is what to call if the peer goes
    before the answer; a request that waits for long sets it.
    """

    __slots__ = (
        "abandon", "answer", "api", "client_id", "connection", "correlation_id", "no_answer",
        "started", "version",
    )  # fmt: skip

    def __init__(
        self,
        *,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        connection: Connection,
        started: float,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.started = started
        self.answer: Buffers | None = None
        self.no_answer = False
        self.abandon: Callable[[], None] | None = None

    def reply(self, buffers: Buffers) -> None:
        """Answer with a whole frame in pieces; it leaves when those before it have left."""
        self.answer = buffers
        self.connection.answered(self)

    @property
    def client_host(self) -> str:
        return self.connection.client_host
