"""Pipelined connection to one broker on an event loop; it matches responses by their order.

The owner sends each call with a ticket, and receives the ticket with the response. It checks
`writable` before it sends, which bounds the unsent bytes and the unanswered calls. Pieces are
passed to the transport without a copy. uvloop writes them with `writev`, and keeps the unsent rest.
So a piece must not change until its call was answered or `lost` was called.

`lost` is called exactly once, from `connection_lost`. After it the transport reads no piece any
more. A missing or invalid response, or a frame above the limit, ends the connection and therefore
leads to `lost`.

Source: Kafka's protocol guide (responses come in the order of the requests); KIP-35.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from penstock.base.errors import PenstockError
from penstock.client.connection import not_connected
from penstock.client.errors import Disconnected, MalformedResponse, TimedOut
from penstock.client.protocol import (
    API_VERSIONS_FIRST,
    Call,
    Negotiated,
    make_call,
    read_response,
)
from penstock.client.security import (
    NO_SECURITY,
    RENEW_SHARE,
    ClientSecurity,
    authentication,
    next_call,
)
from penstock.security.sasl import ServerUntrusted

APPENDER_UNDER_WAY_MAX: Final = 256
"""Maximum unanswered requests on an appender's connection, over all producer partitions."""
APPENDER_WRITE_BYTES: Final = 4 << 20
"""Unsent bytes of a connection above which its producer partitions must wait."""
APPENDER_ANSWER_BYTES_MAX: Final = 1 << 20
"""Maximum size of a response on an appender's connection; one to Produce has about 100 bytes."""

_LENGTH_BYTES: Final = 4
T = TypeVar("T")


class PipelineOwner(Protocol[T]):
    def answered(self, ticket: T, response: Any) -> None: ...

    def may_send(self) -> None: ...

    def lost(self, tickets: list[T], error: PenstockError) -> None:
        """Handle the end of the connection; `tickets` are those of its unanswered calls, oldest
        first.
        """
        ...


class _Sent(NamedTuple):
    call: Call
    ticket: Any
    deadline: float


class Pipeline(asyncio.Protocol, Generic[T]):
    """Connection with its unanswered calls, oldest first; created by `connect`."""

    def __init__(
        self,
        owner: PipelineOwner[T],
        *,
        where: str,
        client_id: bytes,
        timeout_ms: int,
        loop: asyncio.AbstractEventLoop,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self.where = where
        self.client_id = client_id
        self.closed: asyncio.Future[None] = loop.create_future()
        self._owner = owner
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._security = security
        self._renewing: asyncio.Task[None] | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._negotiated = Negotiated()
        self._greeting: asyncio.Future[Any] | None = None
        self._transport: asyncio.Transport | None = None
        self._under_way: deque[_Sent] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._rest = b""
        self._correlation_id = 0
        self._paused = False
        self._error: PenstockError | None = None

    @property
    def writable(self) -> bool:
        return (
            not self._paused
            and self._error is None
            and self._renewing is None
            and len(self._under_way) < APPENDER_UNDER_WAY_MAX
        )

    @property
    def lost_by(self) -> PenstockError | None:
        """Reason why the connection is closed or closing; None while it is open."""
        return self._error

    def next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def send(self, call: Call, ticket: T) -> None:
        """Write a call; its ticket is returned through `answered` or `lost`."""
        self._write(call, ticket)

    def request(self, name: str, body: Mapping[str, Any], ticket: T) -> None:
        """Write a call by name, in the highest common version, and otherwise as `send` does.

        Raises:
            UnsupportedByBroker: client and broker have no common version; nothing was sent.
        """
        call = make_call(
            name,
            self._negotiated.version(name, self.where),
            body,
            correlation_id=self.next_correlation_id(),
            client_id=self.client_id,
        )
        self.send(call, ticket)

    async def negotiate(self, name: str) -> int:
        """Request the broker's version ranges; return the highest common version of a call.

        Raises:
            UnsupportedByBroker: client and broker have no common version.
            Disconnected, TimedOut, MalformedResponse: the connection is unusable.
        """
        body = {"client_software_name": "penstock", "client_software_version": "0.1.0"}
        call = make_call(
            "ApiVersions",
            API_VERSIONS_FIRST,
            body,
            correlation_id=self.next_correlation_id(),
            client_id=self.client_id,
        )
        self._negotiated.update(await self._own_call(call))
        await self._authenticate()
        return self._negotiated.version(name, self.where)

    async def _own_call(self, call: Call) -> Any:
        """Make a call of the connection itself, which has no ticket of the owner."""
        self._greeting = self._loop.create_future()
        self._write(call, None)
        return await self._greeting

    async def _authenticate(self) -> None:
        """Authenticate if the security options require it; calls of the owner may be unanswered.

        Raises:
            NotAuthenticated: the broker rejected the client.
            ServerUntrusted: the client rejected the broker.
        """
        if self._security.begin is None:
            return
        calls = authentication(self._security, self.where)
        answer: Any = None
        while True:
            # Passwords are hashed in between, which must not block the loop.
            step = await self._loop.run_in_executor(None, next_call, calls, answer)
            if isinstance(step, int):
                break
            name, body = step
            call = make_call(
                name,
                self._negotiated.version(name, self.where),
                body,
                correlation_id=self.next_correlation_id(),
                client_id=self.client_id,
            )
            answer = await self._own_call(call)
        if step:
            self._renewal = self._loop.call_later(step / 1000 * RENEW_SHARE, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._error is None:
            self._renewing = self._loop.create_task(self._renew_now())

    async def _renew_now(self) -> None:
        try:
            await self._authenticate()
        except PenstockError as error:
            self.abort(error)
        finally:
            self._renewing = None
        if self.writable:
            self._owner.may_send()

    def abort(self, error: PenstockError) -> None:
        """Close the connection at once; `lost` is then called with this error."""
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=APPENDER_WRITE_BYTES)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self.writable:
            self._owner.may_send()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        try:
            offset = self._take_frames(data)
        except PenstockError as error:
            self.abort(error)
            return
        self._rest = data[offset:]

    def connection_lost(self, reason: Exception | None) -> None:
        for timer in (self._timer, self._renewal):
            if timer is not None:
                timer.cancel()
        error = self._error or Disconnected(
            f"{self.where} closed the connection: {reason or 'end of stream'}"
        )
        self._error = error
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(error)
        # A call without a ticket is the connection's own, not one of the owner.
        tickets = [sent.ticket for sent in self._under_way if sent.ticket is not None]
        self._under_way.clear()
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.lost(tickets, error)

    # Frames

    def _take_frames(self, data: bytes) -> int:
        """Process each whole frame; return the start of the first incomplete one."""
        offset, size = 0, len(data)
        full = not self.writable
        while size - offset >= _LENGTH_BYTES and self._error is None:
            length = int.from_bytes(data[offset : offset + _LENGTH_BYTES], "big", signed=True)
            if not _LENGTH_BYTES <= length <= APPENDER_ANSWER_BYTES_MAX:
                raise MalformedResponse(
                    f"{self.where} sent a frame of {length} bytes; the limit is"
                    f" {APPENDER_ANSWER_BYTES_MAX}. Check that this address is a Kafka"
                    " listener."
                )
            end = offset + _LENGTH_BYTES + length
            if end > size:
                break
            self._take_frame(memoryview(data)[offset + _LENGTH_BYTES : end])
            offset = end
        if full and self.writable:
            self._owner.may_send()
        return offset

    def _take_frame(self, frame: memoryview) -> None:
        if not self._under_way:
            raise MalformedResponse(f"{self.where} sent a response, but no request is unanswered")
        sent = self._under_way[0]
        response = read_response(sent.call, frame, self.where)
        self._under_way.popleft()
        if sent.ticket is not None:
            self._owner.answered(sent.ticket, response)
        elif self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(response)

    # Writing, and waiting for answers

    def _write(self, call: Call, ticket: T | None) -> None:
        deadline = self._loop.time() + self._timeout_ms / 1000
        self._under_way.append(_Sent(call, ticket, deadline))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look_at_deadline)
        if self._transport is not None:
            self._transport.writelines(call.pieces)

    def _look_at_deadline(self) -> None:
        self._timer = None
        if not self._under_way:
            return
        oldest = self._under_way[0]
        if self._loop.time() < oldest.deadline:
            self._timer = self._loop.call_at(oldest.deadline, self._look_at_deadline)
            return
        self.abort(
            TimedOut(
                f"{self.where} did not answer {oldest.call.api.name} within {self._timeout_ms} ms"
            )
        )


async def connect(
    host: str,
    port: int,
    owner: PipelineOwner[T],
    *,
    client_id: bytes,
    timeout_ms: int,
    connect_timeout_ms: int,
    name: str = "Produce",
    security: ClientSecurity = NO_SECURITY,
) -> Pipeline[T]:
    """Open a connection to a broker that supports the call of this name.

    If this fails after the connection was established, `lost` has been called without tickets.

    Raises:
        Disconnected, TimedOut, MalformedResponse, UnsupportedByBroker: no usable connection.
        NotAuthenticated: the broker rejected the client.
        ServerUntrusted: the client rejected the broker.
    """
    loop = asyncio.get_running_loop()
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    pipeline = Pipeline(
        owner,
        where=where,
        client_id=client_id,
        timeout_ms=timeout_ms,
        loop=loop,
        security=security,
    )
    try:
        async with asyncio.timeout(connect_timeout_ms / 1000):
            await loop.create_connection(
                lambda: pipeline,
                host,
                port,
                ssl=security.tls,
                server_hostname=security.server_name(host),
            )
            await pipeline.negotiate(name)
    except TimeoutError:
        error = TimedOut(f"{where} did not open a connection within {connect_timeout_ms} ms")
        pipeline.abort(error)
        raise error from None
    except ssl.SSLCertVerificationError as reason:
        raise ServerUntrusted(f"{where}: {reason.verify_message}") from None
    except (OSError, UnicodeError) as reason:
        raise not_connected(where, reason) from reason
    except (PenstockError, asyncio.CancelledError) as reason:
        cancelled = Disconnected("the connection attempt was cancelled")
        pipeline.abort(reason if isinstance(reason, PenstockError) else cancelled)
        raise
    return pipeline
