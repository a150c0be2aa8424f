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
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import cramjam
import lz4.frame
import zstandard
from msgspec import Struct

from penstock.base.crc import Readable
from penstock.records.errors import CorruptBatch, RecordTooLarge, UnsupportedCodec
from penstock.records.header import Codec

# Check of the frames of compressed records, without decompressing them.
#
# A batch with a correct checksum can still be unreadable, because the codec's frame is broken, cut,
# or has additional bytes that only some clients ignore. This module checks the frame in a few
# microseconds:
#
# | codec  | checked                                               | not known without inflating  |
# |--------|-------------------------------------------------------|------------------------------|
# | gzip   | header, room for a trailer                            | end of the first member      |
# | snappy | Xerial header and the size of each block, or the size | validity of a block          |
# |        | that a raw block claims                               |                              |
# | lz4    | frame header with its checksum, size of each block    | validity of a block          |
# | zstd   | frame headers, windows, size of each block            | validity of a block          |
#
# Source: RFC 1952 (gzip), RFC 8878 (zstd), the LZ4 frame format 1.6, snappy-java's
# `SnappyInputStream`, Kafka's `Lz4BlockInputStream`, librdkafka's `rdkafka_msgset_reader.c`.


SNAPPY_EXPANSION_MAX: Final = 64
"""Most decompressed bytes per compressed byte: snappy's densest element is 64 bytes from three."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16
GZIP_TRAILER: Final = struct.Struct("<II")
"""Trailer of a gzip member: CRC-32 and decompressed size."""

_GZIP_HEADER_BYTES: Final = 10
_GZIP_CHECKSUM, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 0x02, 0x04, 0x08, 0x10
_GZIP_RESERVED: Final = 0xE0
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct("<I")
_XERIAL_HEAD: Final = _INT32.unpack_from(XERIAL_MAGIC)[0]
_SNAPPY_SIZE_BYTES_MAX: Final = 5
_LZ4_HEADER_BYTES: Final = 7
_LZ4_SIZED_HEADER_BYTES: Final = 15
_LZ4_SIZED: Final = 0x08
_LZ4_PLAIN_BLOCK: Final = 1 << 31
_ZSTD_BLOCK_BYTES: Final = 3
"""Size of a block's header, which has a flag for the last block, the block's kind and its size."""
_ZSTD_CHECKSUM_BYTES: Final = 4
_ZSTD_FRAMES_MAX: Final = 1024
_ZSTD_BLOCKS_MAX: Final = 1 << 15
"""Most blocks of a frame. Most blocks have 128 KiB, unless the writer flushes often."""
_ZSTD_SKIPPABLE: Final = struct.Struct("<II")
_ZSTD_SKIPPABLE_MAGICS: Final = frozenset(
    bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60)
)
_ZSTD_RLE, _ZSTD_RESERVED = 1, 3
_ZSTD_WINDOW_MAX: Final = 1 << 27
"""Largest window that zstd decoders accept by default."""
_NAMED_BYTES: Final = 16


def check_frame(codec: int, data: memoryview) -> None:
    """Check that Apache Kafka's client, librdkafka and Penstock's client can read a frame.

    Raises:
        CorruptBatch: one of them cannot; the message has the reason.
    """
    match codec:
        case Codec.GZIP:
            end = gzip_header_bytes(data)
            if end < 0 or data[3] & _GZIP_RESERVED or len(data) - end <= GZIP_TRAILER.size:
                raise _refused(Codec.GZIP, data, "not a whole gzip member")
        case Codec.SNAPPY:
            blocks = snappy_blocks(data)
            if not sum(snappy_size(block) for block in blocks):
                raise _refused(Codec.SNAPPY, data, "it decompresses to no bytes")
            _check_end(Codec.SNAPPY, data, sum(map(len, blocks)) + _xerial_bytes(data, blocks))
        case Codec.LZ4:
            _, end, linked = lz4_frame(data)
            if linked:
                raise _refused(
                    Codec.LZ4, data, "its blocks are linked, which Apache Kafka cannot read"
                )
            _check_end(Codec.LZ4, data, end)
        case Codec.ZSTD:
            if not zstd_ends(data):
                raise _refused(Codec.ZSTD, data, "it decompresses to no bytes")


def gzip_header_bytes(data: memoryview) -> int:
    """Return the size of the gzip header at the start of `data`; -1 if there is none."""
    if len(data) < _GZIP_HEADER_BYTES or bytes(data[:3]) != b"\x1f\x8b\x08":
        return -1
    flags, at = data[3], _GZIP_HEADER_BYTES
    if flags & (_GZIP_EXTRA | _GZIP_NAME | _GZIP_COMMENT | _GZIP_CHECKSUM):
        at = _gzip_fields(bytes(data), flags)
    return at if at <= len(data) else -1


def _gzip_fields(data: bytes, flags: int) -> int:
    """Return the size of a header with optional fields; -1 if it is cut or damaged."""
    at = _GZIP_HEADER_BYTES
    if flags & _GZIP_EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            at = data.find(0, at) + 1
            if at == 0:
                return -1
    if flags & _GZIP_CHECKSUM:
        if int.from_bytes(data[at : at + 2], "little") != crc32(data[:at]) & 0xFFFF:
            return -1
        at += 2
    return at


def snappy_blocks(data: memoryview) -> list[memoryview]:
    """Return the raw blocks of snappy data: those of its Xerial streams, or else all of the data.

    As in snappy-java, Xerial streams may follow each other, and up to three bytes after them are
    ignored.

    Raises:
        CorruptBatch: a block is cut or empty.
    """
    if len(data) < XERIAL_HEADER_BYTES or bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return [data]
    blocks: list[memoryview] = []
    position, end = XERIAL_HEADER_BYTES, len(data)
    while end - position >= _INT32.size:
        size = _INT32.unpack_from(data, position)[0]
        if size == _XERIAL_HEAD and end - position >= XERIAL_HEADER_BYTES:
            position += XERIAL_HEADER_BYTES
            continue
        position += _INT32.size
        if not 0 < size <= end - position:
            raise CorruptBatch(
                f"snappy block at byte {position} declares {size} bytes, but only"
                f" {end - position} follow"
            )
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _xerial_bytes(data: memoryview, blocks: list[memoryview]) -> int:
    """Return the bytes of headers and sizes in one Xerial stream; 0 if `data` is one raw block."""
    raw = len(blocks) == 1 and len(blocks[0]) == len(data)
    return 0 if raw else XERIAL_HEADER_BYTES + _INT32.size * len(blocks)


def snappy_size(block: memoryview) -> int:
    """Return the decompressed size that a raw block's header declares.

    Raises:
        CorruptBatch: the header is cut, or the size is more than snappy can achieve.
    """
    size = 0
    for place, byte in enumerate(block[:_SNAPPY_SIZE_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if size > SNAPPY_EXPANSION_MAX * len(block):
                raise CorruptBatch(
                    f"snappy block of {len(block)} bytes declares {size} decompressed bytes, more"
                    " than snappy can achieve"
                )
            return size
    raise _refused(Codec.SNAPPY, block, "it is cut within the size of a block")


def lz4_frame(data: memoryview) -> tuple[int, int, bool]:
    """Return the end of an lz4 frame's blocks, the end of the frame, and whether blocks are linked.

    Both ends are byte offsets in `data`.

    Raises:
        CorruptBatch: the header or a block is invalid, or the frame has no end.
    """
    if len(data) < _LZ4_HEADER_BYTES:
        raise _refused(Codec.LZ4, data, "it is shorter than a frame header")
    head = _LZ4_SIZED_HEADER_BYTES if data[4] & _LZ4_SIZED else _LZ4_HEADER_BYTES
    block_max, blocks_checked, content_checked, linked = _lz4_header(bytes(data[:head]))
    position, end = head, len(data)
    while end - position >= _UINT32.size:
        size = _UINT32.unpack_from(data, position)[0] & ~_LZ4_PLAIN_BLOCK
        if _UINT32.unpack_from(data, position)[0] == 0:
            last = position + _UINT32.size * (1 + content_checked)
            if last > end:
                break
            return position, last, linked
        if size > block_max:
            raise _refused(
                Codec.LZ4, data,
                f"the block at byte {position} has {size} bytes, but the limit is {block_max}",
            )  # fmt: skip
        position += _UINT32.size * (1 + blocks_checked) + size
    raise _refused(Codec.LZ4, data, "its frame has no end")


@lru_cache(maxsize=256)
def _lz4_header(head: bytes) -> tuple[int, bool, bool, bool]:
    """Return the facts of a frame header.

    These are the largest block size, whether blocks and content have checksums, and whether blocks
    are linked. The result is cached, because the library needs 10 µs to decode a header.
    """
    try:
        info = lz4.frame.get_frame_info(head)
    except RuntimeError as error:
        raise _refused(Codec.LZ4, memoryview(head), str(error)) from None
    if info["skippable"]:
        raise _refused(Codec.LZ4, memoryview(head), "it is a skippable frame without records")
    linked = info["block_linked"]
    return info["block_size"], info["block_checksum"], info["content_checksum"], linked


def zstd_ends(data: memoryview) -> list[int]:
    """Return the end offsets of the zstd frames that have content; skippable frames have none.

    Raises:
        CorruptBatch: a header or block is invalid, or the last frame has no end.
    """
    ends: list[int] = []
    position = 0
    while position < len(data):
        rest = data[position:]
        if len(rest) >= _ZSTD_SKIPPABLE.size and bytes(rest[:4]) in _ZSTD_SKIPPABLE_MAGICS:
            position += _ZSTD_SKIPPABLE.size + _ZSTD_SKIPPABLE.unpack_from(rest)[1]
        elif len(ends) == _ZSTD_FRAMES_MAX:
            raise _refused(Codec.ZSTD, data, f"it has more than {len(ends)} frames")
        else:
            size, filled = _zstd_frame(rest)
            position += size
            if filled:
                ends.append(position)
    if position > len(data):
        raise _refused(Codec.ZSTD, data, "its last frame has no end")
    return ends


def _zstd_frame(data: memoryview) -> tuple[int, bool]:
    """Return the size in bytes of the zstd frame at the start of `data`, and whether it has
    content.
    """
    try:
        parameters = zstandard.get_frame_parameters(data)
        position, end = zstandard.frame_header_size(data), len(data)
    except zstandard.ZstdError as error:
        raise _refused(Codec.ZSTD, data, str(error)) from None
    if parameters.window_size > _ZSTD_WINDOW_MAX:
        reason = f"its window of {parameters.window_size} bytes is above {_ZSTD_WINDOW_MAX}"
        raise _refused(Codec.ZSTD, data, reason)
    if parameters.dict_id:
        raise _refused(Codec.ZSTD, data, f"it needs the dictionary {parameters.dict_id}")
    filled = False
    for _ in range(_ZSTD_BLOCKS_MAX):
        if end - position < _ZSTD_BLOCK_BYTES:
            break
        block = int.from_bytes(data[position : position + _ZSTD_BLOCK_BYTES], "little")
        kind, size = block >> 1 & 3, block >> 3
        if kind == _ZSTD_RESERVED:
            raise _refused(Codec.ZSTD, data, f"the block at byte {position} has an unknown kind")
        filled = filled or size > 0
        position += _ZSTD_BLOCK_BYTES + (1 if kind == _ZSTD_RLE else size)
        if block & 1:
            position += _ZSTD_CHECKSUM_BYTES * parameters.has_checksum
            if position <= end:
                return position, filled
            break
    reason = f"its frame has no end within {_ZSTD_BLOCKS_MAX} blocks"
    raise _refused(Codec.ZSTD, data, reason)


def _check_end(codec: Codec, data: memoryview, end: int) -> None:
    if end != len(data):
        reason = f"{len(data) - end} bytes follow the first frame, which some clients do not ignore"
        raise _refused(codec, data, reason)


def _refused(codec: Codec, data: memoryview, reason: str) -> CorruptBatch:
    first = bytes(data[:_NAMED_BYTES]).hex()
    return CorruptBatch(f"{codec.name.lower()} data of {len(data)} bytes, {first}…: {reason}")


COMPRESSED_MEMBERS_MAX: Final = 1024
"""Most gzip members in one batch; normal clients write one."""

_GZIP_WINDOW: Final = 31
_RAW_DEFLATE: Final = -15
_GZIP_IGNORED_BYTES: Final = 18
"""Most bytes after a member that Java's reader ignores without searching for another member."""
_XERIAL_HEADER: Final = XERIAL_MAGIC + struct.Struct(">ii").pack(1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
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


OPENED_REQUEST_BYTES_MAX: Final = 512 << 20
"""Most decompressed bytes that a broker validates for all batches of one produce request."""


class Allowance(Struct):
    """Remaining budget of decompressed bytes for a request; 0 after a batch exceeded a limit."""

    left_bytes: int = OPENED_REQUEST_BYTES_MAX

    def unpacked(
        self, unpack: Callable[..., Readable], codec: int, data: Readable, *, max_bytes: int
    ) -> Readable:
        """Decompress with `unpack(codec, data, max_bytes=...)`, and deduct the bytes from the
        budget.

        Raises:
            RecordTooLarge: this batch exceeds `max_bytes`, all batches together exceed
                `OPENED_REQUEST_BYTES_MAX`, or an earlier batch exceeded a limit.
            CorruptBatch, UnsupportedCodec: raised by `unpack`.
        """
        limit = min(max_bytes, self.left_bytes)
        if limit <= 0:
            raise RecordTooLarge(
                "not decompressed, because earlier batches of the request already exceeded a limit"
                " of decompressed bytes. Send fewer or smaller batches in a request"
            )
        try:
            found = unpack(codec, data, max_bytes=limit)
        except RecordTooLarge as error:
            self.left_bytes = 0
            if limit == max_bytes:
                raise
            raise RecordTooLarge(
                f"the compressed batches of the request decompress to more than"
                f" {OPENED_REQUEST_BYTES_MAX} bytes in total. Send fewer batches in a request"
            ) from error
        self.left_bytes -= len(found)
        return found
