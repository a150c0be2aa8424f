"""HTTP/1.1 connection of uvicorn, with time limits and the client certificate in the ASGI scope.

uvicorn itself only closes connections that are idle between requests. This class also closes
connections whose request is slow. The head of a request must arrive within `HEAD_SECONDS` after its
first byte, the first head within `HEAD_SECONDS` after the connection. While a body is read, it must
not pause for `SILENCE_SECONDS`.

A listener has at most twice as many connections as concurrent requests. A further connection
replaces one that has no request in progress, of the address with the most connections. Other
addresses can therefore always connect.

This module is separate from `http_listener`, which imports the web packages only when it starts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PEER_CERTIFICATE: Final = "penstock.peer_certificate"
HEAD_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 30.0
CONNECTIONS_PER_REQUEST: Final = 2

_State = Literal["idle", "head", "body"]


class Connections:
    """Open connections of a listener, at most `most`, ordered by their last activity."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[Connection, str] = {}
        """Remote addresses by connection."""

    def enter(self, connection: Connection, address: str) -> bool:
        """Add a new connection, and close one without a request if there are too many.

        Return False if all others have requests; the new connection is then not added.
        """
        if len(self._open) >= self._most:
            counts = Counter(self._open.values())
            silent = (connection for connection in self._open if connection.silent)
            last = max(silent, key=lambda silent: counts[self._open[silent]], default=None)
            if last is None:
                return False
            del self._open[last]
            last.transport.abort()
        self._open[connection] = address
        return True

    def touch(self, connection: Connection) -> None:
        """Move a connection to the end of the order, because it was active."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def leave(self, connection: Connection) -> None:
        self._open.pop(connection, None)


class Connection(HttpToolsProtocol):
    def __init__(
        self, kept: Connections, *, head_bytes_max: int, large_head: bytes, **named: Any
    ) -> None:
        """`large_head` is the body of the response to a head above `head_bytes_max`."""
        super().__init__(**named)
        self._kept = kept
        self._head_bytes_max = head_bytes_max
        self._large_head = large_head
        self._until: asyncio.TimerHandle | None = None
        self._heard = 0.0
        """Loop time at which body bytes last arrived; 0 while waiting for a head."""
        self._state: _State = "idle"
        self._head_bytes = 0
        """Bytes received since the last complete message, while a head is incomplete."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        encrypted = transport.get_extra_info("ssl_object")
        certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        app = self.app

        async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
            scope[PEER_CERTIFICATE] = certificate
            await app(scope, receive, send)

        self.app = with_certificate
        if not self._kept.enter(self, self.client[0] if self.client else ""):
            transport.abort()
            return
        self._until = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self._kept.touch(self)
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._state == "body":
            if not self._heard:
                self._end_watch()
                self._until = self.loop.call_later(SILENCE_SECONDS, self._look)
            self._heard = self.loop.time()
        elif self._state == "head":
            self._head_bytes += len(data)
            if self._head_bytes > self._head_bytes_max:
                self._reject_head()
            elif self._heard or self._until is None:
                self._end_watch()
                self._until = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        else:
            self._end_watch()

    def _reject_head(self) -> None:
        body = self._large_head
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._state = "head"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._state = "body"
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._state = "idle"
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_watch()
        self._kept.leave(self)
        super().connection_lost(exc)

    @property
    def silent(self) -> bool:
        cycle = self.cycle
        return cycle is None or cycle.response_complete

    def _look(self) -> None:
        now = self.loop.time()
        waits = self.flow.read_paused or self.cycle.waiting_for_100_continue
        until = (now if waits else self._heard) + SILENCE_SECONDS
        if until <= now:
            self.transport.abort()
        else:
            self._until = self.loop.call_at(until, self._look)

    def _end_watch(self) -> None:
        self._heard = 0.0
        if self._until is not None:
            self._until.cancel()
            self._until = None
