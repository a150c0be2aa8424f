"""TLS listener that checks connections before it spends time on a handshake.

`loop.create_server(ssl=…)` would start a handshake with every client, and use the same certificate
as long as it listens. This listener therefore accepts sockets itself. It disconnects an address
with too many failures at once. Handshakes wait if there are too many from one address or in total.
Each handshake uses the certificate that is current then, and has a timeout of `HANDSHAKE_SECONDS`.
The result is an ordinary connection over asyncio's TLS transport.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from penstock.base.pause import pause
from penstock.security.addresses import counted

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
ACCEPT_BURST: Final = 8
"""Most connections that are accepted before the event loop handles other events."""
SHUTDOWN_SECONDS: Final = 2.0
"""Timeout for the peer's close_notify when a connection is closed."""
_ESTABLISHED: Final = 1
"""First byte of `TCP_INFO` while neither side has closed the connection (tcp(7))."""
_WITHOUT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST"})
"""OpenSSL's reasons for rejecting a first message that is not TLS."""
_WARNING_SECONDS: Final = 10.0
"""Least time between two warnings about clients without TLS; others are logged at level INFO."""
_PAUSE_SECONDS: Final = 0.5
"""Pause before accepting again after an error, such as too many open files."""


class Gate(Protocol):
    """Port for the limits by address.

    `admitted` and `crowded` check the limits, `entered` and `left` count an unauthenticated
    connection, and the delays are seconds that a handshake must wait (None: close the connection).
    """

    def admitted(self, address: str) -> bool: ...
    def crowded(self, address: str) -> bool: ...
    def entered(self, address: str) -> None: ...
    def left(self, address: str) -> None: ...
    def handshake_delay(self, address: str) -> float | None: ...
    def turn_delay(self) -> float | None: ...
    def handshake_failed(self, address: str) -> None: ...


class TlsServer:
    """Server of a TLS listener; it belongs to the event loop."""

    def __init__(
        self,
        *,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        gate: Gate,
        displaces: bool = False,
    ) -> None:
        """Create the server without binding.

        With `displaces`, a new connection of an address at its limit ends that address's oldest
        handshake. Clients that send nothing then cannot block health checks.
        """
        self._displaces = displaces
        self._protocol = protocol
        self._context = context
        self._gate = gate
        self._sockets: list[socket.socket] = []
        self._shaking: dict[asyncio.Task[None], str] = {}
        """Running handshakes, oldest first, with their addresses."""
        self._warn_at = 0.0

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._sockets)

    async def bind(
        self, host: str | None, port: int, backlog: int, *, reuse_port: bool = False
    ) -> None:
        """Bind all addresses of a host without accepting connections; None means every interface.

        With `reuse_port`, another process may listen on the same port.

        Raises:
            OSError: an address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                made = socket.socket(family, kind, protocol)
                self._sockets.append(made)
                made.setblocking(False)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if len(self._sockets) > 1 and port == 0:
                    address = (address[0], self._sockets[0].getsockname()[1], *address[2:])
                made.bind(address)
                made.listen(backlog)
        except OSError:
            self.close()
            raise

    async def start_serving(self) -> None:
        """Start to accept connections."""
        for bound in self._sockets:
            asyncio.get_running_loop().add_reader(bound, self._on_arrivals, bound)

    def close(self) -> None:
        """Stop accepting and cancel handshakes; established connections stay open.

        Repeated calls do nothing.
        """
        for task in self._shaking:
            task.cancel()
        sockets, self._sockets = self._sockets, []
        for bound in sockets:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()

    def _on_arrivals(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_BURST):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.error("cannot accept connections, retrying: %s", error)
                loop.remove_reader(listening)
                loop.call_later(_PAUSE_SECONDS, self._resume, listening)
                return
            accepted.setblocking(False)
            host = str(address[0])
            if self._displaces and self._gate.crowded(host):
                self._end_oldest(counted(host))
            if not self._gate.admitted(host) or self._has_left(accepted, host):
                accepted.close()
                continue
            self._gate.entered(host)
            task = loop.create_task(self._shake_hands(accepted, host))
            self._shaking[task] = host
            task.add_done_callback(partial(self._shaken, accepted, host))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._on_arrivals, listening)

    def _end_oldest(self, address: str) -> None:
        for task, host in self._shaking.items():
            if counted(host) == address:
                del self._shaking[task]
                task.cancel()
                self._gate.left(host)
                return

    def _has_left(self, accepted: socket.socket, host: str) -> bool:
        """Return whether the peer has already closed the connection; count it as a failed
        handshake.
        """
        state = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        left = state != _ESTABLISHED
        if left:
            self._gate.handshake_failed(host)
        return left

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        """Complete the TLS handshake of an accepted socket, after waiting if there are too many."""
        try:
            waited = await _waited(self._gate.handshake_delay(host))
            waited = waited and await _waited(self._gate.turn_delay())
            if waited and not self._has_left(accepted, host):
                await self._connect(accepted)
            else:
                accepted.close()
        except OSError as error:  # a TLS error, a timeout, or a network error
            self._log_failure(host, error)
            self._gate.handshake_failed(host)
            accepted.close()

    def _log_failure(self, host: str, error: OSError) -> None:
        """Log a failed handshake; warn about a client without TLS, but not too often."""
        now = asyncio.get_running_loop().time()
        if getattr(error, "reason", None) not in _WITHOUT_TLS or now < self._warn_at:
            logger.info("%s: TLS handshake failed: %s", host, error)
            return
        self._warn_at = now + _WARNING_SECONDS
        port = self._sockets[0].getsockname()[1] if self._sockets else 0
        logger.warning(
            "a client at %s connected without TLS to port %d, which expects TLS."
            " Set its security.protocol to SSL or SASL_SSL",
            host,
            port,
        )

    def _shaken(self, accepted: socket.socket, host: str, task: asyncio.Task[None]) -> None:
        if self._shaking.pop(task, None) is not None:
            self._gate.left(host)
        if task.cancelled():  # maybe before it began
            accepted.close()

    async def _connect(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(
            self._protocol,
            accepted,
            ssl=self._context(),
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )


async def _waited(delay: float | None) -> bool:
    """Wait for the delay; return False at once if it is None and the connection must be closed."""
    if delay:
        await pause(delay)
    return delay is not None
