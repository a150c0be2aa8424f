"""Connection pool of a client: leases for readers and writers, and for single calls.

A reader or writer leases connections for itself, so that one thread's wait for records never delays
a request of another thread. It returns a connection when no call on it is unanswered. At most
`IDLE_CONNECTIONS_MAX` connections per broker are kept idle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.client.connection import Connection
from penstock.client.errors import BrokersUnreachable, ClientClosed
from penstock.client.security import NO_SECURITY, ClientSecurity

IDLE_CONNECTIONS_MAX: Final = 8
"""Maximum number of idle connections per broker that are kept for the next lease."""


class Unanswered(Struct, frozen=True):
    """Oldest unanswered call of a connection.

    `number` is the call's correlation id, or the number of a connection that is being opened.
    """

    where: str
    call: str
    number: int


class ConnectionPool:
    """Thread-safe pool that opens, leases and keeps connections."""

    def __init__(
        self,
        *,
        client_id: str,
        timeout_ms: int,
        connect_timeout_ms: int,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self._client_id = client_id
        self._security = security
        self._timeout_ms = timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._lent: set[Connection] = set()
        self._opening: dict[int, tuple[str, int]] = {}
        self._openings = 0
        self._closed = False

    def lease(self, host: str, port: int) -> Connection:
        """Return a connection that only the caller uses, until it calls `give_back`.

        Raises:
            Disconnected, TimedOut, MalformedResponse: no connection can be opened.
            ClientClosed: the pool is closed.
        """
        with self._lock:
            self._check_open()
            waiting = self._idle.get((host, port))
            connection = waiting.pop() if waiting else None
            if connection is not None:
                self._lent.add(connection)
                return connection
            self._openings += 1
            number = self._openings
            self._opening[number] = (host, port)
        try:
            connection = self._open(host, port)
        finally:
            with self._lock:
                del self._opening[number]
        with self._lock:
            if self._closed:
                connection.close()
            self._check_open()
            self._lent.add(connection)
        return connection

    def _open(self, host: str, port: int) -> Connection:
        connection = Connection(
            host,
            port,
            client_id=self._client_id,
            timeout_ms=self._timeout_ms,
            connect_timeout_ms=self._connect_timeout_ms,
            security=self._security,
        )
        try:
            connection.negotiate()
        except PenstockError:
            connection.close()
            raise
        return connection

    def unanswered(self) -> tuple[Unanswered, ...]:
        """Return the oldest unanswered call of each connection, and connections being opened."""
        with self._lock:
            lent = list(self._lent)
            found = [
                Unanswered(f"{host}:{port}", "a new connection", number)
                for number, (host, port) in self._opening.items()
            ]
        for connection in lent:
            call = connection.oldest_call
            if call is not None:
                found.append(Unanswered(connection.where, call.api.name, call.correlation_id))
        return tuple(found)

    def give_back(self, connection: Connection) -> None:
        """Keep a leased connection for the next lease, or close it if it is unusable."""
        with self._lock:
            self._lent.discard(connection)
            waiting = self._idle.setdefault(connection.address, [])
            usable = not (connection.broken or connection.under_way or self._closed)
            if usable and len(waiting) < IDLE_CONNECTIONS_MAX:
                waiting.append(connection)
                return
        connection.close()

    def drop_idle(self, host: str, port: int) -> None:
        """Close the idle connections to a broker, because they may be broken if another one was."""
        with self._lock:
            waiting = self._idle.pop((host, port), [])
        for connection in waiting:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [item for waiting in self._idle.values() for item in waiting]
            lent = list(self._lent)
            self._idle.clear()
        for connection in idle:
            connection.close()
        for connection in lent:
            connection.shut_down()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client has been closed")


def unreachable(addresses: Iterable[str], last: Exception | None) -> BrokersUnreachable:
    names = ", ".join(addresses)
    return BrokersUnreachable(f"no broker of {names} responds; the last error: {last}")
