"""Binds a broker's listeners, with TLS or without; what accepts is the same to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.listeners import REPLICATION
from penstock.replication.links import LinkServer, LinkTransport

if TYPE_CHECKING:
    import ssl

    from penstock.broker.connection import Connection
    from penstock.broker.listeners import Address, Listener
    from penstock.broker.security.service import SecurityService
    from penstock.security.files import Reloading
    from penstock.security.listeners.files import TlsContexts

_LINKS_BACKLOG: Final = 128


class Server(LinkServer, Protocol):
    """Accepts connections, once it is told to."""

    async def start_serving(self) -> None: ...


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
                server = made = door.entrance.tls_server(name, contexts, make)
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
        server = self._door.entrance.tls_server(REPLICATION, self._contexts, protocol)
        await server.bind(host, port, _LINKS_BACKLOG)
        await server.start_serving()
        return server


def link_transport(door: SecurityService) -> LinkTransport:
    """How links are carried: by TLS if Kafka's calls between brokers are."""
    contexts = door.tls_of(door.between_brokers)
    if contexts is not None:
        return _TlsLinks(door, contexts)
    return LinkTransport(proven=any(one.listener.secured for one in door.listeners.values()))
