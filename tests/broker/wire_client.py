"""A raw Kafka client for tests: whole requests by name and version, or bytes as they are."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from penstock.base.crc import crc32c
from penstock.records import seal
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import request_frame

SECONDS = 60.0


class WireClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    @classmethod
    async def connect(
        cls, address: tuple[str, int], context: ssl.SSLContext | None = None
    ) -> WireClient:
        """Connect; by TLS with a `context`, to a certificate for localhost."""
        host = None if context is None else "localhost"
        opened = asyncio.open_connection(*address, limit=1 << 26, ssl=context, server_hostname=host)
        return cls(*await opened)

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    def frame(self, name: str, version: int, request: Mapping[str, Any]) -> bytes:
        self._correlation_id += 1
        body = encoder(name, version, "request")(request)
        return request_frame(BY_NAME[name].key, version, self._correlation_id, b"tests", body)

    async def receive(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def response(self, name: str, version: int) -> Any:
        """The next response, decoded; the correlation id is kept in `last_correlation_id`."""
        frame = await self.receive()
        (self.last_correlation_id,) = struct.unpack_from(">i", frame)
        offset = 5 if BY_NAME[name].response_header_version(version) else 4
        entity, end = decoder(name, version, "response")(frame, offset)
        assert end == len(frame)
        return entity

    async def call(self, name: str, version: int, request: Mapping[str, Any]) -> Any:
        self.writer.write(self.frame(name, version, request))
        answer = await self.response(name, version)
        assert self.last_correlation_id == self._correlation_id
        return answer

    async def closed_by_server(self) -> bool:
        """Whether the server closes the connection without another byte."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def create(self, topic: str, partitions: int = 1) -> Any:
        return await self.call(
            "CreateTopics",
            7,
            {
                "topics": [
                    {
                        "name": topic,
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                "timeout": 5000,
            },
        )

    async def find(self, topic: str) -> int:
        """Ask for a topic, so that the broker looks for one that it does not know; the error."""
        wanted = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        answer = await self.call("Metadata", 9, wanted)
        return int(answer.topics[0].error_code)

    async def produce(
        self, topic: str, *batches: bytes, version: int = 9, acks: int = -1, partition: int = 0
    ) -> Any:
        """Produce one partition; its part of the answer."""
        answer = await self.call(
            "Produce", version, produce_request(topic, *batches, acks=acks, partition=partition)
        )
        return answer.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int = 0, partition: int = 0, **changes: Any) -> Any:
        """Fetch one partition; its part of the answer."""
        wanted = fetch_request({(topic, partition): offset}, **changes)
        answer = await self.call("Fetch", 12, wanted)
        return answer.responses[0].partitions[0]


def produce_request(
    topic: str, *batches: bytes, acks: int = -1, partition: int = 0
) -> dict[str, Any]:
    records = b"".join(batches)
    return {
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        ],
    }


def fetch_request(offsets: Mapping[tuple[str, int], int], **changes: Any) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition": partition,
                "fetch_offset": offset,
                "partition_max_bytes": changes.get("partition_max_bytes", 1 << 20),
                "current_leader_epoch": changes.get("current_leader_epoch", -1),
            }
        )
    return {
        "replica_id": -1,
        "max_wait": changes.get("max_wait", 0),
        "min_bytes": 1,
        "max_bytes": 1 << 25,
        "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()],
        "forgotten_topics_data": [],
        **changes,
    }


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    pieces = bytearray()
    while value > 127:
        pieces.append(value & 127 | 128)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000, attributes: int = 0) -> bytes:
    """A RecordBatch v2 of these values, written record by record."""
    records = b""
    for index, value in enumerate(values):
        body = b"\0" + _varint(0) + _varint(index) + _varint(-1)
        body += _varint(len(value)) + value + _varint(0)
        records += _varint(len(body)) + body
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        len(values) - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        len(values),
    )
    tail += records
    rest = struct.pack(">ibI", 0, 2, crc32c(tail)) + tail
    return struct.pack(">qi", 0, len(rest)) + rest


def promising(data: bytes, later_ms: int) -> bytes:
    """The batch with a header whose maximum timestamp is beyond its records."""
    changed = bytearray(data)
    (latest,) = struct.unpack_from(">q", changed, 35)
    struct.pack_into(">q", changed, 35, latest + later_ms)
    seal(changed)
    return bytes(changed)
