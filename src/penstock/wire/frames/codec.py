"""Frames on a byte stream: a fixed prelude, a Protobuf header, an opaque payload.

The prelude, 16 bytes, big endian:

    at  bytes  field
     0      4  frame length         header and payload, without the prelude
     4      2  header length
     6      1  flags                bit 0: the payload checksum is set; bit 1: the payload is
                                    in the ring that was passed with HELLO, not on the stream
     7      1  reserved             0
     8      4  CRC32C of the header
    12      4  CRC32C of the payload, 0 unless bit 0 is set
    16      …  header (Protobuf, `header.proto`), then payload

A reader rejects an invalid frame by these 16 bytes, before it allocates memory. The checksum of the
header detects bugs, such as a truncated buffer or a reader at a wrong position.

Source: `host-ipc.txt`, the wire protocol. It states a size of 16 bytes but lists fields of 12; the
last four are the payload checksum, for which it reserves space.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from penstock.base.crc import Readable, crc32c
from penstock.base.errors import CorruptError
from penstock.wire.frames.header_pb2 import Header

PRELUDE_BYTES: Final = 16
HEADER_BYTES_MAX: Final = 65_535
FLAG_PAYLOAD_CRC: Final = 0x01
FLAG_PAYLOAD_IN_RING: Final = 0x02
_FLAGS: Final = FLAG_PAYLOAD_CRC | FLAG_PAYLOAD_IN_RING
_PRELUDE: Final = Struct(">IHBBII")


class MalformedFrame(CorruptError):
    """Invalid frame, after which the stream must be closed."""


class Prelude(NamedTuple):
    """Fields of a prelude that has passed the checks."""

    frame_bytes: int
    header_bytes: int
    flags: int
    header_crc: int
    payload_crc: int


class Frame(NamedTuple):
    """Frame whose `payload` is a view of the buffer that it was read from."""

    header: Header
    payload: memoryview
    flags: int = 0
    payload_crc: int = 0


def decode_prelude(buffer: Readable, offset: int, frame_bytes_max: int) -> Prelude:
    """Read and check the prelude at `offset`. The buffer must contain all 16 bytes.

    Raises:
        MalformedFrame: a length over the limit, a header longer than the frame, an unknown flag,
            a reserved byte that is not zero, or a checksum without its flag.
    """
    frame_bytes, header_bytes, flags, reserved, header_crc, payload_crc = _PRELUDE.unpack_from(
        buffer, offset
    )
    if frame_bytes > frame_bytes_max:
        raise MalformedFrame(
            f"frame length {frame_bytes} bytes is over the limit of {frame_bytes_max}"
        )
    if header_bytes > frame_bytes or header_bytes == 0:
        raise MalformedFrame(
            f"header length {header_bytes} bytes: must be 1 to the frame length, {frame_bytes}"
        )
    if flags & ~_FLAGS or reserved:
        raise MalformedFrame(
            f"flags {flags:#04x}, reserved byte {reserved:#04x}: only flags {_FLAGS:#04x} are known"
        )
    if payload_crc and not flags & FLAG_PAYLOAD_CRC:
        raise MalformedFrame(f"payload checksum {payload_crc:#010x} is set without its flag")
    if flags & FLAG_PAYLOAD_IN_RING and frame_bytes != header_bytes:
        raise MalformedFrame(
            f"{frame_bytes - header_bytes} payload bytes are on the stream, but the payload is"
            " flagged as in the ring"
        )
    return Prelude(frame_bytes, header_bytes, flags, header_crc, payload_crc)


def decode_body(prelude: Prelude, body: memoryview) -> Frame:
    """Decode the rest of a frame: `body` has the `prelude.frame_bytes` bytes after the prelude.

    Raises:
        MalformedFrame: a checksum that does not match, or a header that is not Protobuf.
    """
    header = _header(bytes(body[: prelude.header_bytes]), prelude.header_crc)
    payload = body[prelude.header_bytes :]
    if prelude.flags == FLAG_PAYLOAD_CRC:
        check_payload(payload, prelude.payload_crc)
    return Frame(header, payload, prelude.flags, prelude.payload_crc)


def _header(head: bytes, header_crc: int) -> Header:
    _check_header(head, header_crc)
    try:
        return Header.FromString(head)
    except DecodeError as error:
        raise MalformedFrame(f"header of {len(head)} bytes is not Protobuf: {error}") from None


def _check_header(head: Readable, header_crc: int) -> None:
    if crc32c(head) != header_crc:
        raise MalformedFrame(
            f"header checksum {header_crc:#010x} does not match its {len(head)} bytes"
        )


def check_payload(payload: memoryview, payload_crc: int) -> None:
    """Check the checksum of a payload.

    Raises:
        MalformedFrame: the checksum does not match.
    """
    if crc32c(payload) != payload_crc:
        raise MalformedFrame(
            f"payload checksum {payload_crc:#010x} does not match its {len(payload)} bytes"
        )


def decode(
    buffer: Readable, offset: int, frame_bytes_max: int
) -> tuple[Frame, int] | tuple[None, int]:
    """Read the frame at `offset`.

    Returns:
        The frame, and its size with the prelude. If the frame is incomplete: None, and the number
        of bytes from `offset` on that the next call needs.

    Raises:
        MalformedFrame: the frame is invalid, so the stream must be closed.
    """
    left = len(buffer) - offset
    if left < PRELUDE_BYTES:
        return None, PRELUDE_BYTES
    frame_bytes, header_bytes, flags, reserved, header_crc, payload_crc = _PRELUDE.unpack_from(
        buffer, offset
    )
    size = PRELUDE_BYTES + frame_bytes
    if (
        flags
        or reserved
        or payload_crc
        or not header_bytes
        or header_bytes > frame_bytes
        or frame_bytes > frame_bytes_max
    ):
        prelude = decode_prelude(buffer, offset, frame_bytes_max)
        if left < size:
            return None, size
        return decode_body(
            prelude, memoryview(buffer)[offset + PRELUDE_BYTES : offset + size]
        ), size
    if left < size:
        return None, size
    start = offset + PRELUDE_BYTES
    payload_at = start + header_bytes
    view = memoryview(buffer)
    header = _header(bytes(view[start:payload_at]), header_crc)
    return Frame(header, view[payload_at : offset + size]), size


def decode_parts(
    buffer: Readable, offset: int, frame_bytes_max: int
) -> tuple[tuple[memoryview, memoryview], int] | tuple[None, int]:
    """Read a frame as `decode` does, but return the bytes of its header without decoding them.

    Replication links use this, because their headers are not Protobuf.

    Raises:
        MalformedFrame: the frame is invalid, so the stream must be closed.
    """
    left = len(buffer) - offset
    if left < PRELUDE_BYTES:
        return None, PRELUDE_BYTES
    prelude = decode_prelude(buffer, offset, frame_bytes_max)
    size = PRELUDE_BYTES + prelude.frame_bytes
    if left < size:
        return None, size
    body = memoryview(buffer)[offset + PRELUDE_BYTES : offset + size]
    header, payload = body[: prelude.header_bytes], body[prelude.header_bytes :]
    _check_header(header, prelude.header_crc)
    if prelude.flags:
        check_payload(payload, prelude.payload_crc)
    return (header, payload), size


def encode_parts(header: bytes, payload_bytes: int) -> bytes:
    """Return the prelude and header of a frame, after which the caller writes the payload.

    The payload has no checksum.

    Raises:
        MalformedFrame: the header is empty or longer than 65,535 bytes.
    """
    _check_size(header)
    frame_bytes = len(header) + payload_bytes
    return _PRELUDE.pack(frame_bytes, len(header), 0, 0, crc32c(header), 0) + header


def _check_size(header: bytes) -> None:
    if not 0 < len(header) <= HEADER_BYTES_MAX:
        raise MalformedFrame(
            f"header of {len(header)} bytes: must have 1 to {HEADER_BYTES_MAX} bytes"
        )


def encode(
    header: Header,
    payload: Sequence[Readable] = (),
    *,
    payload_bytes: int | None = None,
    in_ring: bool = False,
    checksum: bool = False,
) -> bytes:
    """Return the prelude and header of a frame, after which the caller writes the payload.

    `payload_bytes` is the size of `payload`, if the caller knows it. With `in_ring` the payload is
    not on the stream. With `checksum` the prelude contains the CRC32C of the payload.

    Raises:
        MalformedFrame: the header is longer than 65,535 bytes.
    """
    body = header.SerializeToString()
    _check_size(body)
    flags, crc = 0, 0
    if checksum:
        flags = FLAG_PAYLOAD_CRC
        for piece in payload:
            crc = crc32c(piece, crc)
    if payload_bytes is None:
        payload_bytes = sum(map(len, payload))
    if in_ring:
        flags |= FLAG_PAYLOAD_IN_RING
        payload_bytes = 0
    prelude = _PRELUDE.pack(len(body) + payload_bytes, len(body), flags, 0, crc32c(body), crc)
    return prelude + body
