"""Copy of the records of stored batches into new batches, with a header that names their origin.

The records get consecutive offset deltas, so gaps that compaction left disappear. Keys, values,
headers and timestamps stay the same. The new header follows the record's own headers, unless the
record already has a header of that name. Records whose header has the value `home` are skipped.

Source: Kafka's `DefaultRecord.writeTo`; KIP-82 (headers).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import copy_bytes
from penstock.kernels.record_writing import (
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    RECORDS_BYTES,
    varint_size,
    write_varint,
)
from penstock.kernels.records import (
    ATTRIBUTES,
    BAD_HEADERS,
    BASE_OFFSET,
    BATCH,
    BEGIN,
    COUNT,
    END,
    INT_BYTES,
    LAST_DELTA,
    OUTSIDE,
    PLACE,
    RECORD,
    read_fields,
    read_varint,
)
from penstock.kernels.records import BASE_TIMESTAMP as SOURCE_BASE_TIMESTAMP
from penstock.kernels.records import MAX_TIMESTAMP as SOURCE_MAX_TIMESTAMP
from penstock.kernels.types import READ

RECORDS: Final = 0
FIRST_OFFSET: Final = 1
"""Columns of `cuts`: number of a batch's records, and the offset that the first one had. The others
are as in `write_records`.
"""
RECORD_BYTES_MORE: Final = 32
"""Most bytes by which a record grows, apart from the new header."""
_APPEND_TIME: Final = 0x08
_HEADER_BYTES: Final = 61
_SIZE_BYTES_MAX: Final = 10
_OTHER, _HOME = 1, 2


@kernel(f"boolean({READ}, int64, int64, {READ})", inlined=True)
def _equal(data: Any, at: Any, length: Any, text: Any) -> Any:
    if length != text.size or at + length > data.size:
        return False
    for index in range(length):
        if data[at + index] != text[index]:
            return False
    return True


@kernel(f"int64({READ}, int64, int64, int64, {READ}, {READ})")
def _origin(data: Any, at: Any, end: Any, count: Any, name: Any, home: Any) -> Any:
    """Return the kind of a record's origin header: 0 for none, `_OTHER`, `_HOME`; -1 if the headers
    are damaged.
    """
    found = 0
    for _ in range(count):
        length, at = read_varint(data, at, end, INT_BYTES)
        if length < 0:
            return -1
        named = _equal(data, at, length, name)
        length, at = read_varint(data, at + length, end, INT_BYTES)
        if length < -1:
            return -1
        if named:
            found = max(found, _HOME if _equal(data, at, length, home) else _OTHER)
        at += max(length, 0)
    return found if at == end else -1


@kernel(
    f"UniTuple(int64, 2)({READ}, int64, int64, int64, int64, int64, {READ}, {READ}, {READ})",
    inlined=True,
)
def _checked(
    data: Any, delta: Any, last_delta: Any, headers: Any, at: Any, end: Any, header: Any, name: Any,
    home: Any,
) -> Any:  # fmt: skip
    """Return a problem of a record's offset delta or headers, or 0, and the kind of its origin."""
    if delta < 0 or delta > last_delta:
        return OUTSIDE, 0
    if header.size == 0 or headers == 0:
        return 0, 0
    origin = _origin(data, at, end, headers, name, home)
    return (BAD_HEADERS, 0) if origin < 0 else (0, origin)


@kernel("int64(uint8[::1], int64, int64, int64, int64)", inlined=True)
def _write(target: Any, at: Any, size: Any, timestamp: Any, delta: Any) -> Any:
    """Write a record up to its offset delta; return the position after it.

    Raises:
        IndexError: the target has no room for the record.
    """
    if at + size + _SIZE_BYTES_MAX > target.size:
        raise IndexError("there is no room for a record")
    at = write_varint(target, at, size)
    target[at] = 0
    at = write_varint(target, at + 1, timestamp)
    return write_varint(target, at, delta)


@kernel("int64(int64[:, ::1], int64, int64, int64, int64, int64)", inlined=True)
def _ended(cuts: Any, found: Any, count: Any, size: Any, base: Any, largest: Any) -> Any:
    """Write the row of a batch, if it has records; return the number of batches.

    Raises:
        IndexError: there is no room for another row.
    """
    if count == 0:
        return found
    if found + 1 >= cuts.shape[0]:
        raise IndexError("there are not more rows than batches")
    cuts[found, RECORDS], cuts[found, RECORDS_BYTES] = count, size
    cuts[found, BASE_TIMESTAMP], cuts[found, MAX_TIMESTAMP] = base, largest
    return found + 1


@kernel(
    f"int64({READ}, int64[:, ::1], int64, {READ}, {READ}, {READ}, int64, int64, uint8[::1],"
    " int64[:, ::1], int64[::1])"
)
def copy_records(
    data: Any, table: Any, start: Any, header: Any, name: Any, home: Any, room: Any,
    records_max: Any, target: Any, cuts: Any, state: Any,
) -> Any:  # fmt: skip
    """Copy records from the offset `start` on; return the number of batches, or a negative problem.

    A batch has at most `room` bytes of records and `records_max` records, but at least one record.
    Room for its header is left in front of it. `cuts` gets a row for each batch: number of records,
    first offset, bytes, first and largest timestamp. `state` gets the place of a problem. `header`
    is the new header as it is encoded in a record, or empty; `name` is its name.

    Raises:
        IndexError: `target` or `cuts` is too small.
    """
    found, at, begin, count, base, largest = 0, 0, 0, 0, 0, 0
    for batch in range(table.shape[0]):
        position, end = table[batch, BEGIN], table[batch, END]
        for record in range(table[batch, COUNT]):
            fields = read_fields(data, position, end)
            problem, timestamp, delta, key_at, key_length = fields[:5]
            value_at, value_length, headers, headers_at, after = fields[5:]
            if problem == 0:
                problem, origin = _checked(
                    data, delta, table[batch, LAST_DELTA], headers, headers_at, after, header,
                    name, home,
                )  # fmt: skip
            if problem:
                state[BATCH], state[RECORD], state[PLACE] = batch, record, position
                return -problem
            position = after
            if origin == _HOME or table[batch, BASE_OFFSET] + delta < start:
                continue
            late = table[batch, ATTRIBUTES] & _APPEND_TIME != 0
            batch_ms = table[batch, SOURCE_MAX_TIMESTAMP if late else SOURCE_BASE_TIMESTAMP]
            timestamp = batch_ms if late else batch_ms + timestamp
            more = 0 if origin else header.size
            headers += 1 if more else 0
            content = value_at + max(value_length, 0) - key_at
            own = after - headers_at
            fixed = 1 + varint_size(key_length) + content + varint_size(headers) + own + more
            size = fixed + varint_size(timestamp - base) + varint_size(count)
            full = at + varint_size(size) + size - begin > room or count >= records_max
            if count and full:
                found, count = _ended(cuts, found, count, at - begin, base, largest), 0
            if count == 0:
                at += _HEADER_BYTES
                begin, base, largest = at, timestamp, timestamp
                cuts[found, FIRST_OFFSET] = table[batch, BASE_OFFSET] + delta
                size = fixed + 2
            at = _write(target, at, size, timestamp - base, count)
            at = write_varint(target, at, key_length)
            copy_bytes(target, at, data, key_at, content)
            at = write_varint(target, at + content, headers)
            copy_bytes(target, at, data, headers_at, own)
            copy_bytes(target, at + own, header, 0, more)
            at += own + more
            largest = max(largest, timestamp)
            count += 1
    return _ended(cuts, found, count, at - begin, base, largest)
