"""Binds a broker's listeners, with TLS or without; what accepts is the same to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.listeners import REPLICATION
from penstock.broker.security.tls_server import TlsServer
from penstock.replication.links import LinkServer, LinkTransport

if TYPE_CHECKING:
    import ssl

    from penstock.broker.connection import Connection
    from penstock.broker.listeners import Address, Listener
    from penstock.broker.security.materials import TlsContexts
    from penstock.broker.security.service import SecurityService
    from penstock.security.files import Reloading

_LINKS_BACKLOG: Final = 128


class Server(LinkServer, Protocol):
    """Accepts connections, once it is told to."""

    async def start_serving(self) -> None: ...


class _Gate:
    """The door, for the addresses of one listener (`tls_server.Gate`)."""

    def __init__(self, door: SecurityService, listener: str, now: Callable[[], float]) -> None:
        self._door = door
        self._listener = listener
        self._now = now

    def admitted(self, address: str) -> bool:
        return self._door.admitted(self._listener, address)

    def entered(self, address: str) -> None:
        self._door.limits.entered(address)

    def left(self, address: str) -> None:
        self._door.limits.left(address)

    def handshake_delay(self, address: str) -> float | None:
        return self._door.limits.handshake_delay(address, self._now())

    def handshake_failed(self, address: str) -> None:
        self._door.handshake_failed(self._listener, address)


def tls_server(
    door: SecurityService,
    listener: str,
    contexts: Reloading[TlsContexts],
    protocol: Callable[[], asyncio.BaseProtocol],
) -> TlsServer:
    """What accepts connections with the certificate of a listener."""
    return TlsServer(
        protocol=protocol,
        context=lambda: contexts.current.server,
        gate=_Gate(door, listener, asyncio.get_running_loop().time),
    )


async def bind_all(
    listeners: Sequence[Listener],
    door: SecurityService,
    connection: Callable[[str], Connection],
    *,
    backlog: int,
    bound: dict[str, Address],
) -> list[Server]:
    """Bind listeners, not yet accepting; `bound` gets their addresses by their names.

    Raises:
        OSError: an address cannot be bound; the others are closed again.
    """
    loop = asyncio.get_running_loop()
    servers: list[Server] = []
    try:
        for listener in listeners:
            name, host, port = listener.name, listener.host or None, listener.port

            def make(name: str = name) -> Connection:
                return connection(name)

            contexts = door.tls_of(name)
            if contexts is None:
                server: Server = await loop.create_server(
                    make, host, port, backlog=backlog, start_serving=False
                )
            else:
                server = made = tls_server(door, name, contexts, make)
                await made.bind(host, port, backlog)
            servers.append(server)
            address = server.sockets[0].getsockname()
            bound.setdefault(name, (str(address[0]), int(address[1])))
    except OSError:
        for server in servers:
            server.close()
        raise
    return servers


class _TlsLinks(LinkTransport):
    """Links of replicated partitions, with the certificate of the listener between brokers."""

    def __init__(self, door: SecurityService, contexts: Reloading[TlsContexts]) -> None:
        super().__init__()
        self._door = door
        self._contexts = contexts

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._contexts.current.client

    async def listen(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Server:
        server = tls_server(self._door, REPLICATION, self._contexts, protocol)
        await server.bind(host, port, _LINKS_BACKLOG)
        await server.start_serving()
        return server


def link_transport(door: SecurityService) -> LinkTransport:
    """How links are carried: by TLS if Kafka's calls between brokers are."""
    contexts = door.tls_of(door.between_brokers)
    if contexts is not None:
        return _TlsLinks(door, contexts)
    return LinkTransport(proven=any(one.listener.secured for one in door.listeners.values()))
