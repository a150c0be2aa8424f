"""Listening with TLS: connections are looked at before a handshake costs anything.

`loop.create_server(ssl=…)` would begin a handshake with whoever connects, and have one certificate
for as long as it listens. So sockets are accepted here: an address with too many failures is closed
at once, one with too many handshakes waits its turn, and each handshake takes the certificate that
is in use by then. A handshake has `HANDSHAKE_SECONDS`. What comes out is a connection like any
other, over asyncio's TLS transport.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from penstock.base.pause import pause

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
SHUTDOWN_SECONDS: Final = 2.0
"""How long the peer has to say that it has seen the end."""
_PAUSE_SECONDS: Final = 0.5
"""Before accepting again, when there are no file descriptors."""


class Gate(Protocol):
    """Who decides about addresses; `now` is its own."""

    def admitted(self, address: str) -> bool: ...
    def entered(self, address: str) -> None: ...
    def left(self, address: str) -> None: ...
    def handshake_delay(self, address: str) -> float | None: ...
    def handshake_failed(self, address: str) -> None: ...


class TlsServer:
    """One listener with TLS; belongs to the event loop."""

    def __init__(
        self,
        *,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        gate: Gate,
    ) -> None:
        self._protocol = protocol
        self._context = context
        self._gate = gate
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._shaking: set[asyncio.Task[None]] = set()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._sockets)

    async def bind(self, host: str | None, port: int, backlog: int) -> None:
        """Bind the addresses of a host, without accepting yet; None is every interface.

        Raises:
            OSError: one cannot be bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                made = socket.socket(family, kind, protocol)
                self._sockets.append(made)
                made.setblocking(False)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(one)) for one in self._sockets]

    def close(self) -> None:
        """Accept nothing more, and end handshakes; connections stay. Idempotent."""
        for task in [*self._accepting, *self._shaking]:
            task.cancel()
        for one in self._sockets:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                logger.error("no connection can be accepted for now: %s", error)
                await pause(_PAUSE_SECONDS)
                continue
            host = str(address[0])
            if not self._gate.admitted(host):
                accepted.close()
                continue
            self._gate.entered(host)
            task = loop.create_task(self._shake_hands(accepted, host))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        """From an accepted socket to a connection, which has been told of by then."""
        try:
            delay = self._gate.handshake_delay(host)
            if delay is None:
                accepted.close()
                return
            if delay:
                await pause(delay)
            await self._connect(accepted)
        except OSError as error:  # of TLS, of its time limit, of the network
            logger.info("%s: no TLS: %s", host, error)
            self._gate.handshake_failed(host)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._gate.left(host)

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
