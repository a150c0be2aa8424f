"""Decoder of batch bytes to Arrow columns, for any number of batches at once.

`rows.py` reads the records into NumPy arrays, which are the buffers of the Arrow columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.base.crc import Readable
from penstock.records.columnar.schema import EXTRA_FIELDS, HEADERS_TYPE, RECORD_SCHEMA
from penstock.records.errors import InvalidRecord
from penstock.records.header import DECOMPRESSED_BYTES_MAX
from penstock.records.transactions import AbortedRange

if TYPE_CHECKING:
    from penstock.records.columnar.rows import Rows, Strings

DEFAULT_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_HEADER_FIELDS: Final = [HEADERS_TYPE.value_type.field(index) for index in range(2)]
_NO_HEADERS: Final = pa.nulls(0, HEADERS_TYPE.value_type)


def decode_batches(
    buffer: Readable,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    aborted: Sequence[AbortedRange] = (),
    include_control: bool = False,
    check_crc: bool = True,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
    views: bool = False,
) -> pa.RecordBatch:
    """Decode adjacent batches; a batch that is cut at the end of `buffer` is ignored.

    Args:
        buffer: bytes of the batches.
        columns: columns of the result, in its order: `offset`, `timestamp`, `key`, `value`,
            `headers`, `timestamp_type`.
        start_offset: first offset to return; None for all.
        end_offset: offset after the last one to return; None for all.
        aborted: ranges of aborted transactions, whose batches are skipped.
        include_control: whether control batches (transaction markers) are decoded like records.
        check_crc: whether the checksums of the decoded batches are verified.
        max_decompressed_bytes: limit for all compressed batches together.
        views: whether keys and values are `binary_view` elements of `buffer`. The result then keeps
            `buffer` in memory, and the buffer must not change.

    Raises:
        CorruptBatch: a batch is invalid.
        RecordTooLarge: the decompressed records exceed the limit, or 2 GiB.
        UnsupportedCodec: Kafka does not define the codec of a batch.
        InvalidRecord: a column does not exist.
    """
    # Imported here because the kernels take 0.3 s to load, and not every client needs them.
    from penstock.records.columnar.rows import read_rows

    schema = _schema(tuple(columns), views)
    rows = read_rows(
        buffer,
        columns=columns,
        start_offset=start_offset,
        end_offset=end_offset,
        aborted=aborted,
        include_control=include_control,
        check_crc=check_crc,
        max_decompressed_bytes=max_decompressed_bytes,
        views=views,
    )
    arrays = [_column(rows, name, views) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...], views: bool) -> Any:
    fields = []
    for name in columns:
        if name in EXTRA_FIELDS:
            fields.append(EXTRA_FIELDS[name])
        elif name not in RECORD_SCHEMA.names:
            known = ", ".join((*RECORD_SCHEMA.names, *EXTRA_FIELDS))
            raise InvalidRecord(f"records have no column {name!r}. Their columns are {known}")
        elif views and name in ("key", "value"):
            fields.append(pa.field(name, pa.binary_view()))
        else:
            fields.append(RECORD_SCHEMA.field(name))
    return pa.schema(fields)


def _column(rows: Rows, name: str, views: bool) -> Any:
    if name in ("key", "value"):
        return _views(rows, name) if views else _strings(rows.strings(name))
    if name == "headers":
        return _headers(rows)
    if name == "timestamp_type":
        return _array(pa.int8(), rows.size, rows.timestamp_types())
    return _array(pa.int64(), rows.size, rows.longs(name))


def _views(rows: Rows, name: str) -> Any:
    elements, buffers, valid = rows.viewed(name)
    return _array(pa.binary_view(), rows.size, elements, *buffers, valid=valid)


def _strings(strings: Strings) -> Any:
    bounds, data, valid = strings
    return _array(pa.binary(), len(bounds) - 1, bounds, data, valid=valid)


def _headers(rows: Rows) -> Any:
    bounds, keys, values = rows.headers()
    pairs = _NO_HEADERS
    if bounds[rows.size]:
        columns = [_text(keys), _strings(values)]
        pairs = pa.StructArray.from_arrays(columns, fields=_HEADER_FIELDS)
    buffers = [None, pa.py_buffer(bounds)]
    return pa.Array.from_buffers(HEADERS_TYPE, rows.size, buffers, children=[pairs])


def _array(kind: Any, size: int, *parts: Any, valid: Any = ()) -> Any:
    present = pa.py_buffer(valid) if len(valid) else None
    return pa.Array.from_buffers(kind, size, [present, *map(pa.py_buffer, parts)])


def _text(keys: Strings) -> Any:
    """Return header keys as text; invalid UTF-8 is replaced, as by Java's readers."""
    if keys.data.size == 0 or int(keys.data.max()) < 0x80:
        return _array(pa.string(), len(keys.bounds) - 1, keys.bounds, keys.data)
    array = _strings(keys)
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in array.to_pylist()], pa.string())
