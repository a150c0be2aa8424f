"""Conversion of Arrow columns to the input of the encoder.

Keys and values may be any binary or text type. Timestamps are whole milliseconds, or Arrow
timestamps of any unit, which are rounded down to milliseconds. Headers are a list of key-value
structs or a map. Other types are rejected and not cast: for a struct with other field names,
Arrow's cast would return nulls.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.columnar.arrays import (
    NO_BYTES,
    NO_HEADERS,
    NULLS,
    Column,
    Headers,
    Input,
    Ints,
)
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.records.errors import InvalidRecord

_PER_MILLISECOND: Final = {"us": 1_000, "ns": 1_000_000}
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXTS: Final = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
    pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
    pa.types.is_null,
)  # fmt: skip


def read_input(data: Any, now_ms: int) -> Input:
    """Convert the columns `value`, `key`, `timestamp` and `headers` of a table or record batch.

    `now_ms` is the timestamp of rows that have none.

    Raises:
        InvalidRecord: there is no column `value`, a column has an unsupported type, a timestamp
            does not fit into 64 bits, or a header or its key is null.
    """
    names = data.schema.names
    if "value" not in names:
        raise InvalidRecord(
            f"the column 'value' is missing. The columns are {', '.join(names) or 'none'}"
        )
    return Input(
        key=column_of_bytes("key", _whole(data, "key")) if "key" in names else NULLS,
        value=column_of_bytes("value", _whole(data, "value")),
        timestamps=_timestamps(data, now_ms),
        headers=headers_of(_whole(data, "headers")) if "headers" in names else NO_HEADERS,
    )


def _whole(data: Any, name: str) -> Any:
    column = data.column(name)
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks()
    return column


def plain(array: Any) -> Any:
    """Return an array without dictionary or run-end encoding."""
    if pa.types.is_dictionary(array.type):
        return plain(array.cast(array.type.value_type))
    if pa.types.is_run_end_encoded(array.type):
        return plain(pc.run_end_decode(array))
    return array


def as_bytes(name: str, array: Any) -> Any:
    """Return an array of any text or binary type as `binary` or `string`.

    Raises:
        InvalidRecord: the array has another type, or more bytes than 32-bit offsets can address.
    """
    if array.type in (pa.binary(), pa.string()):
        return array
    array = plain(array)
    if not _is_text(array.type):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}, but keys and values must be bytes or text."
            " Cast or serialise it first"
        )
    try:
        return _cast(array, pa.binary())
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"column {name!r}, {array.type}: {error}") from error


def _cast(array: Any, kind: Any) -> Any:
    """Cast an array; if a slice exceeds 32-bit offsets, copy it first."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        if not array.offset:
            raise
        return pa.concat_arrays([array, array.slice(0, 0)]).cast(kind)


def column_of_bytes(name: str, array: Any) -> Column:
    array = as_bytes(name, array)
    if array.null_count == len(array):
        return NULLS
    valid, offsets, content = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return Column(
        data=NO_BYTES if content is None else np.frombuffer(content, np.uint8),
        starts=bounds[:-1],
        ends=bounds[1:],
        valid=np.frombuffer(valid, np.uint8) if array.null_count else NO_BYTES,
        shift=array.offset,
    )


def _timestamps(data: Any, now_ms: int) -> Ints:
    if "timestamp" not in data.schema.names:
        return np.full(data.num_rows, now_ms, np.int64)
    array = as_milliseconds("timestamp", _whole(data, "timestamp"))
    if array.null_count:
        array = array.fill_null(now_ms)
    result: Ints = array.to_numpy()
    return result


def as_milliseconds(name: str, array: Any) -> Any:
    """Return timestamps as whole milliseconds, rounded down even before 1970.

    Raises:
        InvalidRecord: the array has another type, or a value does not fit into 64 bits.
    """
    array = plain(array)
    if pa.types.is_timestamp(array.type):
        array = _milliseconds(name, array)
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}, but must be whole milliseconds or a timestamp"
        )
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidRecord(
            f"column {name!r} has milliseconds that do not fit into 64 bits: {error}"
        ) from error


def _milliseconds(name: str, array: Any) -> Any:
    unit, numbers = array.type.unit, array.cast(pa.int64())
    if unit == "s":
        try:
            return pc.multiply_checked(numbers, 1000)
        except pa.ArrowInvalid as error:
            raise InvalidRecord(
                f"column {name!r} has seconds whose milliseconds do not fit into 64 bits: {error}"
            ) from error
    if unit == "ms":
        return numbers
    made = numbers.fill_null(0).to_numpy() // _PER_MILLISECOND[unit]
    return pa.array(made, mask=array.is_null().to_numpy(zero_copy_only=False))


def as_headers(name: str, array: Any) -> Any:
    """Return headers as an array of `HEADERS_TYPE`.

    Raises:
        InvalidRecord: the array has another type, or a key is not UTF-8.
    """
    if array.null_count == len(array):
        return pa.nulls(len(array), HEADERS_TYPE)
    if not _pairs_texts(array.type):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}, but must be a list of structs with the fields"
            " key and value (text or bytes), or a map of text or bytes"
        )
    try:
        return _cast(array, HEADERS_TYPE)
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"column {name!r}, {array.type}: {error}") from error


def headers_of(array: Any) -> Headers:
    array = as_headers("headers", array)
    if array.null_count == len(array):
        return NO_HEADERS
    pairs = array.flatten()
    if len(pairs) == 0:
        return NO_HEADERS
    if pairs.null_count:
        raise InvalidRecord("column 'headers' has a null header. Drop it from the list")
    keys, values = pairs.flatten()
    if keys.null_count:
        raise InvalidRecord("column 'headers' has a header with a null key. Set a key, or drop it")
    if array.null_count:
        bounds = np.zeros(len(array) + 1, np.int32)
        np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy(), out=bounds[1:])
    else:
        starts = np.frombuffer(array.buffers()[1], np.int32)
        bounds = starts[array.offset : array.offset + len(array) + 1] - starts[array.offset]
    return Headers(bounds, column_of_bytes("headers", keys), column_of_bytes("headers", values))


def _pairs_texts(kind: Any) -> bool:
    if pa.types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    elif any(listed(kind) for listed in _LISTS) and pa.types.is_struct(kind.value_type):
        if sorted(part.name for part in kind.value_type) != ["key", "value"]:
            return False
        parts = [part.type for part in kind.value_type]
    else:
        return False
    parts = [part.value_type if pa.types.is_dictionary(part) else part for part in parts]
    return all(_is_text(part) for part in parts)


def _is_text(kind: Any) -> bool:
    return any(test(kind) for test in _TEXTS)
