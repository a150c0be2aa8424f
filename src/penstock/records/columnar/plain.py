"""One batch of a few hundred values, without keys, headers or times of their own.

The column encoder takes about 150 µs for a batch however little there is in it, because it is
ready for anything. What an agent encodes is always the same: the chunks of a frame, each a value,
all of one time. Then a record is

    end of the one before: 0 | length | attributes: 0 | timestamp delta: 0     word 0, at its end
    | offset delta | key length: -1 | value length                             word 1
    | value

with what does not depend on the values in tables. Batches that are larger than the tables are
left to the column encoder; what both encode is the same byte for byte.

Source: as in `encode` and `fronts`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.base.crc import crc32c
from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.encode import EncodedBatch
from penstock.records.columnar.fronts import (
    BYTE_BITS,
    CONTENT,
    SIZE_SHIFT,
    TABLE,
    TABLE_SIZE,
    WORD_BITS,
    WORD_BYTES,
)
from penstock.records.columnar.gather import copy_slices
from penstock.records.header import (
    CHECKED_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    encode_header,
)

PLAIN_RECORDS_MAX: Final = 4096
PLAIN_VALUE_BYTES_MAX: Final = TABLE_SIZE - 32
"""So that a record's length, too, is in the table."""

_NULL_KEY: Final = np.uint64(1)
_FIXED_BYTES: Final = 3
"""Attributes, timestamp delta and the number of headers: one byte each, all 0."""
_SLOT_BYTES: Final = 2 * WORD_BYTES

_offset_sizes: Final = TABLE[:PLAIN_RECORDS_MAX] >> SIZE_SHIFT
_MIDDLE_SIZES: Final = _offset_sizes + np.uint64(1)
_MIDDLE_BITS: Final = _MIDDLE_SIZES * BYTE_BITS
_MIDDLES: Final = (TABLE[:PLAIN_RECORDS_MAX] & CONTENT) | (_NULL_KEY << (_offset_sizes * BYTE_BITS))
"""Offset delta and key length of record 0, 1, 2, …"""
_SLOTS: Final = np.arange(PLAIN_RECORDS_MAX) * _SLOT_BYTES + WORD_BYTES
"""Where word 1 of each front is."""


def encode_plain(
    memory: Bytes,
    offsets: Ints,
    lengths: Ints,
    *,
    now_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> EncodedBatch | None:
    """One batch of the values `memory[offset : offset + length]`, all timestamped `now_ms`.

    None if there are too many of them, or one is too long, for the tables.
    """
    count = lengths.size
    if not 0 < count <= PLAIN_RECORDS_MAX or int(lengths.max()) > PLAIN_VALUE_BYTES_MAX:
        return None
    front_words, first_sizes, front_sizes = _fronts(lengths)
    front_at = front_words.__array_interface__["data"][0]
    value_at = memory.__array_interface__["data"][0]
    # The first record's front, behind room for the header and without the end of one before it;
    # the end of the last record.
    start = WORD_BYTES - int(first_sizes[0])
    front = front_words[0].tobytes()[start + 1 : start + int(front_sizes[0])]
    edge = np.frombuffer(bytearray(HEADER_BYTES) + front + b"\0", np.uint8)
    edge_at = edge.__array_interface__["data"][0]
    base = min(front_at, value_at, edge_at)
    bounds = np.empty(4 * count + 3, np.int64)
    grid = bounds[:-3].reshape(count, 4)
    np.subtract(_SLOTS[:count], first_sizes, out=grid[:, 0])
    grid[:, 0] += front_at - base
    np.add(grid[:, 0], front_sizes, out=grid[:, 1])
    np.add(offsets, value_at - base, out=grid[:, 2])
    np.add(grid[:, 2], lengths, out=grid[:, 3])
    tail = edge_at - base + edge.size
    grid[0, 0], grid[0, 1] = edge_at - base, tail - 1
    bounds[-3], bounds[-2] = tail - 1, tail
    size_bytes = int(lengths.sum()) + int(front_sizes.sum()) + HEADER_BYTES
    bounds[-1] = bounds[0] + 2 * size_bytes
    data, _ = copy_slices(bounds, base, (memory, front_words, edge))
    header = BatchHeader(
        base_offset=0,
        batch_length=size_bytes - LENGTH_OVERHEAD_BYTES,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    data[:HEADER_BYTES] = encode_header(header)
    header = header._replace(crc=crc32c(data[CHECKED_FROM:]))
    data[:HEADER_BYTES] = encode_header(header)
    return EncodedBatch(data=data.toreadonly(), header=header)


def _fronts(lengths: Ints) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.uint64]], Ints, Ints]:
    """The two words of every front, how much of the first is used, and how much of both."""
    count = lengths.size
    values = TABLE.take(lengths)
    second_sizes = (values >> SIZE_SHIFT) + _MIDDLE_SIZES[:count]
    records = TABLE.take(lengths + second_sizes.view(np.int64) + _FIXED_BYTES)
    first_sizes = (records >> SIZE_SHIFT) + np.uint64(_FIXED_BYTES)
    words = np.empty((count, 2), np.uint64)
    records &= CONTENT
    records <<= BYTE_BITS
    np.left_shift(records, WORD_BITS - first_sizes * BYTE_BITS, out=words[:, 0])
    values &= CONTENT
    values <<= _MIDDLE_BITS[:count]
    np.bitwise_or(values, _MIDDLES[:count], out=words[:, 1])
    return words, first_sizes.view(np.int64), (first_sizes + second_sizes).view(np.int64)
