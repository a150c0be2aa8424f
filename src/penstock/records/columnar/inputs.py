"""What callers hand over, brought to the few types that the encoder knows.

Keys and values may be any binary or text type, timestamps whole milliseconds or Arrow
timestamps of any unit, headers a list of key-value structs or a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.columnar.schema import HEADERS_TYPE, Ints
from penstock.records.errors import InvalidRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A binary array and the length of each element; -1 is a null."""

    array: Any
    lengths: Ints

    def part(self, low: int, high: int) -> Column:
        return Column(array=self.array.slice(low, high - low), lengths=self.lengths[low:high])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumn:
    """Headers per record, and their keys and values one after the other."""

    counts: Ints
    keys: Column
    values: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The columns of the records to encode; None where there is nothing but nulls."""

    size: int
    key: Column | None
    value: Column
    timestamps: Ints
    headers: HeaderColumn | None


def read_input(data: Any, now_ms: int) -> Input:
    """Take the columns `value`, `key`, `timestamp` and `headers` of a table or record batch.

    Raises:
        InvalidRecord: no column `value`, a column of another type, or a null header key.
    """
    names = data.schema.names
    if "value" not in names:
        raise InvalidRecord(f"there is no column 'value', only {', '.join(names) or 'none'}")
    key = _binary("key", _whole(data, "key")) if "key" in names else None
    if key is not None and key.array.null_count == data.num_rows:
        key = None
    return Input(
        size=data.num_rows,
        key=key,
        value=_binary("value", _whole(data, "value")),
        timestamps=_timestamps(data, now_ms),
        headers=_headers(_whole(data, "headers")) if "headers" in names else None,
    )


def _whole(data: Any, name: str) -> Any:
    column = data.column(name)
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks()
    return column


def _binary(name: str, array: Any) -> Column:
    if array.type != pa.binary():
        try:
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            array = array.cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRecord(
                f"column {name!r} is {array.type}; it must be binary or text: {error}"
            ) from error
    bounds = np.frombuffer(array.buffers()[1] or b"\0\0\0\0", np.int32)
    bounds = bounds[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(bounds).astype(np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return Column(array=array, lengths=lengths)


def _timestamps(data: Any, now_ms: int) -> Ints:
    if "timestamp" not in data.schema.names:
        return np.full(data.num_rows, now_ms, np.int64)
    array = _whole(data, "timestamp")
    if pa.types.is_timestamp(array.type):
        if array.type.unit != "ms":
            array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
        array = array.cast(pa.int64())
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise InvalidRecord(
            f"column 'timestamp' is {array.type}; it must be whole milliseconds or a timestamp"
        )
    array = array.cast(pa.int64())
    if array.null_count:
        array = array.fill_null(now_ms)
    result: Ints = array.to_numpy()
    return result


def _headers(array: Any) -> HeaderColumn | None:
    if array.null_count == len(array):
        return None
    try:
        array = array.cast(HEADERS_TYPE)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRecord(
            f"column 'headers' is {array.type}; it must be a list of key-value structs or a map"
        ) from error
    counts = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    pairs = array.flatten()
    if len(pairs) == 0:
        return None
    if pairs.null_count:
        raise InvalidRecord("column 'headers' has a header that is null")
    keys, values = pairs.flatten()
    if keys.null_count:
        raise InvalidRecord("column 'headers' has a header whose key is null")
    return HeaderColumn(
        counts=counts, keys=_binary("headers", keys), values=_binary("headers", values)
    )
