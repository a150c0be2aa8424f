"""One record, one request in flight, over a plain socket: what a broker adds to an echo.

The request is a Produce of version 8 with one batch of one record, built once and sent again and
again; the client does nothing but write and read, so that every broker and the bare uvloop echo
are measured by the same hand. The echo gets and returns as many bytes as a broker does.
"""

from __future__ import annotations

import socket
import statistics
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

from crc32c import crc32c

ECHO = """
import asyncio, sys, uvloop
class Echo(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport; self.left = 0
    def data_received(self, data):
        # a request of the size that it names, an answer of the size that it asks for
        self.left += len(data)
        if self.left >= int(sys.argv[1]):
            self.left -= int(sys.argv[1])
            self.transport.write(bytes(int(sys.argv[2])))
async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Microseconds: the median, and what one in a hundred exceeds."""

    p50: float
    p99: float


def produce_request(topic: str, value_bytes: int) -> bytes:
    """A framed Produce request, acks=all, with one batch of one record for partition 0."""
    now_ms = int(time.time() * 1000)
    body = b"\x00\x00\x00\x01" + _varint(value_bytes) + bytes(value_bytes) + b"\x00"
    record = _varint(len(body)) + body
    covered = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    batch = struct.pack(">ibI", -1, 2, crc32c(covered)) + covered
    batch = struct.pack(">qi", 0, len(batch)) + batch
    name = topic.encode()
    request = struct.pack(">hhih", 0, 8, 1, -1) + struct.pack(">hhii", -1, -1, 30_000, 1)
    request += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    return struct.pack(">i", len(request)) + request


def round_trips(port: int, request: bytes, *, count: int, answer_bytes: int = 0) -> RoundTrip:
    """Send and wait, `count` times over after a tenth of that to warm up.

    `answer_bytes` is the size of an answer without a length in front (the echo's).
    """
    durations = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(count + count // 10):
            begun = time.perf_counter_ns()
            connection.sendall(request)
            answer = _answer(connection, answer_bytes)
            if number >= count // 10:
                durations.append((time.perf_counter_ns() - begun) / 1000)
            if not answer_bytes and number == 0:
                _check(answer)
    ordered = sorted(durations)
    return RoundTrip(p50=statistics.median(ordered), p99=ordered[int(len(ordered) * 0.99)])


class EchoServer:
    """A bare uvloop server in a process of its own."""

    def __init__(self, request_bytes: int, answer_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ECHO, str(request_bytes), str(answer_bytes)],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def answers_api_versions(port: int) -> bool:
    """Whether a broker answers at all: what a start-up is measured up to."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(_answer(connection, 0)) > 0
    except OSError:
        return False


def _answer(connection: socket.socket, size: int) -> bytes:
    answer = connection.recv(65536)
    if not answer:
        raise ConnectionError("the server closed the connection")
    if not size:
        while len(answer) < 4:
            answer += connection.recv(65536)
        size = 4 + int.from_bytes(answer[:4], "big")
    while len(answer) < size:
        answer += connection.recv(65536)
    return answer


def _check(answer: bytes) -> None:
    """The error code of the only partition: after the lengths, one topic and its name."""
    (name_length,) = struct.unpack_from(">h", answer, 12)
    (error,) = struct.unpack_from(">h", answer, 14 + name_length + 8)
    if error:
        raise RuntimeError(f"produce failed with error code {error}")


def _varint(value: int) -> bytes:
    number = (value << 1) ^ (value >> 31)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
