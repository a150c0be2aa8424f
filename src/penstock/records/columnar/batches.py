"""Search for the batches in a buffer, verification of their checksums, and decompression.

Batches are described by a table with one row per batch, as `kernels.records` defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.base.crc import Readable, crc32c
from penstock.kernels import records as kernels
from penstock.records.columnar.arrays import Bytes, Flags, Ints
from penstock.records.compression import decompress
from penstock.records.errors import CorruptBatch, RecordTooLarge
from penstock.records.header import (
    BATCHES_MAX,
    CHECKED_FROM,
    CODEC_MASK,
    DECOMPRESSED_BATCH_BYTES_MAX,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_FLAG,
    decode_header,
    verify_crc,
)
from penstock.records.transactions import AbortedRange

_PRODUCER_ID: Final = np.arange(43, 51) - HEADER_BYTES

_BUFFER_BYTES_MAX: Final = 2**31 - 1
_JOINED_BYTES: Final = 1 << 20
"""Decompressed batches are joined up to this size, because reading an array takes longer the more
buffers it has.
"""
_MAGIC_AT: Final = 16
_TABLE_ROWS: Final = 64
"""Rows of the table for the first attempt; if there are more batches, the search is repeated."""


class Piece(NamedTuple):
    """Bytes with the records of the batches from index `low` up to, but not including, `high`."""

    data: Bytes
    low: int
    high: int


def find_batches(view: memoryview, start: int, end: int, control: bool) -> Ints:
    """Return the table of the batches with offsets in [start, end).

    With `control`, control batches are included.

    Raises:
        CorruptBatch: a header is invalid, even if its batch is cut, or there are too many batches.
    """
    data = np.frombuffer(view, np.uint8)
    state = np.zeros(kernels.STATE_FIELDS, np.int64)
    table = np.empty((_TABLE_ROWS, kernels.BATCH_FIELDS), np.int64)
    count = kernels.find_batches(data, BATCHES_MAX, start, end, control, table, state)
    if count > BATCHES_MAX:
        raise CorruptBatch(f"more than {BATCHES_MAX} batches in one buffer")
    position = int(state[kernels.PLACE])
    if state[kernels.BATCH]:
        decode_header(view, position)
    left = len(view) - position
    if _MAGIC_AT < left < HEADER_BYTES and view[position + _MAGIC_AT] != MAGIC:
        decode_header(bytes(view[position:]).ljust(HEADER_BYTES, b"\0"))
    if count > len(table):
        table = np.empty((count, kernels.BATCH_FIELDS), np.int64)
        kernels.find_batches(data, BATCHES_MAX, start, end, control, table, state)
    return table[:count]


def check_crcs(view: memoryview, table: Ints) -> None:
    """Verify the checksum of every batch in the table.

    Raises:
        CorruptBatch: a batch's checksum differs from the one in its header.
    """
    starts = table[:, kernels.BEGIN] - (HEADER_BYTES - CHECKED_FROM)
    for start, end, expected in zip(
        starts.tolist(), table[:, kernels.END].tolist(), table[:, kernels.CRC].tolist(), strict=True
    ):
        if crc32c(view[start:end]) != expected:
            position = start - CHECKED_FROM
            verify_crc(view, decode_header(view, position), position)


def open_batches(view: memoryview, table: Ints, max_decompressed_bytes: int) -> list[Piece]:
    """Decompress the batches of the table; return the bytes that contain their records.

    Raises:
        CorruptBatch: a batch declares more records than fit, or its compressed data is damaged.
        RecordTooLarge: the records have more bytes than the limit.
        UnsupportedCodec: Kafka does not define the codec.
    """
    pieces = [Piece(np.frombuffer(view, np.uint8), 0, len(table))]
    codecs = table[:, kernels.ATTRIBUTES] & CODEC_MASK
    if codecs.any():
        pieces = _unpack(view, table, codecs.tolist(), max_decompressed_bytes)
    total = sum(piece.data.size for piece in pieces)
    if total > _BUFFER_BYTES_MAX:
        raise RecordTooLarge(
            f"the records of one call have {total} bytes, but the limit is {_BUFFER_BYTES_MAX}"
        )
    sizes = table[:, kernels.END] - table[:, kernels.BEGIN]
    too_many = table[:, kernels.COUNT] * RECORD_BYTES_MIN > sizes
    if too_many.any():
        index = int(too_many.argmax())
        raise CorruptBatch(
            f"batch with base offset {table[index, kernels.BASE_OFFSET]} declares"
            f" {table[index, kernels.COUNT]} records, which do not fit into {sizes[index]} bytes"
        )
    return pieces


def _unpack(
    view: memoryview, table: Ints, codecs: list[int], max_decompressed_bytes: int
) -> list[Piece]:
    pieces: list[Piece] = []
    waiting: list[Readable] = []
    left, size, low = max_decompressed_bytes, 0, 0
    for index, codec in enumerate(codecs):
        begin, end = table[index, kernels.BEGIN : kernels.END + 1].tolist()
        section: Readable = view[begin:end]
        if codec:
            section = decompress(codec, section, max_bytes=min(left, DECOMPRESSED_BATCH_BYTES_MAX))
            left -= len(section)
        waiting.append(section)
        table[index, kernels.BEGIN], table[index, kernels.END] = size, size + len(section)
        size += len(section)
        if size >= _JOINED_BYTES or index + 1 == len(codecs):
            whole = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            pieces.append(Piece(np.frombuffer(whole, np.uint8), low, index + 1))
            waiting, size, low = [], 0, index + 1
    return pieces


def aborted_batches(view: memoryview, table: Ints, ranges: Sequence[AbortedRange]) -> Flags:
    """Return a flag for each batch of the table: whether it belongs to an aborted transaction.

    Ranges and batches are sorted together by producer and offset. A transactional batch belongs to
    the nearest range of its producer that starts at or before it, if that range has not ended by
    then.
    """
    data = np.frombuffer(view, np.uint8)
    producers = data[table[:, kernels.BEGIN, None] + _PRODUCER_ID].view(">i8")[:, 0]
    limits = np.array(ranges, np.int64).reshape(-1, 3)
    count = len(limits)
    ids = np.concatenate([limits[:, 0], producers])
    offsets = np.concatenate([limits[:, 1], table[:, kernels.BASE_OFFSET]])
    indexes = np.arange(len(ids))
    order = np.lexsort((indexes, offsets, ids))  # at one offset a range comes before its batch
    before = np.maximum.accumulate(np.where(order < count, indexes, -1))
    found = order[before]
    last = np.empty(len(ids), np.int64)
    last[order] = np.where((before >= 0) & (ids[found] == ids[order]), limits[found % count, 2], -1)
    transactional = table[:, kernels.ATTRIBUTES] & TRANSACTIONAL_FLAG != 0
    inside: Flags = transactional & (table[:, kernels.BASE_OFFSET] <= last[count:])
    return inside
