"""Frames and headers of the Kafka protocol.

    frame      length i32 | header | body             length counts the bytes after it
    request    key i16 | version i16 | correlation id i32 | client id (i16 length, -1 = null)
               | tagged fields, from header version 2 on
    response   correlation id i32 | tagged fields, from header version 1 on

The client id has the same encoding in all header versions, without a compact length.

Source: Kafka's protocol guide; `RequestHeader.json`, `ResponseHeader.json`; KIP-511.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.errors import MalformedRequest
from penstock.wire.kafka.primitives import skip_tags

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
            offset = skip_tags(frame, offset)
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
