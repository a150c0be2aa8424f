"""Baseline of a Unix stream socket between two processes: throughput, or round trips.

    python -m penstock.apps.loads.unix_socket MODE PATH

With `take` the process receives a requested number of bytes into one buffer and then answers,
repeatedly. No protocol over such a socket can exceed this throughput. With `blocking` it echoes
from a blocking socket, with `uvloop` from uvloop: the shortest possible round trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import uvloop

from penstock.base.system import SYSTEM_CLOCK

BUFFER_BYTES = 4 << 20
ORDER = struct.Struct(">QQ")
ECHO_BYTES = 64 << 10


def listen(path: str) -> socket.socket:
    """Return a listening socket with large buffers."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    enlarge(listener)
    listener.bind(path)
    listener.listen()
    return listener


def connect(path: str) -> socket.socket:
    """Return a connection with large buffers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    enlarge(connection)
    connection.connect(path)
    return connection


def enlarge(sock: socket.socket) -> None:
    """Request socket buffers of 4 MiB."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


class RawLimit:
    """Benchmark of a raw Unix socket: writes to a process that runs `take`, and times it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def write(self, payload: bytes, count: int, read_bytes: int) -> float:
        """Write `payload` `count` times; return MB/s until the reader has received everything.

        `read_bytes` is the size of the reader's buffer.
        """
        send = self._connection.sendall
        begun = self._order(len(payload) * count, read_bytes)
        for _ in range(count):
            send(payload)
        return self._arrived(begun, len(payload) * count)

    def write_each(self, payloads: Sequence[bytes], read_bytes: int) -> float:
        """Write each payload once, and return the rate as `write` does."""
        send, size = self._connection.sendall, sum(map(len, payloads))
        begun = self._order(size, read_bytes)
        for payload in payloads:
            send(payload)
        return self._arrived(begun, size)

    def write_pieces(self, pieces: Sequence[bytes], count: int, read_bytes: int) -> float:
        """Write all pieces by one call, `count` times, and return the rate as `write` does."""
        send, size = self._connection.sendmsg, sum(map(len, pieces))
        begun = self._order(size * count, read_bytes)
        for _ in range(count):
            if send(pieces) != size:
                raise ConnectionError("a blocking socket accepted only a part of the data")
        return self._arrived(begun, size * count)

    def _order(self, size_bytes: int, read_bytes: int) -> float:
        begun = SYSTEM_CLOCK.monotonic()
        self._connection.sendall(ORDER.pack(size_bytes, read_bytes))
        return begun

    def _arrived(self, begun: float, size_bytes: int) -> float:
        if self._connection.recv(1) != b"+":
            raise ConnectionError("the reader closed the connection")
        return size_bytes / (SYSTEM_CLOCK.monotonic() - begun) / 1e6


def take(connection: socket.socket) -> None:
    """Receive requested numbers of bytes and acknowledge each, until the peer closes."""
    memory = memoryview(bytearray(BUFFER_BYTES))
    while order := connection.recv(ORDER.size, socket.MSG_WAITALL):
        left, read_bytes = ORDER.unpack(order)
        buffer = memory[:read_bytes]
        while left:
            left -= connection.recv_into(buffer)
        connection.sendall(b"+")
    connection.close()


@contextlib.contextmanager
def forked(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Fork a process that runs `serve` on one end of a socket pair; yield the other end."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (near, far):
        enlarge(end)
    child = os.fork()
    if not child:
        near.close()
        serve(far)
        os._exit(0)
    far.close()
    try:
        yield near
    finally:
        near.close()
        os.waitpid(child, 0)


def echo(connection: socket.socket) -> None:
    """Send received bytes back until the peer closes."""
    while data := connection.recv(ECHO_BYTES):
        connection.sendall(data)
    connection.close()


class UvloopEcho(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write

    def data_received(self, data: bytes) -> None:
        self._write(data)


async def _serve_uvloop(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(UvloopEcho, sock=listener)
    print("ready", flush=True)
    await server.serve_forever()


def main() -> None:
    mode, path = sys.argv[1:]
    listener = listen(path)
    if mode == "uvloop":
        with contextlib.suppress(asyncio.CancelledError):
            uvloop.run(_serve_uvloop(listener))
        return
    serve = {"take": take, "blocking": echo}[mode]
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
