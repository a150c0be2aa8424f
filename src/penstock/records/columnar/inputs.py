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

from penstock.records.columnar.arrays import Ints
from penstock.records.columnar.gather import Piece
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.records.columnar.varints import varint_column
from penstock.records.errors import InvalidRecord

Rows = slice | Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The elements of a binary array: their addresses, and their lengths, -1 of a null."""

    array: Any
    at: Ints
    lengths: Ints

    @property
    def piece(self) -> Piece:
        return Piece(self.array, self.at, np.maximum(self.lengths, 0))

    def select(self, rows: Rows) -> Column:
        return Column(array=self.array, at=self.at[rows], lengths=self.lengths[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumn:
    """The number of headers of every record, and their bytes as a record has them."""

    counts: Ints
    piece: Piece

    def select(self, rows: Rows) -> HeaderColumn:
        piece = Piece(self.piece.owner, self.piece.at[rows], self.sizes[rows])
        return HeaderColumn(counts=self.counts[rows], piece=piece)

    @property
    def sizes(self) -> Ints:
        sizes: Ints = np.asarray(self.piece.size)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The columns of the records to encode; None where there is nothing but nulls.

    Selecting rows moves addresses only.
    """

    size: int
    key: Column | None
    value: Column
    timestamps: Ints
    headers: HeaderColumn | None

    def select(self, rows: Rows) -> Input:
        """Some rows: a slice, or numbers of rows in any order."""
        timestamps = self.timestamps[rows]
        return Input(
            size=timestamps.size,
            key=None if self.key is None else self.key.select(rows),
            value=self.value.select(rows),
            timestamps=timestamps,
            headers=None if self.headers is None else self.headers.select(rows),
        )


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
    _, offsets, content = array.buffers()
    narrow = np.frombuffer(offsets or b"\0\0\0\0", np.int32)
    bounds = narrow[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(bounds)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    at = bounds[:-1]
    if content is not None:
        at += content.address
    return Column(array=array, at=at, lengths=lengths)


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
    return HeaderColumn(counts=counts, piece=_header_bytes(counts, keys, values))


def _header_bytes(counts: Ints, keys: Any, values: Any) -> Piece:
    """Length, key, length, value of every header, those of a record together."""
    columns = [_binary("headers", keys), _binary("headers", values)]
    pieces: list[Any] = []
    for column in columns:
        pieces += [_varints(column.lengths), column.array]
    joined = pc.binary_join_element_wise(*pieces, b"", null_handling="replace")
    _, offsets, content = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    firsts = np.concatenate(([0], np.cumsum(counts)))
    return Piece.of(np.frombuffer(content, np.uint8), bounds[firsts].astype(np.int64))


def _varints(values: Ints) -> Any:
    data, bounds = varint_column(values)
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), values.size, buffers)
