"""An HTTP proxy on loopback that does to requests what a network and a tired store do.

It stands before one server and passes each request on, unless its `plan` says otherwise: later, not
at all, without the answer, with a part of the answer, slowly, or with a reset. One connection
serves one request. Clients name the proxy as their host; signatures hold, since the head of a
request goes through as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

HEAD_BYTES_MAX = 64 << 10
PIECE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault of one request. With nothing set it goes through."""

    latency_seconds: float = 0.0
    status: int | None = None
    """Answered with this instead of being passed on."""
    code: str = "SlowDown"
    """S3's word for `status`."""
    drop_answer: bool = False
    """Passed on; the connection is closed instead of the answer."""
    truncate_bytes: int | None = None
    """Passed on; the connection is closed after so many bytes of the answer's body."""
    bytes_per_second: int | None = None
    """Passed on; the answer's body comes at this pace."""
    reset: bool = False
    """Reset before it is passed on."""
    corrupt: bool = False
    """Passed on with another first byte of its body."""
    hold: asyncio.Event | None = field(default=None)
    """Passed on when this is set."""


@dataclass(frozen=True, slots=True)
class Request:
    """Received request: its number from 0, its method, its path with the query."""

    number: int
    method: str
    path: str


Plan = Callable[[Request], Fault]
THROUGH = Fault()


def through(_request: Request) -> Fault:
    """The plan of a healthy network."""
    return THROUGH


def share(part: float, fault: Fault, *, seed: int = 1, otherwise: Fault = THROUGH) -> Plan:
    """A plan by which this part of the requests, chosen by chance, gets the fault."""
    dice = random.Random(seed)
    return lambda _request: fault if dice.random() < part else otherwise


def first(count: int, fault: Fault, *, method: str = "") -> Plan:
    """A plan by which the first requests of a method (of all: "") get the fault."""
    left = itertools.chain([fault] * count, itertools.repeat(THROUGH))
    return lambda request: next(left) if method in ("", request.method) else THROUGH


class FaultProxy:
    """The proxy before one server; `plan` may be changed at any time."""

    def __init__(self, host: str, port: int, plan: Plan = through) -> None:
        self.plan = plan
        self.requests: list[Request] = []
        self._target = (host, port)
        self._numbers = itertools.count()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        await asyncio.sleep(0)  # transports that were aborted are closed in the loop's next turn

    def count(self, method: str = "", *, containing: str = "") -> int:
        """Requests so far, of one method, with this in their path."""
        return sum(
            method in ("", request.method) and containing in request.path
            for request in self.requests
        )

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._request(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()  # whether or not the other side reads what is left

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _head(reader)
        body = await reader.readexactly(int(_header(head, b"content-length") or 0))
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        request = Request(next(self._numbers), method, path)
        self.requests.append(request)
        fault = self.plan(request)
        if fault.latency_seconds:
            await asyncio.sleep(fault.latency_seconds)
        if fault.hold is not None:
            await fault.hold.wait()
        if fault.reset:
            _reset(writer)
            return
        if fault.status is not None:
            await _refuse(writer, method, fault.status, fault.code)
            return
        if fault.corrupt and body:
            body = bytes([body[0] ^ 0xFF]) + body[1:]
        await self._pass_on(head, body, fault, writer)

    async def _pass_on(
        self, head: bytes, body: bytes, fault: Fault, writer: asyncio.StreamWriter
    ) -> None:
        answers, server = await asyncio.open_connection(*self._target)
        try:
            server.write(head[:-2] + b"connection: close\r\n\r\n" + body)
            await server.drain()
            answer = await _head(answers)
            if fault.drop_answer:
                return
            writer.write(answer)
            await _copy(answers, writer, fault)
        finally:
            server.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault) -> None:
    """Pass a body on until the server closes, or as the fault says."""
    left = fault.truncate_bytes
    pace = fault.bytes_per_second
    size = PIECE_BYTES if pace is None else max(1, min(PIECE_BYTES, pace // 20))
    while piece := await reader.read(size if left is None else min(size, left)):
        writer.write(piece)
        await writer.drain()
        if pace is not None:
            await asyncio.sleep(len(piece) / pace)
        if left is not None:
            left -= len(piece)
            if not left:
                return


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > HEAD_BYTES_MAX:
        raise ConnectionError("the head of a message is too long")
    return head


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip()
    return None


async def _refuse(writer: asyncio.StreamWriter, method: str, status: int, code: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {code}\r\ncontent-type: application/xml\r\nconnection: close\r\n"
    length = f"content-length: {len(body)}\r\n\r\n"
    writer.write((head + length).encode() + (b"" if method == "HEAD" else body))
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
