"""Kafka requests that the console makes on behalf of its callers.

Acts of the console are requests of Kafka's protocol. The broker's own dispatcher handles them, so
they have the checks, ACLs, quotas, audit lines and metrics of a client's request. The principal,
the rights and the address are those of the browser's user. A request for another broker, such as a
group's coordinator, is authorised here and then sent to that broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.base.buffers import ReceivePool
from penstock.base.errors import BugError, InvalidError, UnavailableError
from penstock.base.http_listener import client_address
from penstock.broker.dispatch import Dispatcher
from penstock.broker.net.connection import Connection, RequestContext
from penstock.broker.net.errors import error_name
from penstock.broker.net.listeners import ADMIN_LISTENER
from penstock.broker.requests.access import CHANGES, RequestAudit, granted
from penstock.broker.table import Handlers
from penstock.client.protocol import VERSION_MAX, make_call, read_response
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.broker.admin.access import Caller
    from penstock.broker.assembly import Assembly
    from penstock.security import Principal, Rights

CLIENT_ID: Final = "penstock-console"
RESPONSE_SECONDS: Final = 30.0
"""Longest wait for a response."""
_CORRELATION_ID: Final = 1
_LENGTH_BYTES: Final = 4


class RequestRefused(InvalidError):
    """Error in the response to a request; the message is the broker's."""

    code: ClassVar[str] = "invalid_request"


def refused(code: int, message: str | None, subject: str) -> RequestRefused:
    """Return the error for an error code of a response; `subject` is what the request was about."""
    name = error_name(int(code))
    error = RequestRefused(message or f"{subject}: {name.lower().replace('_', ' ')}")
    error.code = name.lower()  # type: ignore[misc]  # more precise than the class
    return error


def check_rows(rows: Iterable[Any], subject: str) -> None:
    """Raise the first error of a response's rows, which have `error_code`."""
    for row in rows:
        if row.error_code:
            raise refused(row.error_code, getattr(row, "error_message", None), subject)


class CallerRequests:
    """Sender of Kafka requests with the rights of the console's callers."""

    def __init__(self, broker: Assembly) -> None:
        self._broker = broker
        self._handlers = Handlers(broker)
        self._audit = RequestAudit(broker.audit)

    async def call(
        self, caller: Caller, name: str, body: Mapping[str, Any], broker_id: int | None = None
    ) -> Any:
        """Send a request and return its response, an object of the `kio` library.

        `broker_id` is the broker that handles it; None is this one. The response of another broker
        may have topics and groups that the caller must not see.

        Raises:
            AuthorisationFailed: the caller lacks a permission. Nothing was sent.
            PenstockError: the request failed as a whole, or the other broker does not answer.
        """
        broker = self._broker
        if broker_id in (None, broker.node_id):
            connection = _CallerConnection(broker, caller)
            return await connection.call(self._dispatcher(caller.rights), name, body)
        context, request = self._checked(caller, name, body)
        answer = await broker.peers.call(broker_id, name, body)
        if context.api.key in CHANGES:
            self._audit.changed(context, request, {})
        return answer

    def _dispatcher(self, rights: Rights) -> Dispatcher:
        broker = self._broker
        return Dispatcher(
            self._handlers,
            metrics=broker.metrics,
            clock=broker.clock,
            authoriser=_Granting(rights, refuses=broker.authoriser.refuses),
            quotas=broker.quotas,
            partitions=broker.partitions,
            commits=broker.commits,
            audit=broker.audit,
        )

    def _checked(
        self, caller: Caller, name: str, body: Mapping[str, Any]
    ) -> tuple[RequestContext, Any]:
        """Authorise a request for another broker; raises AuthorisationFailed."""
        api, version = BY_NAME[name], _version(name)
        context = RequestContext(
            api=api,
            version=version,
            correlation_id=_CORRELATION_ID,
            client_id=CLIENT_ID,
            connection=_CallerConnection(self._broker, caller),
            started=0.0,
        )
        context.rights = caller.rights
        if api.key in CHANGES and any(check.scope == "asked" for check in api.checks):
            raise BugError(f"{name} cannot be sent to another broker")
        request, _ = decoder(name, version, "request")(encoder(name, version, "request")(body), 0)
        granted(context, request, lambda _: None)
        if context.refused:
            self._audit.refused(context)
            raise context.refused[0]
        return context, request


class _Granting:
    """Authoriser of one caller, whose rights are known."""

    def __init__(self, rights: Rights, *, refuses: bool) -> None:
        self._rights = rights
        self.refuses = refuses

    def rights(self, principal: Principal, host: str) -> Rights:
        return self._rights


class _CallerConnection(Connection):
    """Connection without a socket, whose client is the caller; used for one request."""

    __slots__ = ("_response",)

    def __init__(self, broker: Assembly, caller: Caller) -> None:
        super().__init__(_Owner(broker.clock.monotonic), ADMIN_LISTENER)
        self.principal = caller.known.principal
        self.client_host = client_address(caller.request)
        self._response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport = _Transport(self._response)

    async def call(self, dispatcher: Dispatcher, name: str, body: Mapping[str, Any]) -> Any:
        call = make_call(
            name, _version(name), body, correlation_id=_CORRELATION_ID, client_id=CLIENT_ID.encode()
        )
        frame = bytearray().join(call.pieces)  # Produce writes offsets into it
        dispatcher.request(self, memoryview(frame)[_LENGTH_BYTES:], None)
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                response = await self._response
        except TimeoutError:
            raise UnavailableError(
                f"{name} was not answered within {RESPONSE_SECONDS:g} s; it may still take effect"
            ) from None
        return read_response(call, memoryview(response)[_LENGTH_BYTES:], "this broker")


class _Transport(asyncio.Transport):
    """Transport that completes a future with the response that is written."""

    def __init__(self, response: asyncio.Future[bytes]) -> None:
        super().__init__()
        self._response = response

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._response.done():
            self._response.set_result(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        """Do nothing, because nothing is read from this transport."""

    resume_reading = pause_reading

    def close(self) -> None:
        if not self._response.done():
            self._response.set_exception(UnavailableError("the broker is stopping"))

    abort = close


class _Owner:
    """Owner of a connection without a socket. It counts no bytes and limits nothing."""

    scratch = memoryview(b"")
    frame_bytes_max = 0
    in_flight_max = 2
    bytes_in = 0
    bytes_out = 0
    checks_requests = True

    def __init__(self, now: Callable[[], float]) -> None:
        self.pool = ReceivePool(0)
        self.now = now

    def request(self, connection: Connection, frame: memoryview, lease: Lease | None) -> object:
        raise BugError("a connection without a socket receives no frames")

    def connected(self, connection: Connection) -> bool:
        return True

    def disconnected(self, connection: Connection) -> None: ...
    def rejected(self, connection: Connection, error: Exception) -> None: ...


def _version(name: str) -> int:
    maximum = BY_NAME[name].maximum
    return min(VERSION_MAX.get(name, maximum), maximum)
