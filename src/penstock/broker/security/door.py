"""What connections see of the broker until they have authenticated, and what follows from that.

A connection of a listener with authentication is owned by a `Door`, not by the server: frames are
small there, one at a time, and only requests of authentication are let through. Who has
authenticated is given to the server, and costs no more than a connection without any of this; only
sessions that end, and those that authenticate anew, have each request looked at (`Sessions`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.security.authentication import NotAuthenticated

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.broker.connection import Connection, ConnectionOwner

FRAME_BYTES_MAX: Final = 64 << 10
"""Largest request before authentication."""


class Doorkeeper(Protocol):
    """Who decides about connections (`SecurityService`)."""

    def arrived(self, connection: Connection) -> bool: ...
    def gone(self, connection: Connection) -> None: ...


class _Shared:
    """Everything but requests is the server's."""

    def __init__(self, owner: ConnectionOwner, keeper: Doorkeeper) -> None:
        self._owner = owner
        self._keeper = keeper
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
        return self._owner.connected(connection) and self._keeper.arrived(connection)

    def disconnected(self, connection: Connection) -> None:
        self._keeper.gone(connection)
        self._owner.disconnected(connection)

    def rejected(self, connection: Connection, error: Exception) -> None:
        self._owner.rejected(connection, error)

    def request(self, connection: Connection, frame: memoryview, lease: Lease | None) -> object:
        """Let a request through that the connection may make now.

        Raises:
            NotAuthenticated: it may not; the connection must be closed.
        """
        authentication = connection.authentication
        if authentication is None:
            raise NotAuthenticated("a request on a connection that nobody has let in")
        authentication.check(int.from_bytes(frame[:2], "big", signed=True), self.now())
        return self._owner.request(connection, frame, lease)


class Door(_Shared):
    """Before authentication."""

    def __init__(self, owner: ConnectionOwner, keeper: Doorkeeper) -> None:
        super().__init__(owner, keeper)
        self.frame_bytes_max = min(FRAME_BYTES_MAX, owner.frame_bytes_max)
        self.in_flight_max = 1


class Sessions(_Shared):
    """After it, for those whose session ends, and while somebody authenticates anew."""
