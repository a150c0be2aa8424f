"""Compression codecs of RecordBatch v2, in the framings of Kafka clients, with limited output.

| codec  | written as                                    | read as                              |
|--------|-----------------------------------------------|--------------------------------------|
| gzip   | one gzip member                               | members back to back; other bytes    |
|        |                                               | after a member are ignored           |
| snappy | Xerial stream: magic, version, sized blocks   | Xerial streams, or one raw block     |
| lz4    | one frame, independent blocks, no content     | the first frame; later bytes and the |
|        | size (as the Java client's reader requires)   | content's checksum are ignored       |
| zstd   | one frame with its content size               | frames back to back, skippable ones  |

`decompress` accepts exactly what Apache Kafka's Java client accepts, with the same result.
`decompress_portable` also rejects data that some client cannot read. A broker uses it to check a
batch before storing it. It runs in a thread and decompresses in steps, because the libraries hold
the interpreter's lock while they copy their output.

No reader allocates memory by a size that the producer's bytes claim: every decompressor stops at
`max_bytes`. Creating a zstd context takes ten times as long as a small call, so contexts are kept
in small pools. List operations on the pools are atomic.

Source: Kafka's `CompressionType`, `Lz4BlockInputStream`; snappy-java's `SnappyOutputStream`; the
JDK's `GZIPInputStream`.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final

import cramjam
import lz4.frame
import zstandard

from penstock.base.crc import Readable
from penstock.records.errors import CorruptBatch, RecordTooLarge, UnsupportedCodec
from penstock.records.framing import (
    GZIP_TRAILER,
    XERIAL_MAGIC,
    check_frame,
    gzip_header_bytes,
    lz4_frame,
    snappy_blocks,
    snappy_size,
)
from penstock.records.header import Codec

COMPRESSED_MEMBERS_MAX: Final = 1024
"""Most gzip members in one batch; normal clients write one."""

_GZIP_WINDOW: Final = 31
_RAW_DEFLATE: Final = -15
_GZIP_IGNORED_BYTES: Final = 18
"""Most bytes after a member that Java's reader ignores without searching for another member."""
_XERIAL_HEADER: Final = XERIAL_MAGIC + Struct(">ii").pack(1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = Struct(">i")
_STEP_BYTES: Final = 1 << 20
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
        UnsupportedCodec: the codec is unknown, or does not have this level.
    """
    known = Codec.of(codec)
    return _COMPRESSORS[known](data, _level(known, level))


def decompress(codec: int, data: Readable, *, max_bytes: int) -> Readable:
    """Decompress the records of one batch; with codec none, return `data` itself.

    Raises:
        UnsupportedCodec: the codec is unknown.
        RecordTooLarge: the decompressed records exceed `max_bytes`.
        CorruptBatch: the compressed bytes are damaged or cut.
    """
    known = Codec.of(codec)
    return _unpacked(_DECOMPRESSORS[known], known, data, max_bytes)


def decompress_portable(codec: int, data: Readable, *, max_bytes: int) -> Readable:
    """Decompress the records of one batch, after checking that every client reads the same records.

    Raises:
        UnsupportedCodec, RecordTooLarge: as in `decompress`.
        CorruptBatch: some client cannot read the bytes, or reads other records.
    """
    known = Codec.of(codec)
    if known:
        check_frame(known, memoryview(data))
    return _unpacked(_PORTABLE.get(known, _DECOMPRESSORS[known]), known, data, max_bytes)


def _unpacked(
    unpack: Callable[[Readable, int], Readable], codec: Codec, data: Readable, max_bytes: int
) -> Readable:
    try:
        return unpack(data, max_bytes)
    except (zlib.error, RuntimeError, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise CorruptBatch(f"{codec.name.lower()} data of {len(data)} bytes: {error}") from error


def _level(codec: Codec, level: int | None) -> int:
    smallest, default, largest = LEVELS.get(codec, (0, 0, 0))
    if level is None:
        return default
    if codec in LEVELS and not smallest <= level <= largest:
        raise UnsupportedCodec(
            f"{codec.name.lower()} level {level} must be from {smallest} to {largest}"
        )
    return level


def _too_large(codec: Codec, size_bytes: int, max_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"{codec.name.lower()} data of {size_bytes} bytes decompresses to more than the limit of "
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
    parts = _gzip_members(data, max_bytes, _inflated)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _portable_gzip(data: Readable, max_bytes: int) -> Readable:
    """Decompress the first member, and reject records in others, which librdkafka does not read."""
    first, *others = _gzip_members(data, max_bytes, _inflated_in_steps)
    if any(others):
        raise CorruptBatch(
            f"gzip data of {len(data)} bytes has records in {len(others) + 1} members, but some"
            " clients read only the first. Write one member"
        )
    return first


def _inflated(machine: Any, data: Readable, max_bytes: int) -> Readable | None:
    """Decompress a stream; return None if the result exceeds `max_bytes`."""
    part: bytes = machine.decompress(data, max_bytes + 1)
    return None if len(part) > max_bytes else part


def _inflated_in_steps(machine: Any, data: Readable, max_bytes: int) -> Readable | None:
    def steps() -> Iterator[bytes]:
        rest = data
        while not machine.eof and (part := machine.decompress(rest, _STEP_BYTES)):
            yield part
            rest = machine.unconsumed_tail

    return _gathered(steps(), max_bytes)


def _gathered(parts: Iterator[bytes], max_bytes: int) -> Readable | None:
    found, size = list[bytes](), 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size > max_bytes:
            return None
    if len(found) < 2:
        return found[0] if found else b""
    whole = memoryview(mmap.mmap(-1, size))  # its pages are allocated only when written
    size = 0
    for part in found:
        whole[size : size + len(part)] = part
        size += len(part)
    return whole


def _gzip_members(
    data: Readable, max_bytes: int, inflated: Callable[[Any, Readable, int], Readable | None]
) -> list[Readable]:
    """Decompress adjacent members, which are recognised as by Java's `GZIPInputStream`."""
    rest, parts, left = memoryview(data), list[Readable](), max_bytes
    header = gzip_header_bytes(rest)
    if header < 0:
        raise CorruptBatch(f"gzip data of {len(rest)} bytes does not begin with a gzip header")
    while header >= 0:
        if len(parts) == COMPRESSED_MEMBERS_MAX:
            raise CorruptBatch(f"more than {len(parts)} gzip members in one batch")
        machine = zlib.decompressobj(_RAW_DEFLATE)
        part = inflated(machine, rest[header:], left)
        if part is None:
            raise _too_large(Codec.GZIP, len(data), max_bytes)
        left -= len(part)
        trailer = memoryview(machine.unused_data)
        if not machine.eof or len(trailer) < GZIP_TRAILER.size:
            raise _cut(Codec.GZIP, len(data))
        if GZIP_TRAILER.unpack_from(trailer) != (zlib.crc32(part), len(part) & 0xFFFFFFFF):
            raise CorruptBatch(f"gzip data of {len(data)} bytes has a wrong checksum or size")
        parts.append(part)
        rest = trailer[GZIP_TRAILER.size :]
        header = gzip_header_bytes(rest) if len(rest) > _GZIP_IGNORED_BYTES else -1
    return parts


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
    blocks = snappy_blocks(memoryview(data))
    sizes = [snappy_size(block) for block in blocks]
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


# lz4


def _compress_lz4(data: Readable, level: int) -> bytes:
    packed: bytes = lz4.frame.compress(
        data, compression_level=level, block_linked=False, store_size=False
    )
    return packed


def _decompress_lz4(data: Readable, max_bytes: int) -> Readable:
    machine = lz4.frame.LZ4FrameDecompressor()
    # The end mark is cut off. The library would verify size and checksum there; Java does not.
    frame = memoryview(data)[: lz4_frame(memoryview(data))[0]]
    part: bytes = machine.decompress(frame, max_length=max_bytes + 1)
    if len(part) > max_bytes:
        raise _too_large(Codec.LZ4, len(data), max_bytes)
    return part


def _portable_lz4(data: Readable, max_bytes: int) -> Readable:
    machine = lz4.frame.LZ4FrameDecompressor()

    def steps() -> Iterator[bytes]:
        rest = data
        while not machine.eof and (part := machine.decompress(rest, max_length=_STEP_BYTES)):
            yield part
            rest = b""

    whole = _gathered(steps(), max_bytes)
    if whole is None:
        raise _too_large(Codec.LZ4, len(data), max_bytes)
    return whole


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
    if size <= 0:
        return _read_zstd(data, max_bytes)
    try:
        machine = _zstd_decompressors.pop()
    except IndexError:
        machine = zstandard.ZstdDecompressor()
    try:
        unpacked = machine.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError:
        return _read_zstd(data, max_bytes)
    if len(_zstd_decompressors) < _POOLED_CONTEXTS_MAX:
        _zstd_decompressors.append(machine)
    return unpacked


def _read_zstd(data: Readable, max_bytes: int) -> Readable:
    parts, left = list[bytes](), max_bytes + 1
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while left and (part := reader.read(min(left, _STEP_BYTES))):
            parts.append(part)
            left -= len(part)
    if left == 0:
        raise _too_large(Codec.ZSTD, len(data), max_bytes)
    return b"".join(parts)


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

_PORTABLE: Final[dict[Codec, Callable[[Readable, int], Readable]]] = {
    Codec.GZIP: _portable_gzip,
    Codec.LZ4: _portable_lz4,
}
