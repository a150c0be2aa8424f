"""A raw look at what the server stores: the batches of a partition as a Fetch returns them.

Clients hide which codec came over the wire and which producer id; a plain Fetch (version 4, whose
layout Kafka's protocol guide gives) shows them, without any client in between.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tests.broker.wire_client import WireClient

from compat.drivers.port import POLL_SECONDS, WAIT_SECONDS
from compat.security import ADMIN, Security, security_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER = struct.Struct(">qiibIhiqqqhii")
LIMIT_BYTES = 16 << 20
UNKNOWN_TOPIC, NOT_LEADER = 3, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the suite asks of a batch's header."""

    base_offset: int
    size_bytes: int
    codec: str
    producer_id: int
    base_sequence: int
    record_count: int


def batches(
    bootstrap: str, topic: str, partition: int, offset: int = 0, *, wait_ms: int = 100
) -> list[Batch]:
    """The batches of a partition from an offset on, up to a limit of bytes.

    Of several brokers the one is asked that leads; for a while, as one may be about to.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    for address in itertools.cycle(bootstrap.split(",")):
        try:
            return _batches(address, topic, partition, offset, wait_ms)
        except (OSError, Elsewhere):
            if "," not in bootstrap or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
    raise AssertionError("there is no broker")


class Elsewhere(RuntimeError):
    """Another broker leads the partition, or has heard of it."""


def _batches(address: str, topic: str, partition: int, offset: int, wait_ms: int) -> list[Batch]:
    host, _, port = address.rpartition(":")
    name = topic.encode()
    body = struct.pack(">iiiib", -1, wait_ms, 0, LIMIT_BYTES, 0)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, LIMIT_BYTES)
    request = struct.pack(">hhih", 1, 4, 7, -1) + body
    with _connected(host, int(port)) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    # correlation id, throttle time, one topic, its name, one partition, its index
    place = 4 + 4 + 4 + 2 + len(name) + 4 + 4
    error, _high, _stable, aborted = struct.unpack_from(">hqqi", answer, place)
    place += 22 + max(aborted, 0) * 16
    (length,) = struct.unpack_from(">i", answer, place)
    if error:
        kind = Elsewhere if error in (UNKNOWN_TOPIC, NOT_LEADER) else RuntimeError
        raise kind(f"fetch of {topic}-{partition} failed with error code {error}")
    return list(_split(answer[place + 4 : place + 4 + length]))


def _connected(host: str, port: int) -> socket.socket:
    """A connection of which the server knows that it is the suite's own."""
    one = security_of(ADMIN)
    context = one.context()
    connection = socket.create_connection((host, port), timeout=10)
    if context is None:
        return connection
    connection = context.wrap_socket(connection, server_hostname=host)
    for request in _login(one):
        connection.sendall(request)
        _check_login(_exactly(connection, *struct.unpack(">i", _exactly(connection, 4))))
    return connection


def _login(one: Security) -> list[bytes]:
    """SaslHandshake (version 1) and SaslAuthenticate (version 0) by PLAIN."""
    token = f"\0{one.user}\0{one.password}".encode()
    bodies = ((17, 1, b"\0\5PLAIN"), (36, 0, struct.pack(">i", len(token)) + token))
    frames = [struct.pack(">hhih", key, version, 1, -1) + body for key, version, body in bodies]
    return [struct.pack(">i", len(frame)) + frame for frame in frames]


def _check_login(answer: bytes) -> None:
    (error,) = struct.unpack_from(">h", answer, 4)
    if error:
        raise PermissionError(f"the server did not let the suite in: error code {error}")


def served(bootstrap: str, topic: str, partitions: int) -> bool:
    """Whether every partition of a topic answers a fetch."""
    try:
        for partition in range(partitions):
            batches(bootstrap, topic, partition, wait_ms=0)
    except (RuntimeError, struct.error):
        return False
    return True


def _split(records: bytes) -> list[Batch]:
    found = []
    place = 0
    while place + HEADER.size <= len(records):
        fields = HEADER.unpack_from(records, place)
        found.append(
            Batch(
                base_offset=fields[0],
                size_bytes=12 + fields[1],
                codec=CODECS[fields[5] & 7],
                producer_id=fields[9],
                base_sequence=fields[11],
                record_count=fields[12],
            )
        )
        place += 12 + fields[1]
    return found


def _exactly(connection: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = connection.recv(min(size, 1 << 20))
        if not piece:
            raise ConnectionError("the server closed the connection")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


class Following(WireClient):
    """One that goes to the next of several brokers where one is away or does not lead."""

    _addresses: itertools.cycle[str]
    _alone = True

    @classmethod
    async def connect_to(cls, bootstrap: str) -> Self:
        """A client of these brokers, separated by commas."""
        addresses = bootstrap.split(",")
        client = cls(*await _connection(addresses[0]))
        client._alone = len(addresses) == 1
        client._addresses = itertools.cycle(addresses[1:] + addresses[:1])
        return client

    async def call(self, name: str, version: int, request: Mapping[str, Any]) -> Any:
        if self._alone:
            return await super().call(name, version, request)
        if name == "CreateTopics":
            spec = {"replication_factor": -1}
            request = {**request, "topics": [{**topic, **spec} for topic in request["topics"]]}
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    answer = await super().call(name, version, request)
                    if not _elsewhere(name, answer):
                        return answer
                except (OSError, EOFError):
                    await asyncio.sleep(POLL_SECONDS)
                await self._turn()

    async def _turn(self) -> None:
        await self.close()
        for address in self._addresses:
            try:
                self.reader, self.writer = await _connection(address)
            except OSError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return


def _elsewhere(name: str, answer: Any) -> bool:
    """Whether another broker leads; or has heard of the topic, where the call names one."""
    said = repr(answer)
    missing = name in ("Produce", "ListOffsets") and "unknown_topic_or_part" in said
    return missing or "not_leader_or_follower" in said


async def _connection(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    one = security_of(ADMIN)
    limit = 1 << 26
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit, ssl=one.context())
    for request in () if one.plain else _login(one):
        writer.write(request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        _check_login(await reader.readexactly(size))
    return reader, writer
