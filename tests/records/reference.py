"""A plain, slow codec of RecordBatch v2, one record after the other: the oracle of the tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.records.compression import compress, decompress

HEADER = struct.Struct(">qiibIhiqqqhii")


class Wrong(Exception):
    """Bytes that are no batches, or whose records are not what their header says."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record; `offset` and `timestamp` are absolute."""

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
        if not 0 <= count <= len(self.data) - self.position:
            raise Wrong("cut")
        start, self.position = self.position, self.position + count
        return self.data[start : self.position]

    def varint(self, bits: int = 32) -> int:
        raw = 0
        for place in range((bits + 6) // 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if bits == 32 and raw >> 32:
                    break
                raw %= 1 << 64
                return (raw >> 1) ^ -(raw & 1)
        raise Wrong("varint")

    def nullable(self) -> bytes | None:
        count = self.varint()
        return None if count == -1 else self.take(count)


def decode_record(reader: Reader, base_offset: int, base_timestamp: int) -> Record:
    length = reader.varint()
    end = reader.position + length
    reader.take(1)
    timestamp = base_timestamp + reader.varint(64)
    timestamp = (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)
    offset = base_offset + reader.varint()
    key, value = reader.nullable(), reader.nullable()
    headers: list[tuple[str, bytes | None]] = []
    count = reader.varint()
    if count < 0:
        raise Wrong("header count")
    for _ in range(count):
        name = reader.nullable()
        if name is None:
            raise Wrong("a header without a key")
        headers.append((name.decode(errors="replace"), reader.nullable()))
    if reader.position != end:
        raise Wrong("end")
    return Record(offset, timestamp, key, value, tuple(headers))


def read(data: bytes, *, control: bool = False, unpacked_max: int = 1 << 30) -> list[Record]:
    """Return the records in any bytes, without a check of checksums.

    Raises:
        Wrong: the bytes are to be refused.
    """
    found: list[Record] = []
    for section, header in split(data):
        base, _, _, _, _, attributes, last, first, latest, *_, count = header
        if not count or (attributes & 0x20 and not control):
            continue
        if attributes & 7:
            try:
                section = bytes(decompress(attributes & 7, section, max_bytes=unpacked_max))
            except PenstockError as error:
                raise Wrong("compression") from error
            unpacked_max -= len(section)
        reader = Reader(section)
        for _ in range(count):
            record = decode_record(reader, base, first)
            if not 0 <= record.offset - base <= last:
                raise Wrong("offset")
            found.append(replace(record, timestamp=latest) if attributes & 8 else record)
        if reader.position != len(section):
            raise Wrong("bytes left over")
    return found


def split(data: bytes) -> list[tuple[bytes, tuple[int, ...]]]:
    """The records and the header of every batch; one that is cut at the end is left out."""
    found: list[tuple[bytes, tuple[int, ...]]] = []
    position = 0
    while len(data) - position >= HEADER.size:
        header = HEADER.unpack_from(data, position)
        base, length, _, magic, _, _, last, *_, count = header
        end = position + 12 + length
        if magic != 2 or length < 49 or min(base, last, count) < 0 or base + last > 2**63 - 2:
            raise Wrong("header")
        if end > len(data):
            return found
        found.append((data[position + HEADER.size : end], header))
        position = end
    if len(data) - position > 16 and data[position + 16] != 2:
        raise Wrong("magic")
    return found


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
