"""Frames, headers and primitive types of the Kafka protocol, and its errors.

    frame      length i32 | header | body             length counts the bytes after it
    request    key i16 | version i16 | correlation id i32 | client id (i16 length, -1 = null)
               | tagged fields, from header version 2 on
    response   correlation id i32 | tagged fields, from header version 1 on

The client id has the same encoding in all header versions, without a compact length.

Source: Kafka's protocol guide; `RequestHeader.json`, `ResponseHeader.json`; KIP-511.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import BugError, InvalidError
from penstock.wire.kafka.apis import APIS

# Primitives of generated and hand-written codecs: varints, times, ids.
#
# uvarint    unsigned varint: 7 bits a byte, least significant group first; the high bit means that
#            another byte follows; at most 5 bytes for the lengths and tags of the protocol


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
SHORT_UVARINTS: Final = tuple(bytes([value]) for value in range(128))


def uvarint(value: int) -> bytes:
    if value < 128:
        return SHORT_UVARINTS[value]
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


TAGS_MAX: Final = 10_000
"""Most tagged fields of a request, as in Kafka 4.4, which is far more than any schema has."""


def skip_tags(buffer: memoryview | bytes, offset: int, before: int = 0) -> int:
    """Skip a section of unknown tagged fields; return the offset after it.

    `before` is the number of tagged fields that the message had before this section.

    Raises:
        MalformedRequest: a field reaches beyond the buffer, or there are more than `TAGS_MAX`.
        IndexError: the buffer ends within the section.
    """
    count = buffer[offset]
    if count == 0:
        return offset + 1
    count, offset = read_uvarint(buffer, offset)
    check_tags(before + count)
    for _ in range(count):
        _, offset = read_uvarint(buffer, offset)
        length, offset = read_uvarint(buffer, offset)
        offset += length
        if offset > len(buffer):
            raise MalformedRequest(f"a tagged field of {length} bytes reaches beyond the frame")
    return offset


def check_tags(count: int) -> None:
    """Reject a message with too many tagged fields; raises MalformedRequest."""
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields, but at most {TAGS_MAX:,} are allowed")


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


LENGTH_BYTES: Final = 4
HEADER_BYTES_MIN: Final = 10
_TLS_CONTENT_TYPES: Final = (0x15, 0x16)  # alert, handshake
_TLS_MAJOR_VERSION: Final = 0x03

_PREFIX = struct.Struct(">hhih")
_LENGTH_AND_CORRELATION = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")


class UntrustworthyFrame(InvalidError):
    """Invalid frame length, after which the connection must be closed."""

    code: ClassVar[str] = "invalid_request"


class RequestHeader(Struct):
    """Header of a request; `body_offset` is where its body starts in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def check_length(length: int, limit: int) -> None:
    """Check the length of a frame before anything is allocated for it.

    Raises:
        UntrustworthyFrame: the length is negative, less than a header, or above `limit`. The
            message says so if the bytes are a TLS hello to a plain-text listener.
    """
    if HEADER_BYTES_MIN <= length <= limit:
        return
    first, second = (length >> 24) & 255, (length >> 16) & 255
    if first in _TLS_CONTENT_TYPES and second == _TLS_MAJOR_VERSION:
        raise UntrustworthyFrame(
            f"the first bytes are a TLS hello (read as a length of {length:,}): the client speaks"
            " TLS to a plain-text listener"
        )
    if length < HEADER_BYTES_MIN:
        raise UntrustworthyFrame(
            f"a frame length of {length} is less than the {HEADER_BYTES_MIN} bytes of a header"
        )
    raise UntrustworthyFrame(
        f"a frame length of {length:,} is above socket.request.max.bytes = {limit:,}"
    )


def read_request_header(frame: memoryview | bytes) -> RequestHeader:
    """Read the header of a request, from a frame without its length.

    If the API key is unknown, the header is read as header version 1.

    Raises:
        MalformedRequest: the frame ends within the header, or the client id is not UTF-8.
    """
    try:
        key, version, correlation_id, length = _PREFIX.unpack_from(frame)
    except struct.error:
        raise MalformedRequest(
            f"a frame of {len(frame)} bytes ends within the request header"
        ) from None
    offset = 10
    client_id: str | None = None
    if length >= 0:
        offset += length
        if offset > len(frame):
            raise MalformedRequest(f"a client id of {length} bytes reaches beyond the frame")
        try:
            client_id = str(frame[10:offset], "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("the client id is not UTF-8") from None
    api = APIS.get(key)
    if api is not None and version >= api.flexible_from:
        try:
            offset = skip_tags(frame, offset) if frame[offset] else offset + 1
        except IndexError:
            raise MalformedRequest("the frame ends within the header's tagged fields") from None
    return RequestHeader(key, version, correlation_id, client_id, offset)


def response_prefix(correlation_id: int, header_version: int, body_bytes: int) -> bytes:
    """Return the frame length and the header that precede a response body of `body_bytes`."""
    if header_version == 0:
        return _LENGTH_AND_CORRELATION.pack(4 + body_bytes, correlation_id)
    return _LENGTH_AND_CORRELATION.pack(5 + body_bytes, correlation_id) + b"\0"


def request_frame(
    api_key: int, version: int, correlation_id: int, client_id: bytes, body: bytes
) -> bytes:
    """Return a whole request frame, for clients."""
    tags = b"\0" if APIS[api_key].request_header_version(version) == 2 else b""
    header = _PREFIX.pack(api_key, version, correlation_id, len(client_id)) + client_id + tags
    return _LENGTH.pack(len(header) + len(body)) + header + body


# Tagged fields with which error responses name the leader of a partition and its address.
#
#   partition   tag 0 (Produce) or 1 (Fetch): leader id i32, leader epoch i32
#               tag 0 (Fetch): leader epoch i32, end offset i64: the point at which the log diverges
#               from the client's
#   response    tag 0: [node id i32, host string, port i32, rack string or null]
#
# Source: KIP-951, KIP-595; `ProduceResponse.json` (from version 10), `FetchResponse.json` (from
# versions 16 and 12).


Leader = tuple[int, int]
"""Broker id of a leader, and its leader epoch."""
Endpoint = tuple[int, str, int, str | None]

_LEADER: Final = struct.Struct(">BBBiix")
_DIVERGING: Final = struct.Struct(">BBBiqx")
_I32: Final = struct.Struct(">i")


def current_leader(tag: int, leader: Leader | None) -> bytes:
    """Return the tagged fields of a partition with its leader; without a leader there are none."""
    return b"\0" if leader is None else _LEADER.pack(1, tag, 9, *leader)


def diverging_epoch(parts: tuple[int, int]) -> bytes:
    """Return the tagged fields of a partition in a Fetch response whose log diverges at `parts`."""
    return _DIVERGING.pack(1, 0, 13, *parts)


def node_endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    """Return the tagged fields of a response with the addresses of leaders."""
    if not endpoints:
        return b"\0"
    field = endpoint_array(endpoints)
    return b"\1\0" + uvarint(len(field)) + field


def endpoint_array(endpoints: Sequence[Endpoint]) -> bytes:
    pieces = [uvarint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        pieces += (_I32.pack(node_id), compact_text(host), _I32.pack(port), compact_text(rack))
        pieces.append(b"\0")
    return b"".join(pieces)


def compact_text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded
