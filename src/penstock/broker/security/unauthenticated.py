"""Owners of connections that have not authenticated, or whose session expires.

A connection passes its requests to its owner. `Unauthenticated` owns new connections of a listener
with authentication. It accepts only requests for authentication, one at a time, in small frames.
The server owns a connection after it has authenticated, so that requests are not checked any more.
`Sessions` owns authenticated connections whose session expires, and those that reauthenticate. It
checks each of their requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.security.authentication import NotAuthenticated

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.broker.connection import Connection, ConnectionOwner

FRAME_BYTES_MAX: Final = 64 << 10
"""Largest request frame before authentication."""


class Authenticator(Protocol):
    """Interface of `SecurityService` for the owners of connections."""

    def arrived(self, connection: Connection) -> bool: ...
    def gone(self, connection: Connection) -> None: ...


class _Shared:
    """Owner that checks requests, and delegates everything else to the server."""

    def __init__(self, owner: ConnectionOwner, authenticator: Authenticator) -> None:
        self._owner = owner
        self._authenticator = authenticator
        self.scratch = owner.scratch
        self.pool = owner.pool
        self.now: Callable[[], float] = owner.now
        self.frame_bytes_max = owner.frame_bytes_max
        self.in_flight_max = owner.in_flight_max

    @property
    def bytes_in(self) -> int:
        return self._owner.bytes_in

    @bytes_in.setter
    def bytes_in(self, count: int) -> None:
        self._owner.bytes_in = count

    @property
    def bytes_out(self) -> int:
        return self._owner.bytes_out

    @bytes_out.setter
    def bytes_out(self, count: int) -> None:
        self._owner.bytes_out = count

    def connected(self, connection: Connection) -> bool:
        return self._owner.connected(connection) and self._authenticator.arrived(connection)

    def disconnected(self, connection: Connection) -> None:
        self._authenticator.gone(connection)
        self._owner.disconnected(connection)

    def rejected(self, connection: Connection, error: Exception) -> None:
        self._owner.rejected(connection, error)

    def request(self, connection: Connection, frame: memoryview, lease: Lease | None) -> object:
        """Pass a request to the server if the connection may send it; raises NotAuthenticated."""
        authentication = connection.authentication
        if authentication is None:
            raise NotAuthenticated("a request on a connection without authentication state")
        authentication.check(int.from_bytes(frame[:2], "big", signed=True), self.now())
        return self._owner.request(connection, frame, lease)


class Unauthenticated(_Shared):
    """Owner of connections before authentication."""

    def __init__(self, owner: ConnectionOwner, authenticator: Authenticator) -> None:
        super().__init__(owner, authenticator)
        self.frame_bytes_max = min(FRAME_BYTES_MAX, owner.frame_bytes_max)
        self.in_flight_max = 1


class Sessions(_Shared):
    """Owner of authenticated connections whose session expires, or that reauthenticate."""
