"""One record, one request in flight, over a plain socket: what a broker adds to an echo.

The request is a Produce of version 10, as librdkafka sends it, with one batch of one record,
built once and sent again and again; the client does nothing but write and read, so that every
broker and the bare uvloop echo are measured by the same hand. The echo gets and returns as many
bytes as a broker does; it may write what it gets to a file, and sync it, before it answers. That
is more than an echo plus a write and a sync measured alone, because a sync lets the core sleep.

Where the kernel puts client and server matters more than what they do: on one core an echo takes
20 µs, on two, each of which must be woken, 45 to 75, and it moves them as it likes. `on_one_core`
keeps them together, so that a ratio is one of work.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

from benchmarks.peers.bare_client import BatchTemplate, received, versions_request
from benchmarks.peers.process import STOP_TIMEOUT_SECONDS
from penstock.wire.kafka.framing import uvarint

ECHO = """
import asyncio, os, struct, sys, tempfile, uvloop
from crc32c import crc32c
FILE_BYTES, ENTRY_BYTES, ANSWER_BYTES = 4 << 20, 4096, int(sys.argv[2])
HEADER = struct.Struct('>qiibIhiqqqhii')
file = tempfile.TemporaryFile(prefix='penstock-bench-')
file.write(bytes(FILE_BYTES)); file.flush(); os.fsync(file.fileno())
class Echo(asyncio.Protocol):
    position = offset = 0
    answer = b''
    def check(self, data):
        # what no broker can leave out: the frame, the batch and its record, then offset and answer
        frame = memoryview(bytearray(data))
        length, key, version, correlation, client = struct.unpack_from('>ihhih', frame)
        acks, timeout, topics, name = struct.unpack_from('>hiBB', frame, 16)
        at = 23 + name
        partitions, index, low, high = struct.unpack_from('>BiBB', frame, at)
        batch = frame[at + 7:-3]
        header = HEADER.unpack_from(batch)
        size = (batch[61] & 127 | batch[62] << 7) >> 1
        if (length + 4 != len(frame) or key or topics != 2 or partitions != 2 or index
                or (low & 127 | high << 7) != len(batch) + 1 or header[1] + 12 != len(batch)
                or header[3] != 2 or header[12] != 1 or crc32c(batch[21:]) != header[4]
                or size != len(batch) - 63 or batch[64] or batch[65] or batch[66] != 1
                or (batch[67] & 127 | batch[68] << 7) >> 1 != size - 7 or batch[-1]):
            raise ValueError('a request is not as expected')
        struct.pack_into('>q', batch, 0, Echo.offset)
        Echo.offset += 1
        self.answer = struct.pack(f'>iixBB{name - 1}sBihqqqBBBBiB', ANSWER_BYTES - 4, correlation,
            2, name, bytes(frame[24:23 + name]), 2, index, 0, Echo.offset, -1, 0, 1, 0, 0, 0, 0, 0)
        return batch
    def keep(self, data):
        if sys.argv[3] == 'echo': return
        if sys.argv[3] == 'check': data = self.check(data)
        entry = [data, bytes(ENTRY_BYTES - len(data))]
        os.pwritev(file.fileno(), entry, Echo.position)
        Echo.position = (Echo.position + ENTRY_BYTES) % FILE_BYTES
        if sys.argv[3] == 'sync': os.fdatasync(file.fileno())
    def connection_made(self, transport): self.transport = transport; self.left = 0
    def data_received(self, data):
        # a request of the size that it names, an answer of the size that it asks for
        self.left += len(data)
        if self.left >= int(sys.argv[1]):
            self.left -= int(sys.argv[1])
            self.keep(data)
            self.transport.write(self.answer.ljust(ANSWER_BYTES))
async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


Keeps = Literal["echo", "write", "sync", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Microseconds: the median, and what one in a hundred exceeds."""

    p50: float
    p99: float


def produce_request(topic: str, value_bytes: int, *, partition: int = 0) -> bytes:
    """A framed Produce request, acks=all, with one batch of one record for a partition."""
    batch = BatchTemplate(1, value_bytes).batch()
    name = topic.encode()
    no_tags = b"\x00"
    request = struct.pack(">hhih", 0, 10, 1, -1) + no_tags
    request += b"\x00" + struct.pack(">hi", -1, 30_000)
    request += b"\x02" + uvarint(len(name) + 1) + name
    request += (
        b"\x02" + struct.pack(">i", partition) + uvarint(len(batch) + 1) + batch + 3 * no_tags
    )
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


def checked_size(port: int, request: bytes) -> int:
    """Send a Produce request once; return the size of the answer, which has no error."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        answer = _answer(connection, 0)
        _check(answer)
        return len(answer)


def pipelined(port: int, request: bytes, *, count: int, in_flight: int) -> None:
    """Send a request `count` times, so many of them before the first is answered, and then on."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        answer = _answer(connection, 0)
        _check(answer)
        sent = min(in_flight, count)
        connection.sendall(request * sent)
        size = bytes_left = len(answer)
        answered = 0
        while answered < count:
            bytes_left -= len(received(connection))
            done = -(bytes_left - size) // size if bytes_left <= 0 else 0
            bytes_left += done * size
            answered += done
            more = min(done, count - sent)
            if more:
                connection.sendall(request * more)
                sent += more


@contextmanager
def on_one_core(pids: Iterable[int]) -> Iterator[None]:
    """Keep this process and others, with all their threads, on the first core for a while."""
    everywhere = os.sched_getaffinity(0)
    ours = (os.getpid(), *pids)
    _place(ours, {min(everywhere)})
    try:
        yield
    finally:
        _place(ours, everywhere)


def _place(pids: Iterable[int], cores: set[int]) -> None:
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)


class Script:
    """Python code in a process of its own, which first prints its port; a context manager."""

    def __init__(self, code: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=STOP_TIMEOUT_SECONDS)


class EchoServer(Script):
    """Bare uvloop server in a process of its own.

    `keeps` is what it does before it answers: nothing more (echo), write, write and sync, or check
    the request, its batch and its record in one function, and write.
    """

    def __init__(self, request_bytes: int, answer_bytes: int, keeps: Keeps) -> None:
        super().__init__(ECHO, request_bytes, answer_bytes, keeps)


def answers_api_versions(port: int) -> bool:
    """Whether a broker answers at all: what a start-up is measured up to."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(versions_request())
            return len(_answer(connection, 0)) > 0
    except OSError:
        return False


def _answer(connection: socket.socket, size: int) -> bytes:
    answer = received(connection)
    if not size:
        while len(answer) < 4:
            answer += received(connection)
        size = 4 + int.from_bytes(answer[:4], "big")
    while len(answer) < size:
        answer += received(connection)
    return answer


def _check(answer: bytes) -> None:
    """The error code of the only partition: after length, header, one topic and its name.

    The name is shorter than 127 bytes, so its length, and every count, takes one byte.
    """
    name_length = answer[10] - 1
    (error,) = struct.unpack_from(">h", answer, 11 + name_length + 5)
    if error:
        raise RuntimeError(f"produce failed with error code {error}")
