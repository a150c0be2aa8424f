"""Binding of a broker's listeners, with or without TLS."""

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
    """Server that accepts connections after `start_serving`."""

    async def start_serving(self) -> None: ...


async def bind_all(
    listeners: Sequence[Listener],
    security_service: SecurityService,
    connection: Callable[[str], Connection],
    *,
    backlog: int,
    bound: dict[str, Address],
) -> list[Server]:
    """Bind the listeners without accepting connections yet; raises OSError.

    `connection` constructs the protocol of a connection by its listener's name. The bound addresses
    are added to `bound`.
    """
    loop = asyncio.get_running_loop()
    servers: list[Server] = []
    try:
        for listener in listeners:
            name, host, port = listener.name, listener.host or None, listener.port

            def make(name: str = name) -> Connection:
                return connection(name)

            contexts = security_service.tls_of(name)
            if contexts is None:
                server: Server = await loop.create_server(
                    make, host, port, backlog=backlog, start_serving=False
                )
            else:
                server = made = security_service.listener_group.tls_server(name, contexts, make)
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
    """Replication links over TLS, with the certificate of the inter-broker listener."""

    def __init__(self, security_service: SecurityService, contexts: Reloading[TlsContexts]) -> None:
        super().__init__()
        self._security = security_service
        self._contexts = contexts

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._contexts.current.client

    async def listen(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Server:
        server = self._security.listener_group.tls_server(REPLICATION, self._contexts, protocol)
        await server.bind(host, port, _LINKS_BACKLOG)
        await server.start_serving()
        return server


def link_transport(security_service: SecurityService) -> LinkTransport:
    """Return the transport of replication links: TLS if the inter-broker listener has TLS."""
    contexts = security_service.tls_of(security_service.between_brokers)
    if contexts is not None:
        return _TlsLinks(security_service, contexts)
    return LinkTransport(
        proven=any(materials.listener.secured for materials in security_service.listeners.values())
    )
