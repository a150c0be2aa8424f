"""OTLP metrics, written field by field: not by the classes that read them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

NAME = "org.apache.kafka.producer.connection.creation.total"


def field(number: int, data: bytes) -> bytes:
    """A field of a length and bytes."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    pieces = bytearray()
    while value > 127:
        pieces.append(value & 127 | 128)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def point(value: float, attributes: Mapping[str, str] | None = None) -> bytes:
    """A data point: times, a double or a fixed number, attributes, and flags."""
    data = b"\x11" + struct.pack("<Q", 1) + b"\x19" + struct.pack("<Q", 2)
    if isinstance(value, float):
        data += b"\x21" + struct.pack("<d", value)
    else:
        data += b"\x31" + struct.pack("<q", value)
    for key, text in (attributes or {}).items():
        data += field(7, field(1, key.encode()) + field(2, field(1, text.encode())))
    return data + b"\x40\x00"


def gauge(name: str, *points: bytes) -> bytes:
    return field(1, name.encode()) + field(5, b"".join(field(1, data) for data in points))


def total(name: str, *points: bytes, delta: bool = True, monotonic: bool = True) -> bytes:
    body = b"".join(field(1, data) for data in points)
    body += b"\x10" + bytes([1 if delta else 2]) + b"\x18" + bytes([monotonic])
    return field(1, name.encode()) + field(7, body)


def pushed(*metrics: bytes) -> bytes:
    """Encode a whole push, with an unused resource and scope."""
    scope = field(1, field(1, b"scope")) + b"".join(field(2, metric) for metric in metrics)
    return field(1, field(1, field(1, field(1, b"host"))) + field(2, scope))
