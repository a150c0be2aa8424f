"""Write the test vectors of the host protocol: frames, refused bytes, whole conversations.

    .venv/bin/python scripts/host_vectors.py

Nothing here uses the product's codec: preludes, Protobuf fields and checksums are made by hand,
after `docs/host-protocol.md`, so that the vectors can show a mistake of the codec. Numbers of 64
bits stand as strings in JSON, bytes as hexadecimal digits, and fields that are not on the wire are
left out.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "host-protocol"

TYPES = (
    "FRAME_TYPE_UNSPECIFIED", "HELLO", "HELLO_ACK", "DATA", "DATA_BATCH", "ACCEPTED", "FAILED",
    "CREDIT_UPDATE", "DRAIN", "PING", "PONG",
)  # fmt: skip
FORMATS = ("OPAQUE", "RECORD_BATCH")
FIELDS = {
    "type": (1, "type"), "first_sequence": (2, "u64"), "count": (3, "u32"),
    "event_count": (4, "u64"), "topic": (5, "text"), "partition": (6, "u32?"),
    "log_sequence": (7, "u32?"), "format": (8, "format"), "lengths": (9, "bytes"),
    "offsets": (10, "bytes"), "event_counts": (11, "bytes"), "ring_position": (12, "u64"),
    "ring_bytes": (13, "u32"), "ranges": (14, "u64s"), "reason": (15, "text"),
    "retryable": (16, "bool"), "retry_after_ms": (17, "u32"), "chunk_slots": (18, "u32"),
    "raw_events": (19, "u64"), "payload_bytes": (20, "u64"), "version_min": (21, "u32"),
    "version_max": (22, "u32"), "version": (23, "u32"), "accepted": (24, "bool"),
    "producer_id": (25, "i64?"), "producer_epoch": (26, "u32"), "topics": (27, "texts"),
    "partition_counts": (28, "u32s"), "client_name": (29, "text"), "ring_size_bytes": (30, "u64"),
    "frame_bytes_max": (31, "u32"), "idle_timeout_ms": (32, "u32"), "deadline_ms": (33, "u32"),
    "token": (34, "u64"),
    "fenced": (35, "bool"),
}  # fmt: skip
CRC_FLAG, RING_FLAG = 1, 2
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
FRAME_BYTES_MAX = 65_536
"""The limit that the vectors are read with."""


def crc32c(data: bytes) -> int:
    """Bit by bit, RFC 3720 appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    """Seven bits a byte, least significant first; negative numbers as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def delimited(number: int, data: bytes) -> bytes:
    return tag(number, DELIMITED) + varint(len(data)) + data


def words(*numbers: int) -> bytes:
    """Descriptors: a little-endian 32-bit number each."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def encode_field(name: str, value: Any) -> bytes:
    """One field as Protobuf has it; nothing for a default without presence."""
    number, kind = FIELDS[name]
    if kind in ("u32?", "i64?"):
        return tag(number, VARINT) + varint(value)
    if not value:
        return b""
    if kind in ("u32", "u64", "bool"):
        return tag(number, VARINT) + varint(int(value))
    if kind in ("type", "format"):
        return tag(number, VARINT) + varint((TYPES if kind == "type" else FORMATS).index(value))
    if kind in ("u32s", "u64s"):
        return delimited(number, b"".join(map(varint, value)))
    if kind == "texts":
        return b"".join(delimited(number, text.encode()) for text in value)
    return delimited(number, value.encode() if kind == "text" else value)


def header_bytes(kind: str, **fields: Any) -> bytes:
    """The header's fields in the order of their numbers."""
    fields = {"type": kind, **fields}
    return b"".join(encode_field(name, fields[name]) for name in FIELDS if name in fields)


def prelude(header: bytes, payload_size: int = 0, flags: int = 0, payload_crc: int = 0) -> bytes:
    return struct.pack(
        ">IHBBII", len(header) + payload_size, len(header), flags, 0, crc32c(header), payload_crc
    )


def frame_bytes(header: bytes, payload: bytes = b"", flags: int = 0) -> bytes:
    """A whole frame; with the ring's flag the payload does not follow."""
    crc = crc32c(payload) if flags & CRC_FLAG else 0
    inline = b"" if flags & RING_FLAG else payload
    return prelude(header, len(inline), flags, crc) + header + inline


def as_json(name: str, value: Any) -> Any:
    kind = FIELDS[name][1]
    if kind in ("u64", "i64?"):
        return str(value)
    if kind == "u64s":
        return [str(number) for number in value]
    return value.hex() if kind == "bytes" else value


def described(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The decoded header: what is not on the wire is left out."""
    fields = {"type": kind, **fields}
    return {
        name: as_json(name, fields[name])
        for name in FIELDS
        if name in fields and (fields[name] or FIELDS[name][1].endswith("?"))
    }


def frame(
    kind: str, payload: bytes = b"", *, flags: int = 0, extra: bytes = b"", **fields: Any
) -> dict[str, Any]:
    """A frame with its decoded fields; `extra` goes behind the known fields of the header."""
    data = frame_bytes(header_bytes(kind, **fields) + extra, payload, flags)
    body: dict[str, Any] = {"hex": data.hex(), "flags": flags, "header": described(kind, fields)}
    if payload:
        body["payload"] = payload.hex()
    if flags & CRC_FLAG:
        body["payload_crc"] = f"{crc32c(payload):08x}"
    return body


def named(name: str, about: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "about": about, **body, **more}


# Valid frames

HELLO = {"version_min": 1, "version_max": 1, "client_name": "vectors"}
TERMS = {"chunk_slots": 8, "raw_events": 100, "payload_bytes": 1000, "frame_bytes_max": 65_536}
ACK = {"version": 1, "accepted": True, "producer_id": 4711, "idle_timeout_ms": 30_000, **TERMS}
CHUNKS = b"onethreefive!"
THREE = {"count": 3, "event_count": 3, "lengths": words(3, 5, 5)}


def handshake_frames() -> list[dict[str, Any]]:
    topics = ["flights", "météo"]
    return [
        named("hello", "A producer without an identity.", frame("HELLO", **HELLO)),
        named(
            "hello-again",
            "A producer with the identity of an earlier connection, and two topics.",
            frame("HELLO", **HELLO, producer_id=4711, producer_epoch=3, topics=topics),
        ),
        named(
            "hello-negative-id",
            "Producer id -1 says the same as no producer id; ten bytes on the wire.",
            frame("HELLO", **HELLO, producer_id=-1),
        ),
        named(
            "hello-id-zero",
            "Producer id 0 is an identity: the field has presence.",
            frame("HELLO", **HELLO, producer_id=0),
        ),
        named(
            "hello-largest-identity",
            "The largest producer id and epoch.",
            frame("HELLO", **HELLO, producer_id=2**63 - 1, producer_epoch=2**15 - 1),
        ),
        named(
            "hello-ring",
            "A producer that passes the descriptor of a ring of 1 MiB.",
            frame("HELLO", **HELLO, ring_size_bytes=1 << 20),
        ),
        named("hello-ack", "Taken in, with credit.", frame("HELLO_ACK", **ACK)),
        named(
            "hello-ack-topics",
            "Partitions of two topics; of the second none are known.",
            frame("HELLO_ACK", **ACK, producer_epoch=3, partition_counts=[6, 0]),
        ),
        named(
            "hello-ack-ring",
            "The ring is mapped.",
            frame("HELLO_ACK", **ACK, ring_size_bytes=1 << 20),
        ),
        named(
            "hello-ack-refused",
            "Not taken in; `accepted` is false and so not on the wire.",
            frame("HELLO_ACK", reason="protocol versions 7 to 9 are not spoken here"),
        ),
        named(
            "hello-ack-refused-for-now",
            "Not taken in, and the same HELLO may do later.",
            frame("HELLO_ACK", reason="the agent is draining", retryable=True),
        ),
    ]


def data_frames() -> list[dict[str, Any]]:
    return [
        named(
            "data",
            "One chunk of one event. Sequence 0 is not on the wire.",
            frame("DATA", b"hello", event_count=1),
        ),
        named(
            "data-empty",
            "A chunk may be empty, and have no event.",
            frame("DATA", first_sequence=1),
        ),
        named(
            "data-target",
            "Partition 0 and log sequence 0 have presence.",
            frame(
                "DATA", b"hello", first_sequence=2, event_count=1, topic="flights", partition=0,
                log_sequence=0,
            ),
        ),
        named(
            "data-largest",
            "The largest numbers that a DATA frame may carry.",
            frame(
                "DATA", b"x", first_sequence=2**63 - 2, event_count=2**31 - 1, topic="t",
                partition=2**31 - 1, log_sequence=2**31 - 1,
            ),
        ),
        named(
            "data-checksum",
            "Flag bit 0: the payload's CRC32C is in the prelude.",
            frame("DATA", b"123456789", flags=CRC_FLAG, event_count=1),
        ),
        named(
            "data-checksum-empty",
            "The CRC32C of nothing is 0.",
            frame("DATA", flags=CRC_FLAG, first_sequence=1),
        ),
        named(
            "data-ring",
            "Flag bit 1: the payload lies in the ring, at 4,096; `payload` is what lies there.",
            frame(
                "DATA", b"in the ring", flags=RING_FLAG, event_count=1, ring_position=4096,
                ring_bytes=11,
            ),
        ),
        named(
            "data-ring-checksum",
            "Both flags: the checksum is that of the bytes in the ring.",
            frame(
                "DATA", b"in the ring", flags=CRC_FLAG | RING_FLAG, event_count=1, ring_bytes=11
            ),
        ),
        named(
            "data-record-batch",
            "Format RECORD_BATCH; `event_count` is the number of records.",
            frame(
                "DATA", bytes(61), event_count=7, topic="flights", partition=5, log_sequence=70,
                format="RECORD_BATCH",
            ),
        ),
    ]  # fmt: skip


def batch_frames() -> list[dict[str, Any]]:
    return [
        named(
            "batch",
            "Three chunks one after another, an event each.",
            frame("DATA_BATCH", CHUNKS, first_sequence=10, **THREE),
        ),
        named(
            "batch-event-counts",
            "Chunks of 2, 0 and 300 events.",
            frame(
                "DATA_BATCH", CHUNKS, first_sequence=10, count=3, event_count=302,
                lengths=words(3, 5, 5), event_counts=words(2, 0, 300),
            ),
        ),
        named(
            "batch-offsets",
            "Chunks in another order than their bytes, with a gap between them.",
            frame(
                "DATA_BATCH", b"five!..onethree", first_sequence=10, count=3, event_count=3,
                lengths=words(3, 5, 5), offsets=words(7, 10, 0),
            ),
        ),
        named(
            "batch-of-one",
            "A DATA_BATCH may have a single chunk.",
            frame(
                "DATA_BATCH", b"alone", first_sequence=10, count=1, event_count=1, lengths=words(5)
            ),
        ),
        named(
            "batch-target-checksum",
            "A target and a payload checksum.",
            frame(
                "DATA_BATCH", CHUNKS, flags=CRC_FLAG, first_sequence=10, topic="flights",
                partition=2, log_sequence=30, **THREE,
            ),
        ),
        named(
            "batch-ring",
            "Chunks in the ring.",
            frame(
                "DATA_BATCH", CHUNKS, flags=RING_FLAG, first_sequence=10, ring_position=64,
                ring_bytes=13, **THREE,
            ),
        ),
        named(
            "batch-largest-lengths",
            "Lengths use all 32 bits of a descriptor: 0 and 200 (0xc8).",
            frame(
                "DATA_BATCH", bytes(range(200)), count=2, event_count=2, lengths=words(0, 200)
            ),
        ),
    ]  # fmt: skip


def answer_frames() -> list[dict[str, Any]]:
    credit = {"chunk_slots": 3, "raw_events": 302, "payload_bytes": 13}
    return [
        named("accepted", "One range: sequences 10 to 12.", frame("ACCEPTED", ranges=[10, 3])),
        named(
            "accepted-ranges",
            "Three ranges, one of them far away.",
            frame("ACCEPTED", ranges=[0, 1, 10, 3, 2**62, 128]),
        ),
        named(
            "failed",
            "Refused for good, with the footprint that is free again.",
            frame("FAILED", first_sequence=10, count=3, reason="unknown topic 'x'", **credit),
        ),
        named(
            "failed-retryable",
            "May be sent again after 100 ms.",
            frame(
                "FAILED", first_sequence=10, count=3, reason="credit exhausted", retryable=True,
                retry_after_ms=100, **credit,
            ),
        ),
        named(
            "failed-fenced",
            "A newer epoch has taken over.",
            frame(
                "FAILED", first_sequence=10, count=3, reason="epoch 3 is fenced", fenced=True,
                **credit,
            ),
        ),
        named(
            "failed-connection",
            "About no chunks: the connection is closed next.",
            frame("FAILED", reason="header checksum does not match"),
        ),
        named(
            "credit-update",
            "More credit in two dimensions.",
            frame("CREDIT_UPDATE", chunk_slots=16, payload_bytes=1 << 33),
        ),
        named(
            "credit-update-pause",
            "No credit and a pause.",
            frame("CREDIT_UPDATE", retry_after_ms=250),
        ),
        named(
            "drain",
            "The agent goes away within 20 s.",
            frame("DRAIN", deadline_ms=20_000, reason="the agent is stopping"),
        ),
        named("ping", "With a token.", frame("PING", token=2**64 - 1)),
        named("pong", "The token of its PING.", frame("PONG", token=2**64 - 1)),
        named("ping-zero", "Token 0 is not on the wire.", frame("PING")),
    ]  # fmt: skip


def tolerated_frames() -> list[dict[str, Any]]:
    """Headers that our encoder would not write, and that every decoder takes."""
    accepted = frame("ACCEPTED", ranges=[10, 3])
    unpacked = header_bytes("ACCEPTED") + b"".join(tag(14, VARINT) + varint(n) for n in (10, 3))
    shuffled = tag(34, VARINT) + varint(7) + header_bytes("PING")
    twice = header_bytes("PING", token=3) + tag(34, VARINT) + varint(7)
    long_zero = tag(1, VARINT) + b"\x89\x80\x00" + tag(34, VARINT) + varint(7)
    unknown = (
        tag(100, VARINT)
        + varint(1 << 40)
        + delimited(101, b"later")
        + tag(102, FIXED32)
        + words(7)
        + tag(103, FIXED64)
        + bytes(8)
    )
    ping = frame("PING", token=7)
    cases = [
        named(
            "unknown-fields",
            "Fields of a later version, one of every wire type, are skipped.",
            frame("DATA", b"hello", extra=unknown, event_count=1),
        ),
        named("ranges-unpacked", "Ranges that are not packed.", accepted),
        named("fields-out-of-order", "Fields may come in any order.", ping),
        named("field-twice", "Of a field that comes twice, the last one counts.", ping),
        named("long-varint", "A number may have more bytes than it needs.", ping),
    ]
    for case, header in zip(cases[1:], (unpacked, shuffled, twice, long_zero), strict=True):
        case["hex"] = frame_bytes(header).hex()
    return [{**case, "canonical": False} for case in cases]


# Refused bytes


def refused(name: str, why: str, about: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "class": why, "about": about, "hex": data.hex()}


def malformed() -> list[dict[str, Any]]:
    header = header_bytes("DATA", event_count=1)
    good = bytearray(frame_bytes(header, b"hello"))

    def changed(position: int, data: bytes) -> bytes:
        return bytes(good[:position] + data + good[position + len(data) :])

    no_field = b"\x08\x03\x00\x00"
    cut_off = header_bytes("DATA") + delimited(5, b"flights")[:-2]
    bad_text = header_bytes("DATA") + delimited(5, b"\xff\xfe")
    endless = header_bytes("DATA") + tag(2, VARINT) + b"\xff" * 11
    checked = frame_bytes(header, b"hello", CRC_FLAG)
    ring = header_bytes("DATA", event_count=1, ring_bytes=5)
    size = struct.pack
    return [
        refused(
            "length-over-limit", "frame_length", "One byte more than the limit.",
            changed(0, size(">I", FRAME_BYTES_MAX + 1)),
        ),
        refused(
            "length-two-gib", "frame_length", "A claim of 2 GiB, to be refused before memory is"
            " taken for it.", changed(0, size(">I", 1 << 31)),
        ),
        refused(
            "length-largest", "frame_length", "All bits set.", changed(0, b"\xff\xff\xff\xff")
        ),
        refused("text-protocol", "frame_length", "A peer that speaks HTTP.", b"GET / HTTP/1.1\r\n"),
        refused(
            "header-longer-than-frame", "header_length", "The header would end behind the frame.",
            changed(4, size(">H", len(good) - 16 + 1)),
        ),
        refused("header-empty", "header_length", "A frame has a type.", changed(4, b"\0\0")),
        refused("nothing", "header_length", "Sixteen zero bytes.", bytes(16)),
        refused("unknown-flag", "flags", "Bit 2 has no meaning.", changed(6, b"\x04")),
        refused("unknown-high-flag", "flags", "Bit 7 has none either.", changed(6, b"\x81")),
        refused("reserved-byte", "flags", "The reserved byte is 0.", changed(7, b"\x01")),
        refused(
            "checksum-without-flag", "payload_crc_unannounced", "A payload checksum, and bit 0 is"
            " not set.", changed(12, b"\0\0\0\x01"),
        ),
        refused(
            "ring-and-payload", "ring_payload_on_stream", "Bit 1, and payload on the stream.",
            prelude(ring, 5, RING_FLAG) + ring + b"hello",
        ),
        refused(
            "header-checksum", "header_crc", "One bit of the header's checksum.",
            changed(8, bytes([good[8] ^ 0x10])),
        ),
        refused(
            "header-bit", "header_crc", "One bit of the header.", changed(17, bytes([good[17] ^ 1]))
        ),
        refused(
            "payload-checksum", "payload_crc", "One bit of a payload with a checksum.",
            checked[:-1] + bytes([checked[-1] ^ 0x80]),
        ),
        refused("field-zero", "header", "There is no field 0.", frame_bytes(no_field)),
        refused("field-cut-off", "header", "A text that ends early.", frame_bytes(cut_off)),
        refused("text-not-utf8", "header", "A topic that is not UTF-8.", frame_bytes(bad_text)),
        refused("endless-varint", "header", "A number of more than ten bytes.",
                frame_bytes(endless)),
    ]  # fmt: skip


def violation(name: str, why: str, about: str, *frames: dict[str, Any]) -> dict[str, Any]:
    """Frames that are well-formed; the last one must end the connection."""
    return {"name": name, "class": why, "about": about, "hex": [each["hex"] for each in frames]}


def violations() -> list[dict[str, Any]]:
    """What an agent with the conversations' terms refuses of a producer that it has taken in."""
    data = frame("DATA", b"hello", first_sequence=5, event_count=1)

    def batch(payload: bytes = CHUNKS, **changes: Any) -> dict[str, Any]:
        return frame("DATA_BATCH", payload, first_sequence=5, **{**THREE, **changes})

    def raw(header: bytes, payload: bytes = b"") -> dict[str, Any]:
        return {"hex": frame_bytes(header, payload).hex()}

    return [
        violation(
            "hello-twice", "frame_type", "HELLO comes once.", frame("HELLO", **HELLO)
        ),
        violation(
            "answer-from-producer", "frame_type", "Only agents accept.",
            frame("ACCEPTED", ranges=[0, 1]),
        ),
        violation(
            "type-missing", "frame_type", "Type 0.", raw(header_bytes("PING", token=1)[2:])
        ),
        violation(
            "type-unknown", "frame_type", "Type 11.", raw(tag(1, VARINT) + varint(11))
        ),
        violation("data-count", "data_fields", "A DATA frame of two chunks.",
                  frame("DATA", b"hello", count=2, event_count=2)),
        violation("data-lengths", "data_fields", "A DATA frame with lengths.",
                  frame("DATA", b"hello", event_count=1, lengths=words(5))),
        violation("batch-empty", "chunk_count", "No chunk.",
                  frame("DATA_BATCH", first_sequence=5)),
        violation("batch-too-many", "chunk_count", "4,097 chunks.",
                  batch(b"", count=4097, event_count=4097, lengths=bytes(4 * 4097))),
        violation("batch-lengths-short", "descriptors", "Two lengths for three chunks.",
                  batch(lengths=words(3, 5))),
        violation("batch-lengths-odd", "descriptors", "Eleven bytes of lengths.",
                  batch(lengths=words(3, 5, 5)[:-1])),
        violation("batch-offsets-short", "descriptors", "Two offsets for three chunks.",
                  batch(offsets=words(0, 3))),
        violation("batch-event-counts-long", "descriptors", "Four event counts for three chunks.",
                  batch(event_counts=words(1, 1, 1, 0))),
        violation("batch-payload-short", "payload_size", "Lengths of more bytes than there are.",
                  batch(CHUNKS[:-1])),
        violation("batch-payload-long", "payload_size", "Bytes that belong to no chunk need"
                  " offsets.", batch(CHUNKS + b"!")),
        violation("batch-wrapping-lengths", "payload_size", "Lengths whose sum is right only in"
                  " 32 bits.", batch(lengths=words(2**32 - 1, 9, 5))),
        violation("batch-offset-beyond", "payload_size", "A chunk that ends behind the payload.",
                  batch(offsets=words(0, 3, 9))),
        violation("batch-wrapping-offset", "payload_size", "A chunk whose end is right only in"
                  " 32 bits.", batch(offsets=words(0, 3, 2**32 - 1))),
        violation("batch-events-differ", "event_count", "Two events said, three counted.",
                  batch(event_count=2)),
        violation("batch-event-sum-differs", "event_count", "Five events said, six counted.",
                  batch(event_count=5, event_counts=words(1, 2, 3))),
        violation("events-over-limit", "event_limit", "2^31 events.",
                  frame("DATA", b"hello", event_count=2**31)),
        violation("sequence-twice", "sequence", "A sequence that is under way.", data, data),
        violation("sequence-over-limit", "sequence", "Sequence 2^63 - 1.",
                  frame("DATA", b"hello", first_sequence=2**63 - 1, event_count=1)),
        violation("format-unknown", "format", "Format 2.",
                  raw(header_bytes("DATA", event_count=1) + tag(8, VARINT) + varint(2), b"hello")),
        violation("partition-over-limit", "target", "Partition 2^31.",
                  frame("DATA", b"hello", event_count=1, topic="t", partition=2**31)),
        violation("log-sequence-over-limit", "target", "Log sequence 2^31.",
                  frame("DATA", b"hello", event_count=1, topic="t", log_sequence=2**31)),
        violation("ring-without-ring", "ring", "There is no ring on this connection.",
                  frame("DATA", b"hello", flags=RING_FLAG, event_count=1, ring_bytes=5)),
    ]  # fmt: skip


# Conversations


class Conversation:
    """Steps in the order of the wire, with what an honest producer's books say after each."""

    def __init__(
        self, name: str, about: str, *, books: bool = True, draining: bool = False
    ) -> None:
        self._body: dict[str, Any] = {"name": name, "about": about}
        if draining:
            self._body["draining"] = True
        self._steps: list[dict[str, Any]] = []
        self._books = books
        self._credit = [0, 0, 0]
        self._in_flight: dict[int, list[int]] = {}

    def say(self, who: str, note: str, body: dict[str, Any]) -> None:
        step = {"from": who, "note": note, **body}
        self._account(body["header"], bytes.fromhex(body.get("payload", "")))
        if self._books:
            step["credit"] = list(self._credit)
            step["in_flight"] = [str(first) for first in sorted(self._in_flight)]
        self._steps.append(step)

    def producer(self, note: str, kind: str, payload: bytes = b"", **fields: Any) -> None:
        self.say("producer", note, frame(kind, payload, **fields))

    def agent(self, note: str, kind: str, **fields: Any) -> None:
        self.say("agent", note, frame(kind, **fields))

    def close(self, who: str, note: str) -> None:
        """A connection ends; everything that it had under way is lost."""
        step: dict[str, Any] = {"from": who, "note": note, "close": True}
        self._credit, self._in_flight = [0, 0, 0], {}
        if self._books:
            step["credit"], step["in_flight"] = [0, 0, 0], []
        self._steps.append(step)

    def body(self) -> dict[str, Any]:
        return {**self._body, "steps": self._steps}

    def _account(self, header: dict[str, Any], payload: bytes) -> None:
        kind = header["type"]
        number = {name: int(header.get(name, 0)) for name in ("first_sequence", "event_count")}
        if kind in ("HELLO_ACK", "CREDIT_UPDATE"):
            self._add([int(header.get(name, 0)) for name in CREDIT])
        elif kind in ("DATA", "DATA_BATCH"):
            taken = [header.get("count", 1), number["event_count"], len(payload)]
            self._in_flight[number["first_sequence"]] = taken
            self._add([-each for each in taken])
        elif kind == "FAILED" and header.get("count"):
            self._add(self._in_flight.pop(number["first_sequence"]))
        elif kind == "ACCEPTED":
            self._accept([int(each) for each in header["ranges"]])

    def _accept(self, ranges: list[int]) -> None:
        for first, count in zip(ranges[::2], ranges[1::2], strict=True):
            sequence = first
            while sequence < first + count:
                taken = self._in_flight.pop(sequence)
                self._add(taken)
                sequence += taken[0]

    def _add(self, more: list[int]) -> None:
        self._credit = [a + b for a, b in zip(self._credit, more, strict=True)]


CREDIT = ("chunk_slots", "raw_events", "payload_bytes")


def taken_in(talk: Conversation, **fields: Any) -> None:
    talk.producer("Says who it is.", "HELLO", **HELLO, **fields)
    topics = {"partition_counts": [6] * len(fields["topics"])} if "topics" in fields else {}
    epoch = {"producer_epoch": fields["producer_epoch"]} if "producer_epoch" in fields else {}
    talk.agent("Is taken in, with credit.", "HELLO_ACK", **ACK, **topics, **epoch)


def publish_and_drain() -> Conversation:
    talk = Conversation("publish-and-drain", "From the first byte to the last of a good life.")
    taken_in(talk, topics=["flights"])
    target = {"topic": "flights", "partition": 2}
    talk.producer("One chunk.", "DATA", b"hello", event_count=1, log_sequence=0, **target)
    talk.producer(
        "Three more.", "DATA_BATCH", CHUNKS, first_sequence=1, log_sequence=1, **THREE, **target
    )
    talk.agent("Both frames in one range.", "ACCEPTED", ranges=[0, 4])
    talk.producer("Still there?", "PING", token=20_000)
    talk.agent("Still here.", "PONG", token=20_000)
    talk.producer(
        "One more.", "DATA", b"bye", first_sequence=4, event_count=2, log_sequence=4, **target
    )
    talk.agent("Goes away.", "DRAIN", deadline_ms=20_000, reason="the agent is stopping")
    talk.agent("What was under way is answered.", "ACCEPTED", ranges=[4, 1])
    talk.close("producer", "Nothing is under way any more.")
    return talk


def failures() -> Conversation:
    talk = Conversation(
        "failed-and-sent-again",
        "One frame is refused for good; another one fails and is sent again with its sequence.",
    )
    taken_in(talk)
    talk.producer("To a topic that is not there.", "DATA", b"hello", event_count=1, topic="x")
    talk.producer("To one that is.", "DATA_BATCH", CHUNKS, first_sequence=1, topic="t", **THREE)
    talk.agent(
        "For good; the footprint is free again.",
        "FAILED",
        count=1,
        reason="unknown topic 'x'",
        chunk_slots=1,
        raw_events=1,
        payload_bytes=5,
    )
    talk.agent(
        "For now.",
        "FAILED",
        first_sequence=1,
        count=3,
        reason="the log is not reachable",
        retryable=True,
        retry_after_ms=100,
        chunk_slots=3,
        raw_events=3,
        payload_bytes=13,
    )
    talk.producer(
        "Not before 100 ms have passed.", "DATA_BATCH", CHUNKS, first_sequence=1, topic="t", **THREE
    )
    talk.agent("Now.", "ACCEPTED", ranges=[1, 3])
    talk.close("producer", "Has nothing more to say.")
    return talk  # fmt: skip


def overdraft() -> Conversation:
    talk = Conversation(
        "overdraft",
        "A producer sends more than its credit: 9 chunks with 8 slots, of which 7 are left.",
        books=False,
    )
    taken_in(talk)
    talk.producer("Within the credit.", "DATA", b"hello", event_count=1)
    talk.producer(
        "Beyond it.",
        "DATA_BATCH",
        bytes(9),
        first_sequence=1,
        count=9,
        event_count=9,
        lengths=words(*[1] * 9),
    )
    talk.agent(
        "The second fails at once.",
        "FAILED",
        first_sequence=1,
        count=9,
        reason="credit exhausted",
        retryable=True,
        retry_after_ms=100,
        chunk_slots=9,
        raw_events=9,
        payload_bytes=9,
    )
    talk.agent("And a pause.", "CREDIT_UPDATE", retry_after_ms=100)
    talk.agent("The first is accepted all the same.", "ACCEPTED", ranges=[0, 1])
    talk.producer("Smaller.", "DATA", b"small", first_sequence=10, event_count=1)
    talk.agent("Accepted; the connection lives on.", "ACCEPTED", ranges=[10, 1])
    talk.close("producer", "Has nothing more to say.")
    return talk  # fmt: skip


def other_talks() -> list[Conversation]:
    refusal = Conversation("refusal", "No version in common.")
    refusal.producer("From another time.", "HELLO", version_min=7, version_max=9)
    refusal.agent(
        "No, and why.",
        "HELLO_ACK",
        reason="protocol versions 7 to 9 are not spoken here: 1 to 1 are",
    )
    refusal.close("agent", "There is nothing more to say.")

    health = Conversation("health", "A health check needs no identity.")
    health.producer("Anybody there?", "PING", token=1)
    health.agent("Yes.", "PONG", token=1)
    health.close("producer", "That is all.")

    leaving = Conversation(
        "health-draining", "The same check of an agent that goes away.", draining=True
    )
    leaving.producer("Anybody there?", "PING", token=1)
    leaving.agent("Not for long.", "DRAIN", reason="the agent is draining")
    leaving.close("agent", "There is nothing more to say.")

    late = Conversation("refusal-draining", "A producer that comes too late.", draining=True)
    late.producer("Says who it is.", "HELLO", **HELLO)
    late.agent("No, and why.", "HELLO_ACK", reason="the agent is draining", retryable=True)
    late.close("agent", "There is nothing more to say.")

    wrong = Conversation("violation", "A producer says HELLO twice; what was under way is lost.")
    taken_in(wrong)
    wrong.producer("A chunk.", "DATA", b"hello", event_count=1)
    wrong.producer("Once too often.", "HELLO", **HELLO)
    wrong.agent("Why the connection ends.", "FAILED", reason="frame type HELLO is not allowed")
    wrong.close("agent", "There is nothing more to say.")

    widened = Conversation("more-credit", "The window grows while a frame is under way.")
    taken_in(widened)
    widened.producer("Takes some.", "DATA", b"hello", first_sequence=0, event_count=1)
    widened.agent("Adds some.", "CREDIT_UPDATE", chunk_slots=8, raw_events=50, payload_bytes=24)
    widened.agent("Gives back.", "ACCEPTED", ranges=[0, 1])
    widened.agent("Is alive.", "PING", token=12_000)
    widened.producer("So is this side.", "PONG", token=12_000)
    widened.close("producer", "Has nothing more to say.")

    again = Conversation(
        "lost-and-sent-again",
        "The agent dies before it answers; the next one is told the same under the same identity.",
    )
    taken_in(again)
    chunk = {"event_count": 1, "topic": "t", "partition": 0, "log_sequence": 0}
    again.producer("May or may not be accepted.", "DATA", b"hello", **chunk)
    again.close("agent", "Gone.")
    taken_in(again, producer_id=4711)
    again.producer("The same sequences.", "DATA", b"hello", **chunk)
    again.agent("Accepted, and in the log once.", "ACCEPTED", ranges=[0, 1])
    again.close("producer", "Has nothing more to say.")
    return [refusal, health, leaving, late, wrong, widened, again]  # fmt: skip


def texts() -> dict[str, str]:
    """File names and what has to stand in them."""
    frames = [
        {"canonical": True, **each}
        for each in (*handshake_frames(), *data_frames(), *batch_frames(), *answer_frames())
    ]
    talks = [publish_and_drain(), failures(), overdraft(), *other_talks()]
    limit = {"frame_bytes_max": FRAME_BYTES_MAX}
    bodies = {
        "frames.json": {**limit, "frames": [*frames, *tolerated_frames()]},
        "refused.json": {**limit, "malformed": malformed(), "violations": violations()},
        "conversations.json": {
            "terms": {**TERMS, "idle_timeout_ms": 30_000, "retry_after_ms": 100},
            "conversations": [talk.body() for talk in talks],
        },
    }
    return {
        name: json.dumps(body, indent=1, ensure_ascii=False) + "\n" for name, body in bodies.items()
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
