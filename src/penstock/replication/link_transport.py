"""Transport of connections between brokers: plain TCP; subclasses add TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl

Address = tuple[str, int]


class LinkServer(Protocol):
    """Listening socket for other brokers' connections, as `LinkTransport.listen` returns it."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...
    def close(self) -> None: ...


class LinkTransport:
    """Transport of connections between brokers: plain TCP; a subclass adds TLS.

    With `proven`, brokers of releases without proofs are rejected.
    """

    def __init__(self, *, proven: bool = True) -> None:
        self.proven = proven

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS context for outgoing connections; None without TLS."""
        return None

    async def listen(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> LinkServer:
        """Accept connections.

        Raises:
            OSError: the address cannot be bound.
        """
        return await asyncio.get_running_loop().create_server(protocol, host, port)

    def name_of(self, address: Address) -> str | None:
        """Return the name that the other side's certificate must have."""
        return None if self.context is None else address[0]
