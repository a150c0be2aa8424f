"""The codecs of RecordBatch v2, in the framings that Kafka clients speak, with bounded output.

| codec  | written as                                    | read as                             |
|--------|-----------------------------------------------|-------------------------------------|
| gzip   | one gzip member                               | members back to back                |
| snappy | Xerial stream: magic, version, sized blocks   | Xerial stream, or one raw block     |
| lz4    | one frame, independent blocks, no content     | frames back to back                 |
|        | size (what the Java client's reader takes)    |                                     |
| zstd   | one frame with its content size               | one frame                           |

A producer chooses what its bytes unpack to, so no reader here allocates by what they claim:
every decompressor stops at `max_bytes`, and a claim is checked before it is believed.

zstd contexts cost ten times a small call, so they are kept in small pools; taking from and
giving back to a list is atomic.

Source: Kafka's `CompressionType`, `Lz4BlockInputStream`; snappy-java's `SnappyOutputStream`;
RFC 1952 (gzip), RFC 8878 (zstd), the LZ4 frame format 1.6.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

import cramjam
import lz4.frame
import zstandard

from penstock.base.crc import Readable
from penstock.records.errors import CorruptBatch, RecordTooLarge, UnsupportedCodec
from penstock.records.header import Codec
from penstock.records.limits import COMPRESSED_MEMBERS_MAX, SNAPPY_EXPANSION_MAX

_GZIP_WINDOW: Final = 31
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + Struct(">ii").pack(1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = Struct(">i")
_ZSTD_SIZE_UNKNOWN: Final = -1
_POOLED_CONTEXTS_MAX: Final = 8


LEVELS: Final[dict[Codec, tuple[int, int, int]]] = {
    Codec.GZIP: (1, 6, 9),
    Codec.LZ4: (0, 0, 17),
    Codec.ZSTD: (-131072, 3, 22),
}
"""Smallest, default and largest level of the codecs that have levels."""


def compress(codec: int, data: Readable, level: int | None = None) -> bytes:
    """Compress `data` as the records of one batch.

    Raises:
        UnsupportedCodec: an unknown codec, or a level that it does not have.
    """
    known = Codec.of(codec)
    return _COMPRESSORS[known](data, _level(known, level))


def decompress(codec: int, data: Readable, *, max_bytes: int) -> Readable:
    """Unpack the records of one batch to at most `max_bytes`; codec none returns `data` itself.

    Raises:
        UnsupportedCodec: an unknown codec.
        RecordTooLarge: more than `max_bytes`.
        CorruptBatch: the bytes are damaged, cut, or followed by others.
    """
    known = Codec.of(codec)
    try:
        return _DECOMPRESSORS[known](data, max_bytes)
    except (zlib.error, RuntimeError, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise CorruptBatch(f"{known.name.lower()} data of {len(data)} bytes: {error}") from error


def _level(codec: Codec, level: int | None) -> int:
    smallest, default, largest = LEVELS.get(codec, (0, 0, 0))
    if level is None:
        return default
    if codec in LEVELS and not smallest <= level <= largest:
        raise UnsupportedCodec(
            f"{codec.name.lower()} level {level}; the levels are {smallest} to {largest}"
        )
    return level


def _too_large(codec: Codec, size_bytes: int, max_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"{codec.name.lower()} data of {size_bytes} bytes unpacks to more than the limit of "
        f"{max_bytes} bytes"
    )


def _cut(codec: Codec, size_bytes: int) -> CorruptBatch:
    return CorruptBatch(f"{codec.name.lower()} data of {size_bytes} bytes ends too early")


# None


def _compress_none(data: Readable, _level: int) -> bytes:
    return bytes(data)


def _decompress_none(data: Readable, max_bytes: int) -> Readable:
    if len(data) > max_bytes:
        raise _too_large(Codec.NONE, len(data), max_bytes)
    return data


# gzip


def _compress_gzip(data: Readable, level: int) -> bytes:
    return zlib.compress(data, level, _GZIP_WINDOW)


def _decompress_gzip(data: Readable, max_bytes: int) -> Readable:
    def member(rest: Readable, limit: int) -> tuple[bytes, bytes]:
        machine = zlib.decompressobj(_GZIP_WINDOW)
        part = machine.decompress(rest, limit)
        if not machine.eof and len(part) < limit:
            raise _cut(Codec.GZIP, len(data))
        return part, machine.unused_data

    return _members(Codec.GZIP, data, max_bytes, member)


# snappy


def _compress_snappy(data: Readable, _level: int) -> bytes:
    view = memoryview(data)
    pieces: list[Readable] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(data: Readable, max_bytes: int) -> Readable:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
        blocks = _xerial_blocks(view)
    else:
        blocks = [view]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > max_bytes:
        raise _too_large(Codec.SNAPPY, len(data), max_bytes)
    result = bytearray(sum(sizes))
    target, position = memoryview(result), 0
    for block, size in zip(blocks, sizes, strict=True):
        if size == 0:
            continue
        written = cramjam.snappy.decompress_raw_into(block, target[position : position + size])
        if written != size:
            raise _cut(Codec.SNAPPY, len(data))
        position += size
    return result


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position, end = len(_XERIAL_HEADER), len(view)
    if end < position:
        raise _cut(Codec.SNAPPY, end)
    while position < end:
        if end - position < _INT32.size:
            raise _cut(Codec.SNAPPY, end)
        size = _INT32.unpack_from(view, position)[0]
        position += _INT32.size
        if not 0 < size <= end - position:
            raise CorruptBatch(
                f"snappy block at byte {position} says it has {size} bytes, {end - position} follow"
            )
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    if len(block) == 0:
        raise _cut(Codec.SNAPPY, 0)
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > SNAPPY_EXPANSION_MAX * len(block):
        raise CorruptBatch(f"snappy block of {len(block)} bytes claims to unpack to {size} bytes")
    return size


# lz4


def _compress_lz4(data: Readable, level: int) -> bytes:
    packed: bytes = lz4.frame.compress(
        data, compression_level=level, block_linked=False, store_size=False
    )
    return packed


def _decompress_lz4(data: Readable, max_bytes: int) -> Readable:
    def frame(rest: Readable, limit: int) -> tuple[bytes, bytes]:
        machine = lz4.frame.LZ4FrameDecompressor()
        part: bytes = machine.decompress(rest, max_length=limit)
        if not machine.eof and len(part) < limit:
            raise _cut(Codec.LZ4, len(data))
        return part, machine.unused_data or b""

    return _members(Codec.LZ4, data, max_bytes, frame)


# zstd

_zstd_compressors: list[tuple[int, zstandard.ZstdCompressor]] = []
_zstd_decompressors: list[zstandard.ZstdDecompressor] = []


def _compress_zstd(data: Readable, level: int) -> bytes:
    try:
        pooled_level, machine = _zstd_compressors.pop()
    except IndexError:
        pooled_level, machine = level, zstandard.ZstdCompressor(level=level)
    if pooled_level != level:
        machine = zstandard.ZstdCompressor(level=level)
    packed = machine.compress(data)
    if len(_zstd_compressors) < _POOLED_CONTEXTS_MAX:
        _zstd_compressors.append((level, machine))
    return packed


def _decompress_zstd(data: Readable, max_bytes: int) -> Readable:
    size = zstandard.frame_content_size(data)
    if size > max_bytes:
        raise _too_large(Codec.ZSTD, len(data), max_bytes)
    if size == 0:
        return b""
    try:
        machine = _zstd_decompressors.pop()
    except IndexError:
        machine = zstandard.ZstdDecompressor()
    try:
        unpacked = machine.decompress(data, max_output_size=max_bytes, allow_extra_data=False)
    except zstandard.ZstdError:
        if size == _ZSTD_SIZE_UNKNOWN:
            _tell_zstd_size(data, max_bytes)
        raise
    if len(_zstd_decompressors) < _POOLED_CONTEXTS_MAX:
        _zstd_decompressors.append(machine)
    return unpacked


def _tell_zstd_size(data: Readable, max_bytes: int) -> None:
    """Raise `RecordTooLarge` when a frame that does not say its size is over the limit."""
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        if len(reader.read(max_bytes + 1)) > max_bytes:
            raise _too_large(Codec.ZSTD, len(data), max_bytes)


# Shared


def _members(
    codec: Codec,
    data: Readable,
    max_bytes: int,
    member: Callable[[Readable, int], tuple[bytes, bytes]],
) -> Readable:
    """Unpack members or frames that stand back to back, never writing past the limit."""
    if len(data) == 0:
        raise _cut(codec, 0)
    parts: list[bytes] = []
    rest: Readable = data
    left = max_bytes
    while rest:
        if len(parts) == COMPRESSED_MEMBERS_MAX:
            raise CorruptBatch(f"more than {len(parts)} {codec.name.lower()} members in one batch")
        part, rest = member(rest, left + 1)
        left -= len(part)
        if left < 0:
            raise _too_large(codec, len(data), max_bytes)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


_COMPRESSORS: Final[dict[Codec, Callable[[Readable, int], bytes]]] = {
    Codec.NONE: _compress_none,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}

_DECOMPRESSORS: Final[dict[Codec, Callable[[Readable, int], Readable]]] = {
    Codec.NONE: _decompress_none,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
