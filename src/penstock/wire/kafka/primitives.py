"""Primitives of generated and hand-written codecs: varints, times, ids.

uvarint    unsigned varint: 7 bits a byte, least significant group first; the high bit means that
           another byte follows; at most 5 bytes for the lengths and tags of the protocol
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from penstock.base.errors import BugError, InvalidError

# Errors of the wire protocol: malformed frames, and values that cannot be encoded.


class MalformedRequest(InvalidError):
    """Message whose bytes do not follow its schema."""

    code: ClassVar[str] = "invalid_request"


class UnsupportedVersion(InvalidError):
    """API key, or version of an API, that the broker does not support."""

    code: ClassVar[str] = "unsupported_version"


class UnencodableResponse(BugError):
    """Value that does not fit its schema."""


ZERO_UUID: Final = bytes(16)
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT: Final = tuple(bytes([value]) for value in range(128))


def uvarint(value: int) -> bytes:
    if value < 128:
        return _SHORT[value]
    pieces = bytearray()
    while value > 127:
        pieces.append(value & 127 | 128)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def read_uvarint(buffer: memoryview | bytes, offset: int) -> tuple[int, int]:
    """Return an unsigned varint, and the offset after it.

    Raises:
        MalformedRequest: more than five bytes.
        IndexError: the buffer ends within it.
    """
    value = buffer[offset]
    offset += 1
    if value < 128:
        return value, offset
    value &= 127
    for shift in (7, 14, 21, 28):
        byte = buffer[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
    raise MalformedRequest("a varint is longer than five bytes")


def skip_tags(buffer: memoryview | bytes, offset: int) -> int:
    """Skip a section of unknown tagged fields; return the offset after it.

    Raises:
        MalformedRequest: a field reaches beyond the buffer.
        IndexError: the buffer ends within the section.
    """
    count = buffer[offset]
    if count == 0:
        return offset + 1
    count, offset = read_uvarint(buffer, offset)
    for _ in range(count):
        _, offset = read_uvarint(buffer, offset)
        length, offset = read_uvarint(buffer, offset)
        offset += length
        if offset > len(buffer):
            raise MalformedRequest(f"a tagged field of {length} bytes reaches beyond the frame")
    return offset


def milliseconds(value: int | timedelta) -> int:
    """Return a duration in milliseconds; in kio's dataclasses it is a `timedelta`."""
    if isinstance(value, int):
        return value
    return round(value.total_seconds() * 1000)


def timestamp_ms(value: int | datetime | None) -> int:
    """Return a time in milliseconds since the epoch, -1 for None.

    In kio's dataclasses a time is a `datetime`.
    """
    if value is None:
        return -1
    if isinstance(value, int):
        return value
    return round(value.timestamp() * 1000)


def uuid_bytes(value: Any) -> bytes:
    """Return the 16 bytes of a UUID; zeros for None."""
    if value is None:
        return ZERO_UUID
    return value if isinstance(value, bytes) else value.bytes


def read_uuid(value: bytes) -> UUID | None:
    """Return the UUID with these 16 bytes; None for zeros."""
    return None if value == ZERO_UUID else UUID(bytes=value)


def read_duration(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def read_time(value: int) -> datetime:
    return _EPOCH + value * _MILLISECOND


def read_optional_time(value: int) -> datetime | None:
    return None if value == -1 else read_time(value)
