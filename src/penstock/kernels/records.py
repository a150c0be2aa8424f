"""Reader of the records of batches (RecordBatch v2), one after another, into columns.

`find_batches` writes a row of integers for each batch of a buffer: start and end of its records,
their number, and fields of its header. If the records are compressed, the caller decompresses them
and changes `BEGIN` and `END` of the row.

`read_records` reads the length of each record, and checks that the record ends there. Positions
only grow, so every field is inside its record. It writes Arrow's columns, with two exceptions: for
keys to be copied it writes positions and bounds, which `gather` uses; for headers it writes their
positions, which `copy_headers` uses.

Varints are zigzag: 0, -1, 1, -2 are written as 0, 1, 2, 3. After a wrong varint the position is
`_CUT` or `_LONG`, beyond every end, so that all following reads of the record fail too.

Source: Kafka's `DefaultRecord`, `DefaultRecordBatch` and `ByteUtils`; KIP-82 (headers).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import append_bytes, load_word, peek_word
from penstock.kernels.types import READ

BEGIN: Final = 0
END: Final = 1
COUNT: Final = 2
BASE_OFFSET: Final = 3
LAST_DELTA: Final = 4
BASE_TIMESTAMP: Final = 5
MAX_TIMESTAMP: Final = 6
ATTRIBUTES: Final = 7
CRC: Final = 8
KEPT: Final = 9
"""Number of the batch's records in the requested range, which `read_records` writes."""
BATCH_FIELDS: Final = 10

# Tasks of `read_records`.
OFFSET: Final = 1
TIMESTAMP: Final = 2
KEY: Final = 4
VALUE: Final = 8
HEADERS: Final = 16
VIEWS: Final = 32
"""Write keys and values as elements of Arrow's `binary_view`."""
CONSECUTIVE: Final = 64
"""Check that the offset deltas of a batch are 0, 1, 2, …"""

# Its results, in `state`; counts are added up from call to call.
RECORDS: Final = 0
NULL_KEYS: Final = 1
NULL_VALUES: Final = 2
HEADER_KEY_BYTES: Final = 3
HEADER_VALUE_BYTES: Final = 4
BATCH: Final = 5
RECORD: Final = 6
PLACE: Final = 7
"""Batch, record in it and position of a problem; for GAP the offset delta as the position."""
STATE_FIELDS: Final = 8

# Problems.
MISFIT: Final = 1
BAD_END: Final = 2
BAD_VARINT: Final = 3
OUTSIDE: Final = 4
GAP: Final = 5
MANY_HEADERS: Final = 6
BAD_HEADERS: Final = 7

_HEADER_BYTES: Final = 61
_LENGTH_OVERHEAD_BYTES: Final = 12
_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20
_OFFSET_MAX: Final = 2**63 - 2
_CUT: Final = 1 << 61
_LONG: Final = 1 << 62
INT_BYTES: Final = 5
_INT_MAX: Final = 2**32 - 1
_LONG_INT: Final = 10
_HEADER_BYTES_MIN: Final = 2
_INLINE_MAX: Final = 12
_SPARE: Final = 32
"""More bytes than a record's varints of at most three bytes each, and a word after them."""

_INTS: Final = "Array(int32, 1, 'C', readonly=True)"


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def big_endian(data: Any, at: Any, size: Any) -> Any:
    value = np.int64(np.int8(data[at]))
    for index in range(1, size):
        value = (value << 8) | np.int64(data[at + index])
    return value


@kernel(f"int64({READ}, int64, int64, int64, boolean, int64[:, ::1], int64[::1])")
def find_batches(
    data: Any, capacity: Any, start: Any, end: Any, control: bool, table: Any, state: Any
) -> Any:
    """Fill `table` with the complete batches with records in [start, end); return their number.

    Batches without a row in `table` are counted too. Control batches are included if `control`.
    `state[PLACE]` is set to the end of the complete batches; if `state[BATCH]` is 1, it is the
    position of an invalid header. If there are more than `capacity` batches, the result is
    `capacity + 1`.
    """
    position, found, seen = 0, 0, 0
    state[BATCH] = 0
    while data.size - position >= _HEADER_BYTES:
        size = big_endian(data, position + 8, 4) + _LENGTH_OVERHEAD_BYTES
        base_offset = big_endian(data, position, 8)
        last_delta = big_endian(data, position + 23, 4)
        count = big_endian(data, position + 57, 4)
        if (
            data[position + 16] != 2
            or (size - _HEADER_BYTES) | base_offset | last_delta | count < 0
            or base_offset > _OFFSET_MAX - last_delta
        ):
            state[BATCH] = 1
            break
        if size > data.size - position:
            break
        seen += 1
        if seen > capacity:
            return seen
        attributes = big_endian(data, position + 21, 2)
        wanted = base_offset < end and base_offset + last_delta >= start
        if wanted and count and (control or not attributes & _CONTROL):
            if found < table.shape[0]:
                row = table[found]
                row[BEGIN], row[END] = position + _HEADER_BYTES, position + size
                row[COUNT], row[BASE_OFFSET], row[LAST_DELTA] = count, base_offset, last_delta
                row[BASE_TIMESTAMP] = big_endian(data, position + 27, 8)
                row[MAX_TIMESTAMP] = big_endian(data, position + 35, 8)
                row[ATTRIBUTES] = attributes
                row[CRC] = big_endian(data, position + 17, 4) & _INT_MAX
            found += 1
        position += size
    state[PLACE] = position
    return found


@kernel(f"UniTuple(int64, 2)({READ}, int64, int64, int64)")
def _read_more(data: Any, at: Any, end: Any, bytes_max: Any) -> tuple[Any, Any]:
    raw, shift = np.uint64(0), np.uint64(0)
    stop = min(end, at + bytes_max)
    while at < stop:
        byte = np.uint64(data[at])
        raw |= (byte & np.uint64(0x7F)) << shift
        at += 1
        if byte < np.uint64(0x80):
            if bytes_max == INT_BYTES and raw > np.uint64(_INT_MAX):
                return 0, _LONG
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, _CUT if at >= end else _LONG


@kernel(f"UniTuple(int64, 2)({READ}, int64, int64, int64)", inlined=True)
def read_varint(data: Any, at: Any, end: Any, bytes_max: Any) -> tuple[Any, Any]:
    """Return the varint at a position, of at most `bytes_max` bytes, and the position after it."""
    if at >= end:
        return 0, max(at, _CUT)
    byte = np.int64(data[at])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    if at + 1 < end:
        second = np.int64(data[at + 1])
        if second < 0x80:
            return ((byte & 0x7F) >> 1 | second << 6) ^ -(byte & 1), at + 2
    return _read_more(data, at, end, bytes_max)


@kernel(f"UniTuple(int64, 3)({READ}, int64, int64, int64)")
def _walk_headers(data: Any, at: Any, end: Any, count: Any) -> Any:
    """Check that `count` headers fill the bytes up to `end`.

    Return a problem or 0, and the bytes of their keys and of their values.
    """
    if count * _HEADER_BYTES_MIN > end - at:
        return MANY_HEADERS, 0, 0
    keys, values = 0, 0
    for _ in range(count):
        length, at = read_varint(data, at, end, INT_BYTES)
        if length < 0:
            return BAD_HEADERS, 0, 0
        keys += length
        length, at = read_varint(data, at + length, end, INT_BYTES)
        if length < -1:
            return BAD_HEADERS, 0, 0
        values += max(length, 0)
        at += max(length, 0)
    return BAD_HEADERS if at != end else 0, keys, values


@kernel(f"void({READ}, int64, int64, int64, uint64[:, :, ::1], int64, int64)", inlined=True)
def _put_view(
    data: Any, at: Any, length: Any, buffer: Any, views: Any, column: Any, row: Any
) -> None:
    """Write an element of a `binary_view`: up to twelve bytes inline, more by their position."""
    first, second = np.uint64(0), np.uint64(0)
    if length > _INLINE_MAX:
        first = load_word(data, at)
        second = np.uint64(buffer) | np.uint64(at) << np.uint64(32)
    elif length:
        first = load_word(data, at)
        if length < 4:
            first &= (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
        else:
            second = load_word(data, at + 4)
            if length < _INLINE_MAX:
                second &= (np.uint64(1) << np.uint64(8 * length - 32)) - np.uint64(1)
    views[column, row, 0] = np.uint64(length) | first << np.uint64(32)
    views[column, row, 1] = second


@kernel(
    f"void({READ}, int64, int64, int64, int64, int64, int64, uint64[:, :, ::1], int32[:, ::1],"
    " int32[:, ::1], uint8[::1], uint8[:, ::1], int64[::1])",
    inlined=True,
)
def _put(
    data: Any, at: Any, length: Any, wanted: Any, buffer: Any, column: Any, row: Any,
    views: Any, bounds: Any, positions: Any, values: Any, valid: Any, state: Any,
) -> None:  # fmt: skip
    if length < 0:
        state[NULL_KEYS + column] += 1
        if valid.size:
            valid[column, row >> 3] &= ~np.uint8(1 << (row & 7))
        length = 0
    if not wanted & (KEY << column):
        return
    if wanted & VIEWS:
        _put_view(data, at, length, buffer, views, column, row)
    else:
        bound = bounds[column, row]
        if column:
            append_bytes(values, bound, data, at, length)
        else:
            positions[0, row] = at
        bounds[column, row + 1] = bound + length


@kernel(
    f"int64({READ}, int64, int64, int64, int64, int32[:, ::1], int32[:, ::1], int64[::1])",
    inlined=True,
)
def _put_headers(
    data: Any, at: Any, end: Any, count: Any, row: Any, bounds: Any, positions: Any, state: Any
) -> Any:
    """Check a row's headers; write their position if it is requested; return a problem or 0."""
    if bounds.size:
        bounds[2, row + 1] = bounds[2, row] + count
    if count == 0:
        return 0
    if bounds.size:
        positions[1, row] = at
    problem, keys, values = _walk_headers(data, at, end, count)
    if problem == 0:
        state[HEADER_KEY_BYTES] += keys
        state[HEADER_VALUE_BYTES] += values
    return problem


_FIELDS: Final = f"UniTuple(int64, 10)({READ}, int64, int64)"


@kernel(_FIELDS)
def _read_any(data: Any, at: Any, section_end: Any) -> tuple[Any, ...]:
    """Read the record at a position; return a problem or 0, its fields, and its end.

    The fields are timestamp and offset as deltas, starts and lengths of key and value, and number
    and start of the headers.
    """
    length, body = read_varint(data, at, section_end, INT_BYTES)
    end = body + length
    if length < 0 or end > section_end:
        return MISFIT, 0, 0, 0, 0, 0, 0, 0, 0, at
    timestamp, at = read_varint(data, body + 1, end, _LONG_INT)
    delta, at = read_varint(data, at, end, INT_BYTES)
    key_length, key_at = read_varint(data, at, end, INT_BYTES)
    value_length, value_at = read_varint(data, key_at + max(key_length, 0), end, INT_BYTES)
    headers, at = read_varint(data, value_at + max(value_length, 0), end, INT_BYTES)
    problem = 0
    if at != end and (at > end or headers == 0):
        problem = BAD_VARINT if at >= _LONG else BAD_END
    elif min(key_length, value_length) < -1 or headers < 0:
        problem = BAD_END
    if problem:
        return problem, 0, 0, 0, 0, 0, 0, 0, 0, body
    return 0, timestamp, delta, key_at, key_length, value_at, value_length, headers, at, end


@kernel(f"Tuple((int64, int64, uint64))({READ}, int64)", inlined=True)
def _peek_varint(data: Any, at: Any) -> tuple[Any, Any, Any]:
    """Return a varint of up to three bytes, the position after it, and nonzero if it is longer."""
    word = peek_word(data, at)
    raw, size, long = word & np.uint64(0x7F), 1, np.uint64(0)
    if word & np.uint64(0x80):
        raw |= word >> np.uint64(1) & np.uint64(0x3F80)
        size = 2
        if word & np.uint64(0x8000):
            raw |= word >> np.uint64(2) & np.uint64(0x1FC000)
            size, long = 3, word & np.uint64(0x800000)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at + size, long


@kernel(_FIELDS, inlined=True)
def read_fields(data: Any, at: Any, section_end: Any) -> tuple[Any, ...]:
    """Read a record as `_read_any` does, faster if its numbers are small and bytes follow it."""
    limit = min(section_end, data.size - _SPARE)
    if at <= limit:
        length, body, long = _peek_varint(data, at)
        end = body + length
        timestamp, after, more = _peek_varint(data, body + 1)
        long |= more
        delta, after, more = _peek_varint(data, after)
        long |= more
        key_length, key_at, more = _peek_varint(data, after)
        long |= more
        key_end = key_at + max(key_length, 0)
        if long == 0 and key_end < end <= limit:
            value_length, value_at, more = _peek_varint(data, key_end)
            headers_at = value_at + max(value_length, 0)
            if more == 0 and headers_at < end and min(key_length, value_length) >= -1:
                headers, headers_at, more = _peek_varint(data, headers_at)
                fits = headers_at < end if headers else headers_at == end
                if more == 0 and headers >= 0 and fits:
                    return (
                        0, timestamp, delta, key_at, key_length, value_at, value_length, headers,
                        headers_at, end,
                    )  # fmt: skip
    return _read_any(data, at, section_end)


@kernel(f"boolean({READ}, int64, int64, int64)")
def is_chain(data: Any, at: Any, end: Any, count: Any) -> Any:
    """Return whether the bytes are exactly `count` records with the offset deltas 0, 1, 2, …

    This is the check of `read_records` with CONSECUTIVE and HEADERS, without its results.
    """
    for record in range(count):
        problem, _, delta, _, _, _, _, headers, headers_at, after = read_fields(data, at, end)
        if problem or delta != record:
            return False
        if headers and _walk_headers(data, headers_at, after, headers)[0]:
            return False
        at = after
    return at == end


@kernel(f"int64({READ}, int64[::1], int64[::1], int64[::1])")
def find_broken_chain(data: Any, starts: Any, ends: Any, counts: Any) -> Any:
    """Return the index of the first batch whose records are not as `is_chain` demands, or -1.

    The records of batch `index` are the bytes from `starts[index]` to `ends[index]`.
    """
    for index in range(starts.size):
        if not is_chain(data, starts[index], ends[index], counts[index]):
            return index
    return -1


_OUTPUT: Final = (
    "int64[:, ::1], uint64[:, :, ::1], int32[:, ::1], int32[:, ::1], uint8[::1], uint8[:, ::1],"
    " int64[::1]"
)


@kernel(
    f"UniTuple(int64, 3)({READ}, UniTuple(int64, 6), int64, int64, int64, int64, int64, int64,"
    f" int64, {_OUTPUT})",
    inlined=True,
)
def _read_record(
    data: Any, batch: Any, record: Any, at: Any, wanted: Any, start: Any, end: Any, buffer: Any,
    row: Any, longs: Any, views: Any, bounds: Any, positions: Any, values: Any, valid: Any,
    state: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Read the record at a position into a row; return a problem or 0, its end, the next row."""
    section_end, base_offset, last_delta, base_timestamp, max_timestamp, append_time = batch
    (
        problem, timestamp, delta, key_at, key_length, value_at, value_length, headers, headers_at,
        record_end,
    ) = read_fields(data, at, section_end)  # fmt: skip
    if problem:
        return problem, record_end, row
    if wanted & CONSECUTIVE and delta != record:
        return GAP, delta, row
    if delta < 0 or delta > last_delta:
        return OUTSIDE, at, row
    offset = base_offset + delta
    if offset < start or offset >= end:
        return 0, record_end, row
    if wanted & HEADERS:
        problem = _put_headers(data, headers_at, record_end, headers, row, bounds, positions, state)
    if wanted & OFFSET:
        longs[0, row] = offset
    if wanted & TIMESTAMP:
        longs[1, row] = max_timestamp if append_time else base_timestamp + timestamp
    _put(
        data, key_at, key_length, wanted, buffer, 0, row, views, bounds, positions, values, valid,
        state,
    )  # fmt: skip
    _put(
        data, value_at, value_length, wanted, buffer, 1, row, views, bounds, positions, values,
        valid, state,
    )  # fmt: skip
    return problem, record_end, row + 1


@kernel(
    f"int64({READ}, int64[:, ::1], int64, int64, int64, int64, int64, int64, {_OUTPUT})",
)
def read_records(
    data: Any, table: Any, low: Any, high: Any, wanted: Any, start: Any, end: Any, buffer: Any,
    longs: Any, views: Any, bounds: Any, positions: Any, values: Any, valid: Any, state: Any,
) -> Any:  # fmt: skip
    """Read the records of the batches `low` to `high`, which are in `data`; return a problem or 0.

    Records with an offset in [start, end) are written to the rows after those of earlier calls. The
    arrays below are written if `wanted` requests them; they must have room for all records:

        longs      offset and timestamp
        views      key and value, as elements that refer to the buffer number `buffer`
        bounds     ends of keys, values and lists of headers among all; the first entry of each is 0
        positions  positions of keys and headers in `data`, for records that have some
        values     bytes of values; some bytes after the last value may be written too
        valid      validity bitmaps of keys and values, with all bits set before; or without room
    """
    row = state[RECORDS]
    for batch in range(low, high):
        first, at, problem = row, table[batch, BEGIN], 0
        header = (
            table[batch, END], table[batch, BASE_OFFSET], table[batch, LAST_DELTA],
            table[batch, BASE_TIMESTAMP], table[batch, MAX_TIMESTAMP],
            table[batch, ATTRIBUTES] & _APPEND_TIME,
        )  # fmt: skip
        for record in range(table[batch, COUNT]):
            problem, at, row = _read_record(
                data, header, record, at, wanted, start, end, buffer, row,
                longs, views, bounds, positions, values, valid, state,
            )  # fmt: skip
            if problem:
                state[RECORD] = record
                break
        if problem == 0 and at != table[batch, END]:
            problem, state[RECORD] = MISFIT, max(table[batch, COUNT] - 1, 0)
        if problem:
            state[BATCH], state[PLACE] = batch, at
            return problem
        table[batch, KEPT] = row - first
    state[RECORDS] = row
    return 0


@kernel(f"void(uint8[::1], {_INTS}, {READ}, {_INTS}, int64, int64)")
def gather(target: Any, bounds: Any, data: Any, positions: Any, low: Any, high: Any) -> None:
    """Copy the rows `low` to `high` into `target`: from `positions` in `data`, to `bounds`."""
    bound = np.int64(bounds[low])
    for row in range(low, high):
        after = np.int64(bounds[row + 1])
        append_bytes(target, bound, data, positions[row], after - bound)
        bound = after


@kernel(
    f"int64({READ}, {_INTS}, {_INTS}, int64, int64, int32[:, ::1], uint8[::1], uint8[::1],"
    " uint8[::1])"
)
def copy_headers(
    data: Any, positions: Any, lists: Any, low: Any, high: Any, bounds: Any, keys: Any, values: Any,
    valid: Any,
) -> Any:  # fmt: skip
    """Copy the headers of the rows `low` to `high` to columns; return the number of null values.

    `positions` come from `read_records`. `lists` are the bounds of each row's headers among all.
    `bounds` are those of all keys in `keys` and of all values in `values`; the first of each is 0.
    `valid` is the bitmap of values, with all bits set before.
    """
    nulls, first = 0, np.int64(lists[low])
    key_bound, value_bound = np.int64(bounds[0, first]), np.int64(bounds[1, first])
    for row in range(low, high):
        at = np.int64(positions[row])
        for index in range(lists[row], lists[row + 1]):
            length, at = read_varint(data, at, data.size, INT_BYTES)
            append_bytes(keys, key_bound, data, at, length)
            key_bound += length
            length, at = read_varint(data, at + length, data.size, INT_BYTES)
            if length < 0:
                valid[index >> 3] &= ~np.uint8(1 << (index & 7))
                nulls += 1
                length = 0
            append_bytes(values, value_bound, data, at, length)
            value_bound += length
            at += length
            bounds[0, index + 1] = key_bound
            bounds[1, index + 1] = value_bound
    return nulls
