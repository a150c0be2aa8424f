"""Client connection: parses frames and writes responses in order and within bounds.

Receiving. All connections of an event loop share one scratch buffer, because the loop fills it and
passes it on in one step. Handlers read complete frames in this buffer. A Produce frame is copied
first, since storage may retain views of it. An incomplete frame gets its own buffer, which also
receives the rest of the frame.

Order. Responses leave in the order of the requests. Later requests of the connection wait until an
`async` handler has responded. Produce and Fetch run concurrently, up to `queued.max.requests`.

Back-pressure. Reading from a connection pauses for each of these reasons:

- too many of its requests are in flight;
- a later request arrives while an `async` handler runs;
- the client does not read its responses;
- quotas throttle the client;
- the received frames of all connections use too much memory.

A paused connection holds at most one scratch buffer of received bytes that are not handled yet.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from penstock.base.buffers import POOLED_BUFFER_BYTES, Lease, ReceivePool
from penstock.security import ANONYMOUS, EVERYTHING, refusal
from penstock.wire.kafka.apis import BY_NAME, Api
from penstock.wire.kafka.framing import (
    HEADER_BYTES_MIN,
    MalformedRequest,
    UntrustworthyFrame,
    check_length,
)

if TYPE_CHECKING:
    from penstock.broker.net.authentication import Authentication
    from penstock.security import AuthorisationFailed, Rights


SMALL_FRAME_BYTES: Final = 64 << 10
"""Largest frame that gets newly allocated memory; larger ones get a buffer of the receive pool."""
RECEIVE_BYTES_MAX: Final = 256 << 10
"""Largest part of an incomplete frame that is received in one step. After each step the memory
limit of all connections is checked. Frames above 4 MiB let other connections run between steps."""
JOIN_BYTES: Final = 128 << 10
"""Largest response that is joined into one write; larger ones are written in pieces."""
WRITE_HIGH_WATER_BYTES: Final = 1 << 20
"""Unsent response bytes of a connection above which its requests are not read."""
FRAME_GRACE_SECONDS: Final = 5.0
"""Time limit for a frame to arrive, to which its size divided by the rate below is added."""
FRAME_BYTES_PER_SECOND_MIN: Final = 64 << 10

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct(">i")
WAITING_APIS: Final = frozenset({BY_NAME["JoinGroup"].key, BY_NAME["SyncGroup"].key})
"""API keys of requests whose handlers wait for other members of the group."""

Buffer = bytes | bytearray | memoryview
Buffers = Sequence[Buffer]


class Expiring(Protocol):
    """Request that waits until its records are replicated or stored, at most until `deadline`."""

    deadline: float

    def expire(self) -> None: ...


class Repeats(Protocol):
    """Produce requests of a connection that begin like earlier ones (`requests/joining.py`)."""

    def take(self, frame: memoryview) -> bool:
        """Handle a request, at once or at the end of the turn; return whether that is possible."""
        ...


class RequestContext(Struct, eq=False, kw_only=True):
    """State of one request, from the arrival of its frame to its response.

    `started` is the arrival in monotonic seconds. `abandon` is called if the client disconnects
    before the response. `rights` are the caller's permissions. `granted` are the changes to the
    response for elements that the caller may not use (`access.Granted`). `refused` are the
    authorisation errors to audit.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    connection: Connection
    started: float
    answer: Buffers | None = None
    no_answer: bool = False
    rights: Rights = EVERYTHING
    refused: list[AuthorisationFailed] = []
    granted: Any = None
    abandon: Callable[[], None] | None = None

    def reply(self, buffers: Buffers) -> None:
        """Send a whole response frame, given in pieces, after all earlier responses."""
        self.answer = buffers
        self.connection.answered(self)

    @property
    def client_host(self) -> str:
        return self.connection.client_host

    def authorise(self, operation: str, resource_type: str, name: str) -> None:
        """Raise AuthorisationFailed if the caller may not do this; the audit log records it."""
        if not self.rights.allows(operation, resource_type, name):
            raise self.refusal(operation, resource_type, name)

    def refusal(self, operation: str, resource_type: str, name: str) -> AuthorisationFailed:
        """Return the error for a forbidden operation; the audit log records it."""
        error = refusal(operation, resource_type, name, self.connection.principal)
        self.refused.append(error)
        return error


class ConnectionOwner(Protocol):
    """Interface through which a connection calls its server or its authentication service."""

    scratch: memoryview
    pool: ReceivePool
    frame_bytes_max: int
    in_flight_max: int
    bytes_in: int
    bytes_out: int
    checks_requests: bool
    """Whether it checks each request, so that none may be joined with others."""

    def now(self) -> float: ...
    def request(self, connection: Connection, frame: memoryview, lease: Lease | None) -> object: ...
    def connected(self, connection: Connection) -> bool: ...
    def disconnected(self, connection: Connection) -> None: ...
    def rejected(self, connection: Connection, error: Exception) -> None: ...


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog", "_closing", "_draining", "_filled", "_frame", "_frame_deadline", "_head",
        "_head_filled", "_held", "_later", "_lease", "_lost", "_more", "_muted", "_owner",
        "_pending", "_reading", "_task", "_transport", "_writable", "authentication", "client_host",
        "client_port", "fetch_errors", "last_request", "listener", "principal",
        "repeats", "software",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner, listener: str) -> None:
        self._owner = owner
        self.listener = listener
        self.principal = ANONYMOUS
        self.authentication: Authentication | None = None
        """State of the SASL authentication; None on a connection without SASL."""
        self.client_host = ""
        self.client_port = 0
        self.software = ("unknown", "unknown")
        """Name and version of the client's software, from its ApiVersions request."""
        self.last_request = 0.0
        self.fetch_errors: Mapping[tuple[bytes, int], tuple[int, int, int]] = {}
        """Errors in the last Fetch response without a session (`fetch.sessions.Reported`)."""
        self.repeats: Repeats | None = None
        """Beginnings of Produce requests that can be joined; None before there is one."""
        self._transport: Any = None
        self._pending: deque[RequestContext] = deque()
        self._task: asyncio.Task[None] | None = None
        self._muted: asyncio.TimerHandle | None = None
        self._later: deque[Callable[[], None]] = deque()
        """Requests to handle after the `async` handler, which were read before it ran."""
        self._held = False
        """Whether an `async` handler runs, requests wait for it, or the connection is muted."""
        self._backlog: memoryview | None = None
        self._head = bytearray(4)
        self._head_filled = 0
        self._frame: memoryview | None = None
        self._filled = 0
        self._lease: Lease | None = None
        self._frame_deadline = 0.0
        self._reading = True
        self._writable = True
        self._closing = False
        self._lost = False
        """Whether the client disconnected while an `async` handler runs."""
        self._draining = False
        """Whether `_drain` runs at the end of this turn of the loop."""
        self._more = False
        """Whether another request was received after the Produce request that is handled."""

    # Transport events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.client_host, self.client_port = str(peer[0]), int(peer[1])
        self.last_request = self._owner.now()
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if not self._owner.connected(self):
            self._closing = True
            transport.close()

    def enter(self, owner: ConnectionOwner) -> None:
        """Pass the next and all later requests of this connection to `owner`."""
        self._owner = owner
        self.repeats = None

    @property
    def checks_requests(self) -> bool:
        return self._owner.checks_requests

    def peer_certificate(self) -> bytes | None:
        """Return the client's verified TLS certificate in DER form; None without one."""
        encrypted = self._transport.get_extra_info("ssl_object")
        return None if encrypted is None else encrypted.getpeercert(binary_form=True)

    def size_buffers(self, send_bytes: int, receive_bytes: int) -> None:
        """Set the sizes of the socket's kernel buffers; a negative size changes nothing."""
        opened = self._transport.get_extra_info("socket")
        for option, size in ((socket.SO_SNDBUF, send_bytes), (socket.SO_RCVBUF, receive_bytes)):
            if opened is not None and size >= 0:
                opened.setsockopt(socket.SOL_SOCKET, option, size)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing or self._task is None:
            self._end()
        else:
            self._closing = self._lost = True  # a stopping broker waits for the handler

    def _end(self) -> None:
        self._closing = True
        self._end_mute()
        self._abandon_pending()
        self._backlog = self.repeats = None
        self._drop_frame()
        self._owner.pool.forget(self._resume)
        self._owner.disconnected(self)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled : self._filled + RECEIVE_BYTES_MAX]
        if self._head_filled:
            return memoryview(self._head)[self._head_filled :]
        return self._owner.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._owner.bytes_in += nbytes
        if self._closing:
            return
        try:
            if self._frame is not None:
                self._frame_received(nbytes)
            elif self._head_filled:
                self._head_filled += nbytes
                if self._head_filled == 4:
                    self._head_filled = 0
                    self._begin(_LENGTH.unpack(self._head)[0], b"")
            else:
                self._parse(self._owner.scratch[:nbytes])
        except (UntrustworthyFrame, MalformedRequest) as error:
            self._owner.rejected(self, error)
            self.close(str(error))
        except Exception as error:
            logger.exception("connection of %s: receiving failed", self.client_host)
            self._owner.rejected(self, error)
            self.close("an internal error")

    # Frames

    def _parse(self, data: memoryview) -> None:
        position, size = 0, len(data)
        owner = self._owner
        while size - position >= 4:
            if self._held or not self._writable or len(self._pending) >= owner.in_flight_max:
                break
            (length,) = _LENGTH.unpack_from(data, position)
            if not 10 <= length <= owner.frame_bytes_max:
                self._check_length(length)
            start, end = position + 4, position + 4 + length
            if end > size:
                self._begin(length, data[start:])
                return
            frame = data[start:end]
            if length < HEADER_BYTES_MIN or data[start] or data[start + 1]:  # not Produce
                owner.request(self, frame, None)
            elif length > SMALL_FRAME_BYTES:
                self._handle_leased(frame)
            else:
                self._more = end < size
                if self.repeats is None or not self.repeats.take(frame):
                    owner.request(self, memoryview(bytearray(frame)), None)
                self._more = False
            position = end
            if self._closing:
                return
        if position < size or (
            not self._held and (not self._writable or len(self._pending) >= owner.in_flight_max)
        ):
            self._keep(data[position:])

    def _keep(self, data: memoryview) -> None:
        rest = len(data)
        if not rest:
            self._pause()
        elif self._must_wait():
            self._backlog = memoryview(bytes(data))
            self._pause()
        else:
            self._head[:rest] = data
            self._head_filled = rest
            self._frame_deadline = self._owner.now() + FRAME_GRACE_SECONDS

    def _check_length(self, length: int) -> None:
        """Raise UntrustworthyFrame for a length that neither requests nor raw SASL tokens have."""
        raw = self.authentication is not None and self.authentication.raw
        if not (raw and 0 < length < HEADER_BYTES_MIN):
            check_length(length, self._owner.frame_bytes_max)

    def _begin(self, length: int, received: memoryview | bytes) -> None:
        owner = self._owner
        self._check_length(length)
        self._filled = len(received)
        self._frame_deadline = (
            owner.now() + FRAME_GRACE_SECONDS + length / FRAME_BYTES_PER_SECOND_MIN
        )
        if length <= SMALL_FRAME_BYTES:
            self._frame = memoryview(bytearray(length))
        else:
            self._lease = owner.pool.take(length)
            self._frame = self._lease.view[:length]
            if not owner.pool.received(self._lease, self._filled):
                self._wait_for_memory()
        self._frame[: self._filled] = received

    def _frame_received(self, count: int) -> None:
        frame, lease = self._frame, self._lease
        if frame is None:
            return
        self._filled += count
        if lease is not None and not self._owner.pool.received(lease, count):
            self._wait_for_memory()
        if self._filled < len(frame):
            if count == RECEIVE_BYTES_MAX and len(frame) > POOLED_BUFFER_BYTES:
                self._pause()  # libuv reads up to 32 times in a turn of the loop
                asyncio.get_running_loop().call_soon(self._resume)
            return
        self._frame = self._lease = None
        self._frame_deadline = 0.0
        try:
            self._owner.request(self, frame, lease)
        finally:
            if lease is not None:
                lease.release()
        if self._must_wait():
            self._pause()

    def _handle_leased(self, frame: memoryview) -> None:
        length = len(frame)
        lease = self._owner.pool.take(length)
        lease.view[:length] = frame
        self._owner.pool.received(lease, length)
        try:
            self._owner.request(self, lease.view[:length], lease)
        finally:
            lease.release()

    def _drop_frame(self) -> None:
        self._frame = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    # Back-pressure

    def _must_wait(self) -> bool:
        return self._held or not self._writable or len(self._pending) >= self._owner.in_flight_max

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def mute(self, seconds: float) -> None:
        """Stop reading for `seconds`. Of several mutes, the one that ends last applies."""
        if self._closing or seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._muted is None or self._muted.when() < until:
            self._end_mute()
            self._muted = loop.call_at(until, self._unmute)
            self._held = True
            self._pause()

    def _unmute(self) -> None:
        self._muted = None
        self._update_held()
        self.last_request = self._owner.now()
        self._frame_deadline = self.last_request + FRAME_GRACE_SECONDS
        if self._frame is not None:
            self._frame_deadline += len(self._frame) / FRAME_BYTES_PER_SECOND_MIN
        self._resume()

    def _end_mute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            self._update_held()

    def _wait_for_memory(self) -> None:
        self._owner.pool.wait(self._resume)
        self._pause()

    def _resume(self) -> None:
        if self._closing or self._reading or self._must_wait():
            return
        if self._backlog is not None:
            backlog, self._backlog = self._backlog, None
            try:
                self._parse(backlog)
            except (UntrustworthyFrame, MalformedRequest) as error:
                self._owner.rejected(self, error)
                self.close(str(error))
            if self._closing or self._backlog is not None or self._must_wait():
                return
        if self._lease is not None and not self._owner.pool.may_read(self._lease):
            self._owner.pool.wait(self._resume)
            return
        self._reading = True
        self._transport.resume_reading()

    # Requests and answers

    @property
    def has_others(self) -> bool:
        """Whether requests wait for their responses, or were received after the handled one."""
        return self._more or bool(self._pending)

    def respond_at_once(self, response: bytes, started: float) -> None:
        """Send the response to the only request, which arrived at `started`."""
        self.last_request = started
        self._owner.bytes_out += len(response)
        self._transport.write(response)

    def opened(self, request: RequestContext) -> None:
        self.last_request = request.started
        self._pending.append(request)

    def dropped(self, request: RequestContext) -> None:
        if request in self._pending:
            self._pending.remove(request)
            self._drain()

    def waits_for(self, task: asyncio.Task[None]) -> None:
        """Handle no later request until `task`, which runs an `async` handler, has responded."""
        self._task = task
        self._held = True
        task.add_done_callback(self._task_done)

    def in_order(self, handle: Callable[[], None]) -> None:
        """Handle a request now, or after the running `async` handler has responded."""
        if self._task is None and not self._later:
            handle()
        else:
            self._later.append(handle)
            self._held = True

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._release()
        while self._later and self._task is None:
            self._later.popleft()()
        self._update_held()
        self._resume()

    def _update_held(self) -> None:
        self._held = bool(self._task is not None or self._later or self._muted is not None)

    def _release(self) -> None:
        self._task = None
        self._update_held()
        if self._lost:
            self._end()

    def answered(self, request: RequestContext) -> None:
        """Write the response of `request` if all earlier responses have been written.

        If the client has sent more requests, wait for the end of this turn of the loop, because
        one write can then send the responses to all of them.
        """
        pending = self._pending
        if self._task is not None and pending and pending[-1] is request:
            self._release()  # the response of the `async` handler; no later request was read
        if pending and pending[0] is request:
            if len(pending) == 1 and not self._more:
                buffers = request.answer
                if self._reading and not self._closing and buffers and len(buffers) == 1:
                    pending.popleft()  # the usual case: what `_drain` does, without its calls
                    self._owner.bytes_out += len(buffers[0])
                    self._transport.write(buffers[0])
                else:
                    self._drain()
            elif not self._draining:
                self._draining = True
                asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        """Write the responses that are ready, and resume reading if that made room."""
        self._draining = False
        if self._closing:
            return
        was_full = len(self._pending) >= self._owner.in_flight_max
        self._write_ready()
        if was_full or self._backlog is not None or not self._reading:
            self._resume()

    def _write_ready(self) -> None:
        """Write the responses that are ready, up to the first one that is not."""
        pending = self._pending
        ready: list[Buffer] = []
        while pending and (buffers := pending[0].answer) is not None:
            pending.popleft()
            ready += buffers
        if ready:
            self._write(ready)

    def _write(self, buffers: Buffers) -> None:
        if len(buffers) == 1:
            self._owner.bytes_out += len(buffers[0])
            self._transport.write(buffers[0])
            return
        size = sum(map(len, buffers))
        self._owner.bytes_out += size
        if size <= JOIN_BYTES:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    # Life cycle

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def muted(self) -> bool:
        return self._muted is not None

    @property
    def closing(self) -> bool:
        return self._closing

    def overdue(self, now: float, idle_seconds: float) -> str | None:
        """Return the reason to close the connection because it is slow or idle; else None."""
        partial = self._frame is not None or self._head_filled
        if partial and self._reading and now > self._frame_deadline:
            return "a frame took too long to arrive"
        waits = self._pending or self._muted is not None
        if idle_seconds >= 0 and not waits and now - self.last_request > idle_seconds:
            return "idle for longer than connections.max.idle.ms"
        return None

    def close(self, reason: str) -> None:
        """Read nothing more, drop pending requests, and close after pending writes have left."""
        if self._closing:
            return
        if self._draining:
            self._write_ready()
        self._closing = True
        logger.info(
            "closing the connection of %s:%d: %s", self.client_host, self.client_port, reason
        )
        self._end_mute()
        self._abandon_pending()
        self._drop_frame()
        self._transport.close()

    def cancel_handler(self, *, waiting_only: bool = False) -> None:
        """Cancel the running `async` handler.

        With `waiting_only`, cancel it only if it waits for other members of a group.
        """
        if self._task is None:
            return
        if not waiting_only or (self._pending and self._pending[-1].api.key in WAITING_APIS):
            self._task.cancel()

    def _abandon_pending(self) -> None:
        pending, self._pending = self._pending, deque()
        for request in pending:
            if request.abandon is not None:
                request.abandon()

    def abort(self) -> None:
        self._closing = True
        self._end_mute()
        self._transport.abort()


WARNING_SECONDS: Final = 60.0
"""Time between two warnings of a kind about the same address."""
WARNED_ADDRESSES_MAX: Final = 1024
"""Limit of pairs of address and kind whose last warning is stored."""


class AddressWarnings:
    """Rate limit of log warnings: one per `WARNING_SECONDS` for each client address and kind."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def left_out(self, host: str, kind: str, now: float) -> int | None:
        """Return None if the caller must not log this warning, because it logged one recently.

        Otherwise return the number of warnings suppressed since the last logged one. `now` is
        monotonic seconds.
        """
        at, count = self._last.get((host, kind), (now - WARNING_SECONDS, 0))
        if now - at < WARNING_SECONDS:
            self._last[host, kind] = (at, count + 1)
            return None
        self._last.pop((host, kind), None)
        if len(self._last) >= WARNED_ADDRESSES_MAX:
            del self._last[next(iter(self._last))]
        self._last[host, kind] = (now, 0)
        return count
