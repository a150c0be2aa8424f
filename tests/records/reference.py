"""A plain, slow codec of RecordBatch v2, one record after the other: the oracle of the tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from penstock.base.crc import crc32c
from penstock.records.compression import compress, decompress


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `offset` and `timestamp` are absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its header and records."""

    base_offset: int
    records: tuple[Record, ...]
    codec: int = 0
    append_time: int | None = None
    control: bool = False
    transactional: bool = False
    producer: tuple[int, int, int] = (-1, -1, -1)
    last_offset_delta: int | None = None
    leader_epoch: int = -1
    level: int | None = field(default=None, compare=False)

    def visible(self) -> tuple[Record, ...]:
        """Records with the timestamps that a consumer sees."""
        if self.append_time is None:
            return self.records
        return tuple(replace(record, timestamp=self.append_time) for record in self.records)


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + varint(record.timestamp - base_timestamp) + varint(record.offset - base_offset)
    body += nullable(record.key) + nullable(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        body += nullable(name.encode()) + nullable(value)
    return varint(len(body)) + body


def encode(batch: Batch) -> bytes:
    records = batch.records
    base_timestamp = records[0].timestamp if records else -1
    max_timestamp = max((record.timestamp for record in records), default=-1)
    if batch.append_time is not None:
        max_timestamp = batch.append_time
    attributes = (
        batch.codec
        | (8 if batch.append_time is not None else 0)
        | (16 if batch.transactional else 0)
        | (32 if batch.control else 0)
    )
    delta = batch.last_offset_delta
    if delta is None:
        delta = records[-1].offset - batch.base_offset if records else 0
    payload = b"".join(encode_record(r, batch.base_offset, base_timestamp) for r in records)
    if batch.codec and records:
        payload = compress(batch.codec, payload, batch.level)
    checked = (
        struct.pack(">hiqq", attributes, delta, base_timestamp, max_timestamp)
        + struct.pack(">qhi", *batch.producer)
        + struct.pack(">i", len(records))
        + payload
    )
    head = struct.pack(">ibI", batch.leader_epoch, 2, crc32c(checked))
    return struct.pack(">qi", batch.base_offset, len(head) + len(checked)) + head + checked


class Reader:
    """A cursor over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        assert 0 <= count <= len(self.data) - self.position
        start, self.position = self.position, self.position + count
        return self.data[start : self.position]

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return (raw >> 1) ^ -(raw & 1)

    def nullable(self) -> bytes | None:
        count = self.varint()
        return None if count == -1 else self.take(count)


def decode_record(reader: Reader, base_offset: int, base_timestamp: int) -> Record:
    length = reader.varint()
    end = reader.position + length
    reader.take(1)
    timestamp = base_timestamp + reader.varint()
    offset = base_offset + reader.varint()
    key, value = reader.nullable(), reader.nullable()
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(reader.varint()):
        name = reader.nullable()
        assert name is not None
        headers.append((name.decode(), reader.nullable()))
    assert reader.position == end
    return Record(offset, timestamp, key, value, tuple(headers))


def decode(data: bytes) -> list[Batch]:
    batches = []
    outer = Reader(data)
    while outer.position < len(data):
        base_offset, length = struct.unpack(">qi", outer.take(12))
        leader_epoch, magic, crc = struct.unpack(">ibI", outer.take(9))
        assert magic == 2
        checked = outer.take(length - 9)
        assert crc32c(checked) == crc
        attributes, delta, base_timestamp, max_timestamp = struct.unpack(">hiqq", checked[:22])
        producer = struct.unpack(">qhi", checked[22:36])
        (count,) = struct.unpack(">i", checked[36:40])
        payload = checked[40:]
        if attributes & 7:
            payload = bytes(decompress(attributes & 7, payload, max_bytes=1 << 30))
        inner = Reader(payload)
        records = tuple(decode_record(inner, base_offset, base_timestamp) for _ in range(count))
        assert inner.position == len(payload)
        batches.append(
            Batch(
                base_offset=base_offset,
                records=records,
                codec=attributes & 7,
                append_time=max_timestamp if attributes & 8 else None,
                transactional=bool(attributes & 16),
                control=bool(attributes & 32),
                producer=producer,
                last_offset_delta=delta,
                leader_epoch=leader_epoch,
            )
        )
    return batches
