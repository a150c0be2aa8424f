"""Write-ahead object: batches of many partitions, readable without the control plane.

Little endian, like the layouts of the batch index:

    header, 32 bytes
        at  bytes  field
         0      8  "PNSTKWAL"
         8      4  version, 1
        12      4  id of the broker that wrote it
        16      8  object id
        24      4  CRC32C of the 24 bytes before
        28      4  zero
    bodies: the batches of one partition, then those of the next, without a gap
    footer
         …         a row for each partition, in the order of their bodies:
         0     16      topic id
        16      4      partition
        20      4      number of its batches
        24      8      byte offset of its body in the object
        32      8      size of its body
         …         layouts in the same order, per batch: its size i32, its number of offsets i32
    trailer, 32 bytes, the last of the object
         0      4  number of partitions
         4      4  number of batches of all
         8      8  size of the object
        16      4  size of the footer, without the trailer
        20      4  CRC32C of the footer and of the 20 bytes before this field
        24      8  "PNSTKEND"

Batches are stored as producers sent them. Their base offsets are in the control plane; within a
partition the batches are in offset order. A batch's own checksum does not cover its first fields.
The footer's layout gives the position and size of each batch, so that these fields can be verified
too.

A reader first reads the last `FOOTER_TAIL_BYTES`. If the footer is longer, `CutFooter` has the
number of bytes that it needs.

Source: Aiven's Inkless (objects that mix partitions); Parquet's footer at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from penstock.archive.errors import CorruptObject, CutFooter
from penstock.base.crc import Readable, crc32c
from penstock.base.errors import BugError
from penstock.objects import ObjectStore

OBJECT_BATCHES_MAX: Final = 100_000
"""Most batches in one object; the footer has 8 bytes for each."""
FOOTER_PARTITIONS_MAX: Final = 100_000
"""Most partitions in one object; a footer with a higher number is rejected as corrupt."""

HEADER_BYTES: Final = 32
TRAILER_BYTES: Final = 32
ROW_BYTES: Final = 40
PAIR_BYTES: Final = 8
VERSION: Final = 1
MAGIC: Final = b"PNSTKWAL"
END_MAGIC: Final = b"PNSTKEND"

_HEADER: Final = Struct("<8sIiq")
_HEADER_CRC: Final = Struct("<II")
_ROW: Final = Struct("<16siIQQ")
_TRAILER: Final = Struct("<IIQI")
_TRAILER_CRC: Final = Struct("<I8s")
_TRAILER_CRC_AT: Final = 20
_BATCH_BYTES_MIN: Final = 61


class WalHeader(NamedTuple):
    """Header of an object: its id, and the broker that wrote it."""

    object_id: int
    broker_id: int


class WalRange(NamedTuple):
    """Body of one partition in an object.

    `layout` has two numbers for each batch, its size in bytes and its number of offsets, as i32.
    """

    topic_id: UUID
    partition: int
    byte_offset: int
    size_bytes: int
    layout: bytes

    @property
    def batches(self) -> int:
        return len(self.layout) // PAIR_BYTES


class WalFooter(NamedTuple):
    """Footer of an object: the bodies in their order, and the object's size."""

    ranges: tuple[WalRange, ...]
    size_bytes: int


def encode_header(header: WalHeader) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, header.broker_id, header.object_id)
    return head + _HEADER_CRC.pack(crc32c(head), 0)


def decode_header(data: Readable) -> WalHeader:
    """Decode the header at the beginning of an object.

    Raises:
        CorruptObject: the header is cut, or its magic, checksum or version is wrong.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptObject(f"a header has {HEADER_BYTES} bytes, but there are {len(data)}")
    magic, version, broker_id, object_id = _HEADER.unpack_from(data)
    checksum, zero = _HEADER_CRC.unpack_from(data, _HEADER.size)
    if magic != MAGIC:
        raise CorruptObject(f"the object begins with {magic!r}, not {MAGIC!r}")
    actual = crc32c(memoryview(data)[: _HEADER.size])
    if actual != checksum or zero:
        raise CorruptObject(f"the header has checksum {actual:#010x}, expected {checksum:#010x}")
    if version != VERSION:
        raise CorruptObject(f"the object has version {version}, but only {VERSION} is supported")
    return WalHeader(object_id, broker_id)


def encode_footer(ranges: Sequence[WalRange]) -> bytes:
    """Return the footer and trailer of an object whose bodies follow the header without gaps."""
    end = HEADER_BYTES
    rows: list[bytes] = []
    for topic_id, partition, byte_offset, size_bytes, layout in ranges:
        if byte_offset != end:
            raise BugError(f"a body begins at byte {byte_offset}, but the previous ends at {end}")
        batches = len(layout) // PAIR_BYTES
        rows.append(_ROW.pack(topic_id.bytes, partition, batches, byte_offset, size_bytes))
        end += size_bytes
    footer = b"".join([*rows, *(item.layout for item in ranges)])
    batches = (len(footer) - ROW_BYTES * len(rows)) // PAIR_BYTES
    size_bytes = end + len(footer) + TRAILER_BYTES
    footer += _TRAILER.pack(len(rows), batches, size_bytes, len(footer))
    return footer + _TRAILER_CRC.pack(crc32c(footer), END_MAGIC)


def decode_footer(tail: Readable) -> WalFooter:
    """Decode the footer from the last bytes of an object, or from the whole object.

    Raises:
        CutFooter: the footer begins before `tail`; the error has the number of bytes needed.
        CorruptObject: the data is truncated, magic or checksum is wrong, or the rows are invalid.
    """
    data = memoryview(tail)
    if len(data) < TRAILER_BYTES:
        raise CorruptObject(f"a trailer has {TRAILER_BYTES} bytes, but there are {len(data)}")
    at = len(data) - TRAILER_BYTES
    partitions, batches, size_bytes, footer_bytes = _TRAILER.unpack_from(data, at)
    checksum, magic = _TRAILER_CRC.unpack_from(data, at + _TRAILER_CRC_AT)
    if magic != END_MAGIC:
        raise CorruptObject(f"the object ends with {magic!r}, not {END_MAGIC!r}")
    if not 0 < partitions <= min(batches, FOOTER_PARTITIONS_MAX) or batches > OBJECT_BATCHES_MAX:
        raise CorruptObject(
            f"the trailer declares {partitions} partitions and {batches} batches; there must be at"
            f" least one batch per partition and at most {OBJECT_BATCHES_MAX} batches"
        )
    if footer_bytes != partitions * ROW_BYTES + batches * PAIR_BYTES:
        raise CorruptObject(
            f"the trailer declares a footer of {footer_bytes} bytes, which does not match"
            f" {partitions} partitions and {batches} batches"
        )
    needed_bytes = footer_bytes + TRAILER_BYTES
    if size_bytes < HEADER_BYTES + needed_bytes + _BATCH_BYTES_MIN * batches:
        raise CorruptObject(f"{batches} batches do not fit into {size_bytes} bytes")
    if needed_bytes > len(data):
        raise CutFooter(len(data), needed_bytes)
    start = len(data) - needed_bytes
    actual = crc32c(data[start : at + _TRAILER_CRC_AT])
    if actual != checksum:
        raise CorruptObject(f"the footer has checksum {actual:#010x}, expected {checksum:#010x}")
    rows = _ROW.iter_unpack(data[start : start + partitions * ROW_BYTES])
    layouts = data[start + partitions * ROW_BYTES : at]
    return WalFooter(_ranges(rows, layouts, size_bytes - needed_bytes), size_bytes)


def _ranges(
    rows: Iterable[tuple[bytes, int, int, int, int]], layouts: memoryview, bodies_end: int
) -> tuple[WalRange, ...]:
    """Return the footer's rows with their layouts.

    Raises:
        CorruptObject: a row is invalid, or the bodies do not fill the object exactly.
    """
    ranges: list[WalRange] = []
    seen: set[tuple[bytes, int]] = set()
    end, at = HEADER_BYTES, 0
    for topic_id, partition, batches, byte_offset, size_bytes in rows:
        layout = bytes(layouts[at : at + batches * PAIR_BYTES])
        if len(layout) != batches * PAIR_BYTES or not batches:
            raise CorruptObject(
                f"the row of partition {partition} declares {batches} batches, but there is no"
                " layout for them"
            )
        at += len(layout)
        pairs = np.frombuffer(layout, "<i4").reshape(-1, 2)
        if (
            byte_offset != end
            or partition < 0
            or (topic_id, partition) in seen
            or int(pairs[:, 0].min()) < _BATCH_BYTES_MIN
            or int(pairs[:, 1].min()) < 1
            or int(pairs[:, 0].sum(dtype=np.int64)) != size_bytes
        ):
            raise CorruptObject(
                f"the row of partition {partition} is invalid: {size_bytes} bytes at byte"
                f" {byte_offset}"
            )
        seen.add((topic_id, partition))
        end += size_bytes
        ranges.append(WalRange(UUID(bytes=topic_id), partition, byte_offset, size_bytes, layout))
    if at != len(layouts) or end != bodies_end:
        raise CorruptObject(
            f"the bodies end at byte {end}, but the footer begins at byte {bodies_end}"
        )
    return tuple(ranges)


FOOTER_TAIL_BYTES: Final = 64 << 10
"""Bytes at the end of an object that are read first; a longer footer needs a second read."""


async def read_footer(store: ObjectStore, key: str, size_bytes: int) -> WalFooter:
    """Return the footer of an object that should have `size_bytes`, with one or two reads.

    Raises:
        CorruptObject: the object is not a whole write-ahead object, or has another size.
        ObjectNotFound, ObjectTruncated, StoreUnavailable, StoreRefused: raised by the store.
    """
    if size_bytes < TRAILER_BYTES:
        raise CorruptObject(
            f"{key} has {size_bytes} bytes, but a trailer alone has {TRAILER_BYTES}"
        )
    tail_bytes = min(size_bytes, FOOTER_TAIL_BYTES)
    tail = await store.get(key, size_bytes - tail_bytes, tail_bytes)
    try:
        footer = _decode(key, tail)
    except CutFooter as cut:
        if cut.needed_bytes > size_bytes:
            raise CorruptObject(f"{key} has {size_bytes} bytes: {cut}") from None
        footer = _decode(key, await store.get(key, size_bytes - cut.needed_bytes, cut.needed_bytes))
    if footer.size_bytes != size_bytes:
        raise CorruptObject(
            f"{key} has {size_bytes} bytes, but its footer declares {footer.size_bytes}"
        )
    return footer


def _decode(key: str, tail: memoryview) -> WalFooter:
    try:
        return decode_footer(tail)
    except CutFooter:
        raise
    except CorruptObject as error:
        raise CorruptObject(f"{key}: {error}") from None
