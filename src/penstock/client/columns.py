"""What a caller's table looks like to a log: key, value, timestamp, headers, partition.

Anything that hands out Arrow's C stream (PyArrow tables and readers, Polars and pandas frames)
is taken batch by batch, its columns are picked by name and brought to the few types that the
record encoder reads. Nothing here touches single rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.client.errors import InvalidArgument

DEFAULT_KEY: Final = "key"
DEFAULT_VALUE: Final = "value"
DEFAULT_TIMESTAMP: Final = "timestamp"
DEFAULT_HEADERS: Final = "headers"
_RECORD_BYTES: Final = 6
"""What a record takes more than its row in a table: varints of about ten bytes for offsets of 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """Which columns of the input hold what; None for what is not there."""

    key: str | None
    value: str
    timestamp: str | None
    headers: str | None
    partition: str | None


def open_stream(data: Any) -> Any:
    """Arrow record batches of anything with `__arrow_c_stream__`, as a reader.

    Raises:
        InvalidArgument: `data` has no Arrow interface.
    """
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.RecordBatchReader):
        return data
    if not hasattr(data, "__arrow_c_stream__"):
        raise InvalidArgument(
            f"data of type {type(data).__name__} has no __arrow_c_stream__: give a PyArrow table,"
            " record batch or reader, a Polars frame, or a pandas frame (2.2 or newer)"
        )
    return pa.RecordBatchReader.from_stream(data)


def choose(
    schema: Any,
    *,
    key: str | None,
    value: str,
    timestamp: str | None,
    headers: str | None,
    partition: str | None,
) -> ColumnNames:
    """Check the names asked for against the input's columns.

    A default name that the input lacks means that it has no such column.

    Raises:
        InvalidArgument: a column that was asked for by name, or `value`, is missing.
    """

    def find(name: str | None, default: str | None, what: str) -> str | None:
        if name is None:
            return None
        if name in schema.names:
            return name
        if name == default and what != "value":
            return None
        raise InvalidArgument(
            f"there is no column {name!r} for the records' {what}; the columns are "
            + (", ".join(schema.names) or "none")
        )

    return ColumnNames(
        key=find(key, DEFAULT_KEY, "key"),
        value=find(value, DEFAULT_VALUE, "value") or value,
        timestamp=find(timestamp, DEFAULT_TIMESTAMP, "timestamp"),
        headers=find(headers, DEFAULT_HEADERS, "headers"),
        partition=find(partition, None, "partition"),
    )


def pick(batches: Iterator[Any], names: ColumnNames) -> Iterator[Any]:
    """Yield the batches that have rows, with no columns but those named."""
    columns = (names.key, names.value, names.timestamp, names.headers, names.partition)
    wanted = list(dict.fromkeys(name for name in columns if name is not None))
    for batch in batches:
        if batch.num_rows:
            yield batch if batch.num_columns == len(wanted) else batch.select(wanted)


def normalise(batch: Any, names: ColumnNames) -> Any:
    """The batch with columns key, value, timestamp, headers, partition (those there are).

    This costs as much for a few rows as for thousands: join small batches first.
    """
    columns: dict[str, Any] = {}
    if names.key is not None:
        columns["key"] = _bytes(batch.column(names.key), names.key)
    columns["value"] = _bytes(batch.column(names.value), names.value)
    if names.timestamp is not None:
        columns["timestamp"] = _timestamps(batch.column(names.timestamp), names.timestamp)
    if names.headers is not None:
        columns["headers"] = batch.column(names.headers)
    if names.partition is not None:
        columns["partition"] = _partition(batch.column(names.partition), names.partition)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _bytes(column: Any, name: str) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _bytes(column.dictionary_decode(), name)
    if pa.types.is_null(kind):
        return column.cast(pa.binary())
    if any(
        test(kind)
        for test in (
            pa.types.is_binary,
            pa.types.is_string,
            pa.types.is_large_binary,
            pa.types.is_large_string,
        )
    ):
        return column
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    raise InvalidArgument(
        f"column {name!r} has type {kind}: keys and values are bytes or text; cast or serialise it"
        " first"
    )


def _timestamps(column: Any, name: str) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    raise InvalidArgument(
        f"column {name!r} has type {kind}: a timestamp is int64 milliseconds or an Arrow timestamp"
    )


def _partition(column: Any, name: str) -> Any:
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InvalidArgument(
            f"column {name!r} has type {column.type} and {column.null_count} nulls: a partition"
            " column holds whole numbers and no nulls"
        )
    return column.cast(pa.int32())


def chunks(batches: Iterator[Any], rows_max: int, bytes_max: int) -> Iterator[Any]:
    """Cut or join batches so that each encodes to about `bytes_max`, in at most `rows_max` rows."""
    pending: list[Any] = []
    pending_bytes = pending_rows = 0
    for batch in batches:
        size = batch.nbytes + _RECORD_BYTES * batch.num_rows
        row_bytes = size / batch.num_rows
        if pending_bytes + size < bytes_max and pending_rows + batch.num_rows < rows_max:
            pending.append(batch)
            pending_rows += batch.num_rows
            pending_bytes += size
            continue
        rows = max(1, min(rows_max, int(bytes_max / row_bytes)))
        start = 0
        while start < batch.num_rows:
            room = max(1, min(rows_max - pending_rows, rows - int(pending_bytes / row_bytes)))
            part = batch.slice(start, room)
            start += part.num_rows
            pending.append(part)
            pending_rows += part.num_rows
            pending_bytes += int(part.num_rows * row_bytes)
            if pending_rows >= rows_max or pending_bytes + row_bytes > bytes_max:
                yield _join(pending)
                pending, pending_bytes, pending_rows = [], 0, 0
    if pending:
        yield _join(pending)


def _join(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
