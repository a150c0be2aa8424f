"""Requests that the shared admin address sends to brokers, each over a connection of its own.

Requests for the console are passed with all their headers to the first broker that accepts a
connection; its pages show the whole cluster. Responses are streamed, because live figures have no
end. The front has checked the Host and Origin headers, so it sends none of the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import h11
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from penstock.base.http_routes import error_response
from penstock.security.listeners.forwarding import forwarded

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.net.listeners import Address

SECONDS: Final = 120.0
"""Longest wait for the beginning of a response, and for each further part of it."""
READ_BYTES: Final = 256 << 10
OWN_REQUEST_HEADERS: Final = frozenset({b"host", b"origin", b"connection", b"transfer-encoding"})
OWN_RESPONSE_HEADERS: Final = frozenset({b"connection", b"transfer-encoding"})


class Exchange:
    """Request that was sent to a broker, and the events of its response."""

    def __init__(
        self,
        machine: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._machine = machine
        self._reader = reader
        self._writer = writer

    @classmethod
    async def sent(
        cls, address: Address, head: h11.Request, body: AsyncIterator[bytes] | None
    ) -> Exchange:
        """Send a request; raises OSError, h11.ProtocolError."""
        machine = h11.Connection(h11.CLIENT)
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(machine.send(head) or b"")
            with suppress(ConnectionError):  # rejected early: the response has the reason
                async for piece in body or _nothing():
                    writer.write(machine.send(h11.Data(data=piece)) or b"")
                    await writer.drain()
                writer.write(machine.send(h11.EndOfMessage()) or b"")
        except BaseException:
            writer.close()
            raise
        return cls(machine, reader, writer)

    async def next(self) -> object:
        """Return the next event of the response; raises OSError, h11.ProtocolError."""
        while (event := self._machine.next_event()) is h11.NEED_DATA:
            self._machine.receive_data(await self._reader.read(READ_BYTES))
        return event

    def close(self) -> None:
        self._writer.close()


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


class ConsolePasser:
    """Sender of requests to the first of `brokers` that accepts a connection."""

    def __init__(self, brokers: Mapping[int, Address], secret: bytes) -> None:
        self._brokers = brokers
        self._secret = secret

    async def passed(self, request: Request) -> Response:
        headers = [
            (b"host", b"localhost"),
            (b"connection", b"close"),
            *_without(request.headers.raw, OWN_REQUEST_HEADERS),
            *forwarded(request.scope, self._secret),
        ]
        target = request.scope["raw_path"] + b"?" + request.scope["query_string"]
        head = h11.Request(method=request.method, target=target.rstrip(b"?"), headers=headers)
        trouble = ""
        for broker, address in self._brokers.items():
            try:
                return await _streamed(address, head, request)
            except ConnectionRefusedError as error:
                trouble = f"broker {broker}: {error}"
            except (OSError, TimeoutError, h11.ProtocolError, ClientDisconnect) as error:
                trouble = f"broker {broker}: {str(error) or type(error).__name__}"
                break
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "broker_not_available", trouble)


async def _streamed(address: Address, head: h11.Request, request: Request) -> Response:
    exchange = await Exchange.sent(address, head, request.stream())
    try:
        event = await _next(exchange)
        if not isinstance(event, h11.Response):
            raise OSError("the connection was closed before a response")
    except BaseException:
        exchange.close()
        raise
    response = StreamingResponse(_content(exchange), event.status_code)
    response.raw_headers = _without(event.headers, OWN_RESPONSE_HEADERS)
    return response


async def _content(exchange: Exchange) -> AsyncIterator[bytes]:
    try:
        while isinstance(event := await _next(exchange), h11.Data):
            yield bytes(event.data)
    finally:
        exchange.close()


async def _next(exchange: Exchange) -> object:
    async with asyncio.timeout(SECONDS):
        return await exchange.next()


def _without(
    headers: Collection[tuple[bytes, bytes]], left_out: Collection[bytes]
) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in left_out]
