"""Blocking connection to one broker, used by one thread at a time.

Requests may be pipelined: `send` writes a call, and `receive` reads the response to the oldest
unanswered call. The pieces of a call are written together by `sendmsg`, so payloads are never
copied into one buffer. For a response, the length is read first, and then exactly that many bytes
into a buffer. One system call reads them if the kernel allows it (`MSG_WAITALL`).

Time limits are set on the socket (`SO_RCVTIMEO`, `SO_SNDTIMEO`). The socket stays blocking, so a
large transfer needs few system calls and does not hold the interpreter lock. With TLS, Python
applies the limit to each step.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client import errors
from penstock.client.errors import (
    ConnectionRefused,
    Disconnected,
    EncryptionExpected,
    InvalidArgument,
    MalformedResponse,
    NotAccepted,
    TimedOut,
)
from penstock.client.protocol import (
    API_VERSIONS_FIRST,
    Call,
    Negotiated,
    check_correlation,
    make_call,
    read_response,
)
from penstock.client.security import (
    NO_SECURITY,
    RENEW_SHARE,
    ClientSecurity,
    authentication,
    gathered,
    next_call,
)
from penstock.security.sasl import ServerUntrusted

if TYPE_CHECKING:
    from penstock.client.frames import Frames

BUFFERS_PER_SEND_MAX: Final = 512
"""Maximum number of pieces per `sendmsg` call; Linux allows at most 1,024."""

_LENGTH: Final = struct.Struct(">i")
_TIMEVAL: Final = struct.Struct("@ll")
_SMALL_BYTES: Final = 1 << 16
TLS_PROBE_SECONDS: Final = 1.0
"""Time limit in seconds of the TLS handshake that checks whether a listener requires TLS."""


def not_connected(where: str, error: Exception) -> Disconnected:
    if isinstance(error, ConnectionRefusedError):
        return ConnectionRefused(
            f"{where} refused the connection: no broker is running there (Connection refused)"
        )
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return Disconnected(f"{where}: the host name cannot be resolved: {error}")
    return Disconnected(f"{where} cannot be reached: {error}")


def answers_tls(address: tuple[str, int], timeout_ms: int) -> bool:
    """Return whether an address responds to a TLS handshake, even if the handshake fails.

    It explains why a connection without TLS failed.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    seconds = min(timeout_ms / 1000, TLS_PROBE_SECONDS)
    try:
        with socket.create_connection(address, timeout=seconds) as opened:
            context.wrap_socket(opened).close()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return False
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


class Connection:
    """Connection to a broker, with its negotiated versions and its unanswered calls in order."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_ms: int,
        connect_timeout_ms: int,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self.where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.negotiated = Negotiated()
        self.under_way: deque[Call] = deque()
        self.broken = False
        self.address = (host, port)
        self.used = False
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._small = memoryview(bytearray(_SMALL_BYTES))
        self._security = security
        self._renew_at = math.inf
        self._all = socket.MSG_WAITALL if security.tls is None else 0
        self._socket = self._open(host, port, connect_timeout_ms)
        self._request_timeout_ms = timeout_ms
        self._limit(min(timeout_ms, connect_timeout_ms))

    def _open(self, host: str, port: int, connect_timeout_ms: int) -> socket.socket:
        try:
            opened = socket.create_connection((host, port), timeout=connect_timeout_ms / 1000)
        except TimeoutError:
            raise NotAccepted(
                f"{self.where} did not accept a connection within {connect_timeout_ms} ms"
            ) from None
        except (OSError, UnicodeError) as error:
            raise not_connected(self.where, error) from error
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._security.tls is not None:
            return self._encrypt(opened, self._security.tls, host)
        opened.settimeout(None)
        return opened

    def _limit(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        if self._security.tls is not None:
            self._socket.settimeout(timeout_ms / 1000)
            return
        seconds, rest_ms = divmod(timeout_ms, 1000)
        timeval = _TIMEVAL.pack(seconds, rest_ms * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _encrypt(self, opened: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
        try:
            encrypted = context.wrap_socket(opened, server_hostname=host)
        except (OSError, ValueError) as error:
            opened.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ServerUntrusted(f"{self.where}: {error.verify_message}") from None
            if isinstance(error, TimeoutError):
                raise TimedOut(f"{self.where} did not complete a TLS handshake in time") from None
            raise Disconnected(
                f"{self.where} did not complete a TLS handshake: {error}. Check whether"
                " this port expects TLS (security.protocol)."
            ) from error
        return encrypted

    @property
    def readable(self) -> bool:
        """Whether TLS holds decrypted bytes, which a poll of the socket does not report."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.broken = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def shut_down(self) -> None:
        """End a blocked read or write of another thread; that thread then closes the connection."""
        self.broken = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def negotiate(self) -> None:
        """Request the broker's version ranges, then authenticate.

        The time limit of the request is that of opening the connection.

        Raises:
            Disconnected, TimedOut, MalformedResponse: the peer is gone, or is not a Kafka broker.
            EncryptionExpected: the peer is a TLS listener, and this client does not use TLS.
        """
        body = {"client_software_name": "penstock", "client_software_version": "0.1.0"}
        call = make_call(
            "ApiVersions",
            API_VERSIONS_FIRST,
            body,
            correlation_id=self.next_correlation_id(),
            client_id=self._client_id,
        )
        try:
            self.send(call)
            self.negotiated.update(self.receive())
        except (Disconnected, MalformedResponse) as error:
            if self._security.tls is None and answers_tls(self.address, self._timeout_ms):
                raise EncryptionExpected(
                    f"{self.where} expects TLS, but this client connects without it. Set"
                    " security.protocol to SSL or SASL_SSL, or use a port without TLS."
                ) from error
            raise
        self._limit(self._request_timeout_ms)
        self._authenticate()

    def _authenticate(self) -> None:
        """Authenticate if the security options require it.

        No call may be unanswered, because its response would be read as that of the authentication.

        Raises:
            NotAuthenticated: the broker rejected the client.
            ServerUntrusted: the client rejected the broker.
        """
        self._renew_at = math.inf
        calls, answer = authentication(self._security, self.where), None
        try:
            while not isinstance(step := next_call(calls, answer), int):
                answer = self.call(*step)
            if step:
                self._renew_at = SYSTEM_CLOCK.monotonic() + step / 1000 * RENEW_SHARE
        except InvalidError:
            self.close()
            raise

    @property
    def oldest_call(self) -> Call | None:
        try:
            return self.under_way[0]
        except IndexError:
            return None

    def next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    @property
    def client_id(self) -> bytes:
        return self._client_id

    def call(self, name: str, body: Mapping[str, Any]) -> Any:
        """Send one call and wait for its response.

        Raises:
            UnsupportedByBroker: client and broker have no common version.
            Disconnected, TimedOut, MalformedResponse: the connection is unusable.
        """
        version = self.negotiated.version(name, self.where)
        self.send(
            make_call(
                name,
                version,
                body,
                correlation_id=self.next_correlation_id(),
                client_id=self._client_id,
            )
        )
        return self.receive()

    def send(self, call: Call, *, answered: bool = True) -> None:
        """Write a call; `answered` is False for a call that gets no response (acks=0).

        Raises:
            Disconnected, TimedOut: the connection is unusable.
        """
        if self._renew_at < math.inf:
            self._renew()
        if answered:
            self.under_way.append(call)
        try:
            self._write(call.pieces)
        except (BlockingIOError, TimeoutError):
            self.close()
            raise TimedOut(
                f"{self.where} did not read {call.api.name} within {self._timeout_ms} ms"
            ) from None
        except OSError as error:
            self.close()
            raise Disconnected(
                f"{self.where} closed the connection during {call.api.name}: {error}"
            ) from error

    def _renew(self) -> None:
        """Authenticate again if the SASL session expires soon, unless calls are unanswered.

        If calls are unanswered each time, the broker closes the connection when the session
        expires. The client then reconnects.
        """
        if not self.under_way and SYSTEM_CLOCK.monotonic() >= self._renew_at:
            self._authenticate()

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        if self._security.tls is not None:
            for piece in gathered(pieces):
                self._socket.sendall(piece)
            return
        start = 0
        while start < len(pieces):
            window = pieces[start : start + BUFFERS_PER_SEND_MAX]
            sent = self._socket.sendmsg(window)
            for piece in window:
                if sent < len(piece):
                    break
                sent -= len(piece)
                start += 1
            if sent:
                self._socket.sendall(memoryview(pieces[start])[sent:])
                start += 1

    def receive(self) -> Any:
        """Read the response to the oldest unanswered call; decode it to an object of the `kio`
        library.

        Raises:
            Disconnected, TimedOut, MalformedResponse: the connection is unusable.
        """
        call, frame = self.receive_frame(None)
        try:
            return read_response(call, frame, self.where)
        except MalformedResponse:
            self.close()
            raise

    def receive_frame(self, frames: Frames | None) -> tuple[Call, memoryview]:
        """Read the next response's frame, into memory of `frames` if given.

        Without `frames`, a large frame gets its own memory. A small frame uses the connection's
        memory, which the next call of this method overwrites.

        Raises:
            Disconnected, TimedOut, MalformedResponse: the connection is unusable.
        """
        if not self.under_way:
            raise InvalidArgument(f"no call to {self.where} is unanswered")
        call = self.under_way[0]
        try:
            head = self._small[:4]
            self._read(head)
            length = _LENGTH.unpack(head)[0]
            if not 4 <= length <= errors.RESPONSE_BYTES_MAX:
                raise MalformedResponse(
                    f"{self.where} sent a response to {call.api.name} with a frame of"
                    f" {length} bytes; the limit is {errors.RESPONSE_BYTES_MAX}. Check that"
                    " this address is a Kafka listener."
                )
            frame = self._target(length, frames)
            self._read(frame)
            check_correlation(call, frame, self.where)
        except (BlockingIOError, TimeoutError):
            self.close()
            raise TimedOut(
                f"{self.where} did not answer {call.api.name} within {self._timeout_ms} ms"
            ) from None
        except OSError as error:
            self.close()
            raise Disconnected(
                f"{self.where} closed the connection during {call.api.name}: {error}"
            ) from error
        except (MalformedResponse, Disconnected):
            self.close()
            raise
        self.under_way.popleft()
        return call, frame

    def _target(self, length: int, frames: Frames | None) -> memoryview:
        if frames is not None:
            return frames.take(length)
        return self._small[:length] if length <= _SMALL_BYTES else memoryview(bytearray(length))

    def _read(self, target: memoryview) -> None:
        done, size = 0, len(target)
        while done < size:
            count = self._socket.recv_into(target[done:], size - done, self._all)
            if count == 0:
                raise Disconnected(f"{self.where} closed the connection")
            done += count
