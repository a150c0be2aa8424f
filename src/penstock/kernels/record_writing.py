"""Writer of rows of Arrow columns as the records of batches (RecordBatch v2).

`write_records` divides rows into batches while it writes them, and leaves room for each header. Its
argument `columns` is a tuple:

    order       numbers of the rows to write; empty for all rows in their order
    key, value  a column: its bytes, the start and end of each element in them, Arrow's validity
                bitmap, and the bit of row 0. Without starts all elements are null; without a
                bitmap no element is
    timestamps  timestamp of each row
    lists       start of each row's headers among all headers, and their total number; empty if
                there are no headers
    names, contents
                columns of all headers' keys and values

Source: Kafka's `DefaultRecord.writeTo` and `ByteUtils`; KIP-82 (headers).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import append_bytes, prefetch
from penstock.kernels.types import READ

FIRST: Final = 0
AFTER: Final = 1
RECORDS_BYTES: Final = 2
BASE_TIMESTAMP: Final = 3
MAX_TIMESTAMP: Final = 4
CUT_FIELDS: Final = 5

_HEADER_BYTES: Final = 61
_LENGTH_OVERHEAD_BYTES: Final = 12
"""Bytes of a header up to the end of its length, which the length does not include."""
_MAGIC: Final = 2
_SEQUENCE_MODULUS: Final = 2**31
_AHEAD: Final = 8
"""Number of rows ahead for which reordered values are prefetched: 56 ns a record instead of 95."""
_LINE_BYTES: Final = 64

_LONGS: Final = "Array(int64, 1, 'C', readonly=True)"
_INTS: Final = "Array(int32, 1, 'C', readonly=True)"
COLUMN: Final = f"Tuple(({READ}, {_INTS}, {_INTS}, {READ}, int64))"
_COLUMNS: Final = f"Tuple(({_LONGS}, {COLUMN}, {COLUMN}, {_LONGS}, {_INTS}, {COLUMN}, {COLUMN}))"


@kernel("uint64(int64)", inlined=True)
def _zigzag(value: Any) -> Any:
    return np.uint64(value << 1) ^ np.uint64(value >> 63)


@kernel("int64(int64)", inlined=True)
def varint_size(value: Any) -> Any:
    """Return the size of the varint of a signed number, in bytes."""
    raw = _zigzag(value)
    if raw < np.uint64(1 << 28):
        return (
            1
            + np.int64(raw >= np.uint64(1 << 7))
            + np.int64(raw >= np.uint64(1 << 14))
            + np.int64(raw >= np.uint64(1 << 21))
        )
    size = 4
    raw >>= np.uint64(28)
    while raw:
        size += 1
        raw >>= np.uint64(7)
    return size


@kernel("int64(uint8[::1], int64, int64)", inlined=True)
def write_varint(target: Any, at: Any, value: Any) -> Any:
    """Write the varint of a signed number; return the position after it."""
    raw = _zigzag(value)
    while raw >= np.uint64(0x80):
        target[at] = np.uint8(raw) | np.uint8(0x80)
        raw >>= np.uint64(7)
        at += 1
    target[at] = np.uint8(raw)
    return at + 1


@kernel(f"int64({COLUMN}, int64)", inlined=True)
def length_of(column: Any, row: Any) -> Any:
    """Return the size of an element in bytes; -1 for a null."""
    _, starts, ends, valid, shift = column
    if starts.size == 0:
        return -1
    bit = row + shift
    if valid.size and not (valid[bit >> 3] >> (bit & 7)) & 1:
        return -1
    return np.int64(ends[row]) - np.int64(starts[row])


@kernel("int64(int64)", inlined=True)
def _size(length: Any) -> Any:
    return varint_size(length) + max(length, 0)


@kernel(f"int64(uint8[::1], int64, {COLUMN}, int64, int64)", inlined=True)
def _write(target: Any, at: Any, column: Any, row: Any, length: Any) -> Any:
    at = write_varint(target, at, length)
    if length <= 0:
        return at
    append_bytes(target, at, column[0], column[1][row], length)
    return at + length


@kernel(f"int64({_INTS}, {COLUMN}, {COLUMN}, int64)", inlined=True)
def _headers_size(lists: Any, names: Any, contents: Any, row: Any) -> Any:
    if lists.size == 0:
        return 1
    size = varint_size(lists[row + 1] - lists[row])
    for index in range(lists[row], lists[row + 1]):
        size += _size(length_of(names, index)) + _size(length_of(contents, index))
    return size


@kernel(f"int64(uint8[::1], int64, {_INTS}, {COLUMN}, {COLUMN}, int64)", inlined=True)
def _write_headers(target: Any, at: Any, lists: Any, names: Any, contents: Any, row: Any) -> Any:
    if lists.size == 0:
        target[at] = 0
        return at + 1
    at = write_varint(target, at, lists[row + 1] - lists[row])
    for index in range(lists[row], lists[row + 1]):
        at = _write(target, at, names, index, length_of(names, index))
        at = _write(target, at, contents, index, length_of(contents, index))
    return at


@kernel(f"int64({_COLUMNS}, int64, int64, int64, int64, uint8[::1], int64[:, ::1])")
def write_records(
    columns: Any, low: Any, room: Any, records_max: Any, pass_bytes: Any, target: Any, cuts: Any,
) -> Any:  # fmt: skip
    """Write rows from `low` on in batches; return the number of written batches.

    Writing ends after `pass_bytes` bytes. A batch has at most `room` bytes and `records_max`
    records, but at least one record. `cuts` gets a row for each batch: its first row, the row after
    its last one, the bytes of its records, its first and its largest timestamp. If `target` has no
    room for a batch, the batch is not written, and its row in `cuts` has only the bytes up to the
    record that does not fit.

    Raises:
        IndexError: the columns changed during the call, or refer to bytes that they do not have.
    """
    order, key, value, timestamps, lists, names, contents = columns
    count = order.size if order.size else timestamps.size
    found, at, position = 0, 0, low
    while position < count and found < cuts.shape[0] and at < pass_bytes:
        first, begin = position, at + _HEADER_BYTES
        base = timestamps[order[first] if order.size else first]
        largest, at = base, begin
        while position < count and position - first < records_max:
            row = order[position] if order.size else position
            if position + _AHEAD < order.size and value[1].size:
                start = np.int64(value[1][order[position + _AHEAD]])
                prefetch(value[0], start)
                prefetch(value[0], start + _LINE_BYTES)
            timestamp = timestamps[row]
            key_length, value_length = length_of(key, row), length_of(value, row)
            size = 1 + varint_size(timestamp - base) + varint_size(position - first)
            size += _size(key_length) + _size(value_length)
            size += _headers_size(lists, names, contents, row)
            end = at + varint_size(size) + size
            if end - begin > room and position > first:
                break
            if end > target.size:
                cuts[found, FIRST], cuts[found, AFTER] = first, position + 1
                cuts[found, RECORDS_BYTES] = end - begin
                return found
            at = write_varint(target, at, size)
            target[at] = 0
            at = write_varint(target, at + 1, timestamp - base)
            at = write_varint(target, at, position - first)
            at = _write(target, at, key, row, key_length)
            at = _write(target, at, value, row, value_length)
            at = _write_headers(target, at, lists, names, contents, row)
            if at != end:
                raise IndexError("the size of a record changed while it was written")
            largest = max(largest, timestamp)
            position += 1
        cuts[found, FIRST], cuts[found, AFTER] = first, position
        cuts[found, RECORDS_BYTES] = at - begin
        cuts[found, BASE_TIMESTAMP], cuts[found, MAX_TIMESTAMP] = base, largest
        found += 1
    return found


@kernel("int64(uint8[::1], int64, int64, int64)", inlined=True)
def put_big_endian(target: Any, at: Any, size: Any, value: Any) -> Any:
    """Write the low bytes of a number, the highest first; return the position after them."""
    for index in range(size):
        target[at + index] = np.uint8(value >> (8 * (size - 1 - index)) & 0xFF)
    return at + size


@kernel("void(uint8[::1], int64[:, ::1], int64, int64, int64, int64, int64)")
def write_batch_headers(
    target: Any, cuts: Any, base_offset: Any, attributes: Any, producer_id: Any,
    producer_epoch: Any, base_sequence: Any,
) -> None:  # fmt: skip
    """Write the headers of the batches of `write_records`, with the checksum 0."""
    start = 0
    for index in range(cuts.shape[0]):
        first, count = cuts[index, FIRST], cuts[index, AFTER] - cuts[index, FIRST]
        size, at = cuts[index, RECORDS_BYTES], start
        sequence = base_sequence
        if sequence >= 0:
            sequence = (sequence + first) % _SEQUENCE_MODULUS
        at = put_big_endian(target, at, 8, base_offset + first)
        at = put_big_endian(target, at, 4, size + _HEADER_BYTES - _LENGTH_OVERHEAD_BYTES)
        at = put_big_endian(target, at, 4, -1)
        at = put_big_endian(target, at, 1, _MAGIC)
        at = put_big_endian(target, at, 4, 0)
        at = put_big_endian(target, at, 2, attributes)
        at = put_big_endian(target, at, 4, count - 1)
        at = put_big_endian(target, at, 8, cuts[index, BASE_TIMESTAMP])
        at = put_big_endian(target, at, 8, cuts[index, MAX_TIMESTAMP])
        at = put_big_endian(target, at, 8, producer_id)
        at = put_big_endian(target, at, 2, producer_epoch)
        at = put_big_endian(target, at, 4, sequence)
        put_big_endian(target, at, 4, count)
        start += _HEADER_BYTES + size
