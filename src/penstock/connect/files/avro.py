"""Avro object container files: blocks of values, read and written as Arrow columns.

    "Obj" 1 | metadata (map of bytes: avro.schema, avro.codec) | 16 bytes sync marker
    block:  count (long) | size in bytes (long) | values, compressed | sync marker

The values of a block are encoded as the items of an array are. Blocks are therefore decoded as the
one field of a record, an array of the file's type.

Source: the Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.base.errors import CorruptError
from penstock.formats import avro
from penstock.formats.avro_decode import decode
from penstock.formats.avro_encode import encode, varints
from penstock.formats.avro_schemas import schema_of
from penstock.formats.values import Values

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
BLOCK_BYTES_MAX: Final = 256 << 20
"""Size of a block, before and after decompression."""
METADATA_ENTRIES_MAX: Final = 1_000
_LONG_BYTES_MAX: Final = 10
_FIELD: Final = "rows"


# Reading


class AvroFileInvalid(CorruptError):
    """File that is no Avro container file, or is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a file. `end` is the offset of the first block."""

    record: avro.Record
    codec: str
    sync: bytes
    end: int


def read_header(file: pa.NativeFile) -> Header:
    """Return the header of a file.

    Raises:
        AvroFileInvalid: the file is damaged, or has another format.
        InvalidFormat: the schema cannot be read as columns.
    """
    if _exactly(file, len(MAGIC)) != MAGIC:
        raise AvroFileInvalid("is not an Avro container file")
    metadata: dict[str, bytes] = {}
    while count := _long(file):
        if count < 0:
            count = -count
            _long(file)
        if count + len(metadata) > METADATA_ENTRIES_MAX:
            raise AvroFileInvalid(f"has more than {METADATA_ENTRIES_MAX} entries of metadata")
        for _ in range(count):
            name = _exactly(file, _long(file)).decode("utf-8", "replace")
            metadata[name] = _exactly(file, _long(file))
    try:
        schema = json.loads(metadata.get("avro.schema", b""))
    except ValueError as error:
        raise AvroFileInvalid("has no schema") from error
    field = {"name": _FIELD, "type": {"type": "array", "items": schema}}
    record = avro.parse({"type": "record", "name": "_File", "fields": [field]})
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    if codec not in _UNPACKED:
        raise AvroFileInvalid(f"has the codec {codec}, known are {', '.join(_UNPACKED)}")
    sync = _exactly(file, SYNC_BYTES)
    return Header(record=record, codec=codec, sync=sync, end=file.tell())


def read_blocks(
    file: pa.NativeFile, header: Header, offset: int, rows_min: int
) -> Iterator[tuple[Any, int]]:
    """Yield columns of at least `rows_min` values, and the offset of the next block.

    Args:
        offset: offset of a block; 0 means the first one.

    Raises:
        AvroFileInvalid: a block is damaged.
    """
    file.seek(max(offset, header.end))
    size = file.size()
    while file.tell() < size:
        parts: list[bytes] = []
        rows = bytes_read = 0
        while file.tell() < size and rows < rows_min and bytes_read < BLOCK_BYTES_MAX:
            count, block = _block(file, header)
            parts += [_encoded_long(count), block]
            rows += count
            bytes_read += len(block)
        if rows:
            whole = pa.array([b"".join((*parts, b"\0"))], pa.binary())
            found, errors = decode(header.record, Values.of(whole))
            end = file.tell()
            if not errors.null_count:
                raise AvroFileInvalid(f"has a damaged block that ends at byte {end}: {errors[0]}")
            yield found.field(0).flatten(), end


def _block(file: pa.NativeFile, header: Header) -> tuple[int, bytes]:
    count, size = _long(file), _long(file)
    if count < 0 or not 0 <= size <= BLOCK_BYTES_MAX:
        raise AvroFileInvalid(f"has a block of {count} values in {size} bytes")
    content = _exactly(file, size)
    end = file.tell()
    if _exactly(file, SYNC_BYTES) != header.sync:
        raise AvroFileInvalid(f"has no sync marker at byte {end}")
    try:
        return count, _UNPACKED[header.codec](content)
    except (ValueError, OSError, zlib.error, lzma.LZMAError) as error:
        raise AvroFileInvalid(f"has a damaged block that ends at byte {end}: {error}") from error


def _exactly(file: pa.NativeFile, size: int) -> bytes:
    if not 0 <= size <= BLOCK_BYTES_MAX:
        raise AvroFileInvalid(f"has a part of {size} bytes")
    content: bytes = file.read(size) if size else b""
    if len(content) < size:
        end = file.tell()
        raise AvroFileInvalid(f"ends within a block at byte {end}")
    return content


def _long(file: pa.NativeFile) -> int:
    word = 0
    for place in range(_LONG_BYTES_MAX):
        octet = _exactly(file, 1)[0]
        word |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return (word >> 1) ^ -(word & 1)
    raise AvroFileInvalid(f"has a number of more than {_LONG_BYTES_MAX} bytes")


def _inflated(content: bytes) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    found = inflater.decompress(content, BLOCK_BYTES_MAX)
    if not inflater.eof:
        raise ValueError(f"the block has more than {BLOCK_BYTES_MAX} bytes, or is cut off")
    return found


def _unsnapped(content: bytes) -> bytes:
    import cramjam

    body, checksum = content[:-4], content[-4:]
    found = bytes(cramjam.snappy.decompress_raw(body))
    if zlib.crc32(found).to_bytes(4, "big") != checksum:
        raise ValueError("the checksum does not match")
    return found


def _unzstd(content: bytes) -> bytes:
    import zstandard

    found = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return bytes(found)


_UNPACKED: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": lambda content: content,
    "deflate": _inflated,
    "snappy": _unsnapped,
    "zstandard": _unzstd,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


# Writing


def _deflated(content: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(content) + deflater.flush()


def _snapped(content: bytes) -> bytes:
    import cramjam

    checksum = zlib.crc32(content).to_bytes(4, "big")
    return bytes(cramjam.snappy.compress_raw(content)) + checksum


def _zstd(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


_PACKED: Final[Mapping[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "none": ("null", lambda content: content),
    "gzip": ("deflate", _deflated),
    "snappy": ("snappy", _snapped),
    "zstd": ("zstandard", _zstd),
}
"""Name of the codec in files, and its function, by the sink's word for it."""


class AvroWriter:
    """Writer of rows (struct without nulls) to a file.

    Args:
        codec: `none`, `gzip`, `snappy` or `zstd`.
        sync: 16 random bytes.
    """

    def __init__(self, file: pa.NativeFile, kind: Any, *, codec: str, sync: bytes) -> None:
        document = schema_of(kind, "Value")
        self._root = avro.parse(document)
        name, self._pack = _PACKED[codec]
        self._file, self._sync = file, sync
        entries = {"avro.schema": json.dumps(document).encode(), "avro.codec": name.encode()}
        parts = [MAGIC, _encoded_long(len(entries))]
        for key, value in entries.items():
            parts += [_sized(key.encode()), _sized(value)]
        file.write(b"".join((*parts, b"\0", sync)))

    def write(self, rows: Any) -> None:
        """Write rows as one block.

        Raises:
            Unencodable: a value does not fit the schema.
        """
        values = encode(self._root, rows)
        bounds = np.frombuffer(values.buffers()[1], np.int32)[
            [values.offset, values.offset + len(values)]
        ]
        content = values.buffers()[2]
        raw = bytes(content[bounds[0] : bounds[1]]) if content is not None else b""
        self._file.write(_encoded_long(len(rows)) + _sized(self._pack(raw)) + self._sync)


def _encoded_long(number: int) -> bytes:
    found: bytes = varints(np.array([number], np.int64))[0].as_py()
    return found


def _sized(content: bytes) -> bytes:
    return _encoded_long(len(content)) + content
