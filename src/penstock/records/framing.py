"""Check of the frames of compressed records, without decompressing them.

A batch with a correct checksum can still be unreadable, because the codec's frame is broken, cut,
or has additional bytes that only some clients ignore. This module checks the frame in a few
microseconds:

| codec  | checked                                               | not known without inflating  |
|--------|-------------------------------------------------------|------------------------------|
| gzip   | header, room for a trailer                            | end of the first member      |
| snappy | Xerial header and the size of each block, or the size | validity of a block          |
|        | that a raw block claims                               |                              |
| lz4    | frame header with its checksum, size of each block    | validity of a block          |
| zstd   | frame headers, windows, size of each block            | validity of a block          |

Source: RFC 1952 (gzip), RFC 8878 (zstd), the LZ4 frame format 1.6, snappy-java's
`SnappyInputStream`, Kafka's `Lz4BlockInputStream`, librdkafka's `rdkafka_msgset_reader.c`.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final
from zlib import crc32

import lz4.frame
import zstandard

from penstock.records.errors import CorruptBatch
from penstock.records.header import Codec

SNAPPY_EXPANSION_MAX: Final = 64
"""Most decompressed bytes per compressed byte: snappy's densest element is 64 bytes from three."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16
GZIP_TRAILER: Final = Struct("<II")
"""Trailer of a gzip member: CRC-32 and decompressed size."""

_GZIP_HEADER_BYTES: Final = 10
_GZIP_CHECKSUM, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 0x02, 0x04, 0x08, 0x10
_GZIP_RESERVED: Final = 0xE0
_INT32: Final = Struct(">i")
_UINT32: Final = Struct("<I")
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
_ZSTD_SKIPPABLE: Final = Struct("<II")
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
    """Return the bytes of one Xerial stream that are not in its blocks: headers and sizes."""
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
