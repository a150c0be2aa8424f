"""Decoding of records of an outbox topic in columns.

Each record has a row in the result (`DECODED_SCHEMA`), in the same order. If a record was not
written by an outbox, its row has a `problem`, and its other columns are null. Pointers are decoded
a column at a time. A column with a bad pointer is halved until the bad pointer is alone. So a few
bad records cost only a few more calls.

Checksums of inline payloads are not verified here. The checksum of the record batch covers them,
and the consumer verifies them too.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.outbox.errors import InvalidPointer
from penstock.outbox.layout import BATCH_PATTERN, PARTITION_PATTERN
from penstock.outbox.pointer import (
    CODEC_PATTERN,
    HEADER_BATCH_ID,
    HEADER_CODEC,
    HEADER_CRC32C,
    HEADER_EVENT_COUNT,
    HEADER_KIND,
    KIND_INLINE,
    KIND_POINTER,
    decode_pointer,
)
from penstock.outbox.pointer_table import POINTER_SCHEMA, decode_pointers

# Access to headers of many records in columns.
#
# The headers of each record are a list. All lists are flattened once, filtered by name, and reduced
# to one value per record. So reading a header costs a few Arrow calls for any number of records. If
# a record has a header repeatedly, the last value counts. If the header is missing, the value is
# null.
#
# Layout of a record (`docs/guides/outbox.md`): the key is the partition id. The header
# `penstock-outbox` is `pointer` or `inline`. Inline records have the headers `batch-id`, `codec`,
# `event-count` and `crc32c`.


def header_column(headers: Any, name: str) -> Any:
    """Return the value of one header for every record, as a binary array with nulls.

    `headers` is a list<struct<key, value>> array or chunked array.
    """
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    count = len(headers)
    flat = pc.list_flatten(headers)
    if not len(flat):
        return pa.nulls(count, pa.binary())
    matches = np.flatnonzero(
        pc.equal(pc.struct_field(flat, 0), name).fill_null(False).to_numpy(zero_copy_only=False)
    )
    parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
    place = np.zeros(count, np.int64)
    found = np.zeros(count, bool)
    place[parents[matches]] = matches
    found[parents[matches]] = True
    return pc.struct_field(flat, 1).take(pa.array(place, mask=~found)).cast(pa.binary())


def where(mask: Any) -> Any:
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))


POINTER: Final = KIND_POINTER.decode()
INLINE: Final = KIND_INLINE.decode()
DECODED_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        *((field.name, field.type) for field in POINTER_SCHEMA),
        ("problem", pa.string()),
    ]
)
_ALONE: Final = 8
"""Number of pointers up to which a column with a bad pointer is decoded row by row."""
_COUNT_PATTERN: Final = "^[0-9]{1,18}$"
_CRC_PATTERN: Final = "^[0-9a-fA-F]{8}$"


def decode_records(keys: Any, values: Any, headers: Any) -> Any:
    """Return a table of `DECODED_SCHEMA` with a row for every record, valid or not.

    For inline records, `file_path` is null and `size_bytes` is the size of the value.

    Raises:
        InvalidError: the columns are of unequal length.
    """
    count = len(values)
    if len(keys) != count or len(headers) != count:
        raise InvalidError(
            f"{len(keys)} keys, {count} values and {len(headers)} headers: must be of equal length"
        )
    keys, values = _flat(keys), _flat(values)
    kinds = header_column(headers, HEADER_KIND)
    whole = pc.is_valid(values)
    pointers = where(pc.and_(pc.equal(kinds, KIND_POINTER), whole))
    inlines = where(pc.and_(pc.equal(kinds, KIND_INLINE), whole))
    others = np.setdiff1d(np.arange(count), np.concatenate([pointers, inlines]))
    parts = [
        _decode_pointers(keys.take(pa.array(pointers)), values.take(pa.array(pointers))),
        _decode_inlines(
            keys.take(pa.array(inlines)),
            values.take(pa.array(inlines)),
            headers.take(pa.array(inlines)),
        ),
        _bad(len(others), f"the record has no value, or no valid header {HEADER_KIND}"),
    ]
    rows = np.concatenate([pointers, inlines, others])
    order = np.empty(count, np.int64)
    order[rows] = np.arange(count)
    return pa.concat_tables(parts).take(pa.array(order)).combine_chunks()


def _decode_pointers(keys: Any, values: Any) -> Any:
    table = pa.concat_tables(_tolerant(values)) if len(values) else DECODED_SCHEMA.empty_table()
    strays = pc.not_equal(keys.cast(pa.binary()), table.column("partition_id").cast(pa.binary()))
    strays = strays.fill_null(True)
    strays = pc.and_(strays, pc.is_null(table.column("problem")))
    return _with_problem(table, strays, "the record's key is not the pointer's partition id")


def _tolerant(values: Any) -> list[Any]:
    """Return tables that together have a row for every pointer.

    Rows of bad pointers have a problem.
    """
    count = len(values)
    try:
        return [_good(decode_pointers(values), POINTER)]
    except InvalidPointer as error:
        if count == 1:
            return [_bad(1, error.reason)]
    except pa.ArrowException as error:
        if count == 1:
            return [_bad(1, f"is not a pointer: {error}")]
    if count <= _ALONE:
        return [table for row in range(count) for table in _alone(values.slice(row, 1))]
    half = count // 2
    return _tolerant(values.slice(0, half)) + _tolerant(values.slice(half))


def _alone(value: Any) -> list[Any]:
    try:
        decode_pointer(value[0].as_py())
    except InvalidPointer as error:
        return [_bad(1, error.reason)]
    return _tolerant(value)


def _good(table: Any, kind: str) -> Any:
    count = table.num_rows
    columns = [pa.repeat(pa.scalar(kind), count), *table.columns, pa.nulls(count, pa.string())]
    return pa.table(columns, schema=DECODED_SCHEMA)


def _bad(count: int, problem: str) -> Any:
    columns = {field.name: pa.nulls(count, field.type) for field in DECODED_SCHEMA}
    columns["problem"] = pa.repeat(pa.scalar(problem, pa.string()), count)
    return pa.table(columns, schema=DECODED_SCHEMA)


def _decode_inlines(keys: Any, values: Any, headers: Any) -> Any:
    count = len(values)
    if not count:
        return DECODED_SCHEMA.empty_table()
    texts = {
        "partition_id": (_utf8(keys.cast(pa.binary())), f"^{PARTITION_PATTERN}$"),
        "batch_id": (_utf8(header_column(headers, HEADER_BATCH_ID)), f"^{BATCH_PATTERN}$"),
        "codec": (_utf8(header_column(headers, HEADER_CODEC)), f"^{CODEC_PATTERN}$"),
        "crc32c": (_utf8(header_column(headers, HEADER_CRC32C)), _CRC_PATTERN),
        "event_count": (_utf8(header_column(headers, HEADER_EVENT_COUNT)), _COUNT_PATTERN),
    }
    good = pc.invert(pc.is_in(texts["partition_id"][0], value_set=pa.array([".", ".."])))
    for text, pattern in texts.values():
        good = pc.and_(good, pc.match_substring_regex(text, pattern).fill_null(False))
    sizes = pc.binary_length(values).cast(pa.int64())
    columns = {
        "kind": pa.repeat(pa.scalar(INLINE), count),
        "file_path": pa.nulls(count, pa.string()),
        "batch_id": texts["batch_id"][0],
        "partition_id": texts["partition_id"][0],
        "size_bytes": sizes,
        "crc32c": _numbers(pc.if_else(good, texts["crc32c"][0], "00000000")),
        "codec": texts["codec"][0],
        "event_count": pc.if_else(good, texts["event_count"][0], "0").cast(pa.int64()),
        "problem": pa.nulls(count, pa.string()),
    }
    table = pa.table([columns[name] for name in DECODED_SCHEMA.names], schema=DECODED_SCHEMA)
    return _with_problem(table, pc.invert(good), "the key or a header is missing or invalid")


def _with_problem(table: Any, bad: Any, problem: str) -> Any:
    empty = _bad(table.num_rows, problem)
    columns = [
        pc.if_else(bad, empty.column(name), table.column(name)) for name in DECODED_SCHEMA.names
    ]
    return pa.table(columns, schema=DECODED_SCHEMA)


def _utf8(column: Any) -> Any:
    """Return bytes as text, with null for values that are over 256 bytes long or not UTF-8."""
    fits = pc.less_equal(pc.binary_length(column), 256)
    column = pc.if_else(fits, column, pa.scalar(None, pa.binary()))
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        ascii_only = pc.match_substring_regex(column, "^[\\x20-\\x7e]*$")
        return pc.if_else(ascii_only, column, pa.scalar(None, pa.binary())).cast(pa.string())


def _numbers(digits: Any) -> Any:
    joined = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(digits)], pa.int32()), digits.cast(pa.string())),
        "",
    )[0].as_py()
    return pa.array(np.frombuffer(bytes.fromhex(joined), ">u4").astype(np.uint32))


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
