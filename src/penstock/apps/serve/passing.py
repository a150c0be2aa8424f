"""Requests for the console at a shared admin address, passed to one broker with all their headers.

The first broker that accepts a connection serves them; its pages show the whole cluster. Responses
are streamed, because live figures have no end. The front has checked the Host and Origin headers,
so it sends none of the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
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
READ_BYTES: Final = 64 << 10
OWN_REQUEST_HEADERS: Final = frozenset({b"host", b"origin", b"connection", b"transfer-encoding"})
OWN_RESPONSE_HEADERS: Final = frozenset({b"connection", b"transfer-encoding"})


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
                return await _sent(address, head, request)
            except ConnectionRefusedError as error:
                trouble = f"broker {broker}: {error}"
            except (OSError, TimeoutError, h11.ProtocolError, ClientDisconnect) as error:
                trouble = f"broker {broker}: {str(error) or type(error).__name__}"
                break
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "broker_not_available", trouble)


async def _sent(address: Address, head: h11.Request, request: Request) -> Response:
    machine = h11.Connection(h11.CLIENT)
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(machine.send(head) or b"")
        async for piece in request.stream():
            writer.write(machine.send(h11.Data(data=piece)) or b"")
            await writer.drain()
        writer.write(machine.send(h11.EndOfMessage()) or b"")
        event = await _next(machine, reader)
        if not isinstance(event, h11.Response):
            raise OSError("the connection was closed before a response")
    except BaseException:
        writer.close()
        raise
    response = StreamingResponse(_content(machine, reader, writer), event.status_code)
    response.raw_headers = _without(event.headers, OWN_RESPONSE_HEADERS)
    return response


async def _content(
    machine: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    try:
        while isinstance(event := await _next(machine, reader), h11.Data):
            yield bytes(event.data)
    finally:
        writer.close()


async def _next(machine: h11.Connection, reader: asyncio.StreamReader) -> object:
    """Return the next event of a response; raises OSError, TimeoutError, h11.ProtocolError."""
    async with asyncio.timeout(SECONDS):
        while (event := machine.next_event()) is h11.NEED_DATA:
            machine.receive_data(await reader.read(READ_BYTES))
    return event


def _without(
    headers: Collection[tuple[bytes, bytes]], left_out: Collection[bytes]
) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in left_out]
