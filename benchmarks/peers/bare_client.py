"""The least that a Kafka client can do: frames over a socket, and of batches only the headers.

Many consumers fit into a part of a core this way, so that what is measured on two cores is the
broker. Produce of version 7 and Fetch of version 11, the last ones without compact fields, are
built and read by hand (`ProduceRequest.json`, `FetchResponse.json`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.records.header import seal
from penstock.wire.kafka.framing import uvarint

_LENGTH = struct.Struct(">i")
_FETCHED = struct.Struct(">ihqqq")
_PRODUCED = struct.Struct(">ihq")
_BATCH = struct.Struct(">qi4xb4xhi")
_BATCH_HEADER_BYTES = 61
_LENGTH_END = 12
_PARTITION_BYTES = 30
"""A partition of an answer to Produce."""
_NO_ERROR = bytes(2)
_BASE_TIMESTAMP_AT = 27
RECEIVE_BYTES = 256 << 10
PRODUCE, FETCH, COMMIT, VERSIONS = (0, 7), (1, 11), (8, 7), (18, 0)


class Fetched(NamedTuple):
    """One partition of an answer. `records` is a view that the next answer overwrites."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    records: memoryview


class Link:
    """One connection to a broker; answers come in the order of the requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(64 << 10))

    @classmethod
    async def open(cls, port: int) -> Link:
        """Connect to a broker on loopback."""
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    async def send(self, request: bytes | bytearray) -> None:
        """Write a framed request."""
        await self._loop.sock_sendall(self._socket, request)

    async def receive(self) -> memoryview:
        """The next answer without its length; a view that the next call overwrites."""
        await self._fill(self._buffer[:4])
        size: int = _LENGTH.unpack_from(self._buffer)[0]
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(2 * size))
        frame = self._buffer[:size]
        await self._fill(frame)
        return frame

    async def _fill(self, view: memoryview) -> None:
        while len(view):
            count = await self._loop.sock_recv_into(self._socket, view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def received(connection: socket.socket) -> bytes:
    """Return what a blocking connection has received, at least one byte."""
    data = connection.recv(RECEIVE_BYTES)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


def exactly(connection: socket.socket, size: int) -> bytearray:
    """Return the next bytes of a blocking connection."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the server closed the connection")
        view = view[count:]
    return data


def next_frame(connection: socket.socket) -> memoryview:
    """Return the next frame of a blocking connection, without its length."""
    return memoryview(exactly(connection, int.from_bytes(exactly(connection, 4), "big")))


class BatchTemplate:
    """A batch of equal records that is sent again and again, each time with the time of then."""

    def __init__(self, records: int, value_bytes: int) -> None:
        value = (bytes(range(256)) * (value_bytes // 256 + 1))[:value_bytes]
        body = b""
        for delta in range(records):
            record = b"\x00\x00" + _varint(delta) + b"\x01" + _varint(value_bytes) + value + b"\x00"
            body += _varint(len(record)) + record
        covered = struct.pack(">hiqqqhii", 0, records - 1, 0, 0, -1, -1, -1, records) + body
        batch = struct.pack(">ibI", -1, 2, 0) + covered
        self._batch = bytearray(struct.pack(">qi", 0, len(batch)) + batch)
        self.records = records

    def batch(self, *, timestamp_ms: int = -1) -> bytes:
        """The batch alone; -1 is now."""
        now_ms = int(time.time() * 1000) if timestamp_ms < 0 else timestamp_ms
        struct.pack_into(">qq", self._batch, _BASE_TIMESTAMP_AT, now_ms, now_ms)
        seal(self._batch)
        return bytes(self._batch)

    def request(self, topic: str, partition: int, *, timestamp_ms: int = -1) -> bytes:
        """A framed Produce request, acks=all, with this batch; -1 is now."""
        return self.wide_request(topic, [partition], timestamp_ms=timestamp_ms)

    def wide_request(
        self, topic: str, partitions: Sequence[int], *, timestamp_ms: int = -1
    ) -> bytes:
        """Return a framed Produce request, acks=all, with this batch for each partition."""
        batch = self.batch(timestamp_ms=timestamp_ms)
        body = struct.pack(">hhi", -1, -1, 30_000) + _array(1) + text(topic)
        pieces = [struct.pack(">ii", index, len(batch)) + batch for index in partitions]
        return _framed(PRODUCE, body + _array(len(pieces)), b"".join(pieces))


def fetch_request(
    topic: str, positions: Mapping[int, int], *, max_wait_ms: int, partition_bytes: int
) -> bytes:
    """A framed Fetch request without a session, for whatever there is."""
    body = struct.pack(">iiiibii", -1, max_wait_ms, 1, 50 << 20, 0, 0, -1)
    body += _array(1) + text(topic) + _array(len(positions))
    for partition, offset in positions.items():
        body += struct.pack(">iiqqi", partition, -1, offset, -1, partition_bytes)
    return _framed(FETCH, body + _array(0) + text(""))


def all_produced(frame: memoryview) -> None:
    """Check an answer to Produce for partitions of one topic."""
    name: int = struct.unpack_from(">h", frame, 8)[0]
    count: int = struct.unpack_from(">i", frame, 10 + name)[0]
    for at in range(14 + name, 14 + name + count * _PARTITION_BYTES, _PARTITION_BYTES):
        if frame[at + 4 : at + 6] != _NO_ERROR:
            raise RuntimeError(f"produce failed with error code {frame[at + 5]}")


def produced(frame: memoryview) -> int:
    """The base offset that a Produce of one partition was answered with."""
    name: int = struct.unpack_from(">h", frame, 8)[0]
    _, error, base_offset = _PRODUCED.unpack_from(frame, 14 + name)
    if error:
        raise RuntimeError(f"produce failed with error code {error}")
    return int(base_offset)


def commit_request(group: str, topic: str, partition: int, offset: int) -> bytes:
    """Return a framed OffsetCommit request of a consumer that assigns partitions to itself."""
    body = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">h", -1)
    body += _array(1) + text(topic) + _array(1)
    return _framed(COMMIT, body + struct.pack(">iqih", partition, offset, -1, -1))


def committed(frame: memoryview) -> None:
    """Check an answer to OffsetCommit for one partition."""
    name: int = struct.unpack_from(">h", frame, 12)[0]
    error = struct.unpack_from(">h", frame, 22 + name)[0]
    if error:
        raise RuntimeError(f"OffsetCommit failed with error code {error}")


def versions_request() -> bytes:
    """A framed ApiVersions request."""
    return _framed(VERSIONS, b"")


def versions(frame: memoryview) -> None:
    """Check an answer to ApiVersions."""
    error = struct.unpack_from(">h", frame, 4)[0]
    if error:
        raise RuntimeError(f"ApiVersions failed with error code {error}")


def fetched(frame: memoryview) -> Iterator[Fetched]:
    """The partitions of an answer to Fetch."""
    error, topics = struct.unpack_from(">h4xi", frame, 8)
    if error:
        raise RuntimeError(f"fetch failed with error code {error}")
    at = 18
    for _ in range(topics):
        length = struct.unpack_from(">h", frame, at)[0]
        topic = bytes(frame[at + 2 : at + 2 + length]).decode()
        at += 2 + length
        count = struct.unpack_from(">i", frame, at)[0]
        at += 4
        for _ in range(count):
            partition, error, high_watermark, _, _ = _FETCHED.unpack_from(frame, at)
            at += _FETCHED.size
            aborted = struct.unpack_from(">i", frame, at)[0]
            at += 4 + 16 * max(0, aborted) + 4
            size = max(0, struct.unpack_from(">i", frame, at)[0])
            records = frame[at + 4 : at + 4 + size]
            at += 4 + size
            yield Fetched(topic, partition, error, high_watermark, records)


def batches(records: memoryview) -> Iterator[tuple[int, int]]:
    """The base offset of each whole batch, and the offset after it."""
    at = 0
    while at + _BATCH_HEADER_BYTES <= len(records):
        base_offset, length, _, _, last_delta = _BATCH.unpack_from(records, at)
        at += length + _LENGTH_END
        if at > len(records):
            return
        yield base_offset, base_offset + last_delta + 1


def _framed(api: tuple[int, int], body: bytes, records: bytes = b"") -> bytes:
    head = struct.pack(">hhih", *api, 1, -1)
    return b"".join((_LENGTH.pack(len(head) + len(body) + len(records)), head, body, records))


def _array(count: int) -> bytes:
    return _LENGTH.pack(count)


def text(value: str) -> bytes:
    """Encode an ASCII text after its length of two bytes."""
    return struct.pack(">h", len(value)) + value.encode()


def _varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 31))
