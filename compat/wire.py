"""A raw look at what the server stores: the batches of a partition as a Fetch returns them.

Clients hide which codec came over the wire and which producer id; a plain Fetch (version 4, whose
layout Kafka's protocol guide gives) shows them, without any client in between.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER = struct.Struct(">qiibIhiqqqhii")
LIMIT_BYTES = 16 << 20


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
    """The batches of a partition from an offset on, up to a limit of bytes."""
    host, _, port = bootstrap.rpartition(":")
    name = topic.encode()
    body = struct.pack(">iiiib", -1, wait_ms, 0, LIMIT_BYTES, 0)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, LIMIT_BYTES)
    request = struct.pack(">hhih", 1, 4, 7, -1) + body
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    # correlation id, throttle time, one topic, its name, one partition, its index
    place = 4 + 4 + 4 + 2 + len(name) + 4 + 4
    error, _high, _stable, aborted = struct.unpack_from(">hqqi", answer, place)
    place += 22 + max(aborted, 0) * 16
    (length,) = struct.unpack_from(">i", answer, place)
    if error:
        raise RuntimeError(f"fetch of {topic}-{partition} failed with error code {error}")
    return list(_split(answer[place + 4 : place + 4 + length]))


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
