"""Conversion of a caller's table to the columns key, value, timestamp, headers and partition.

The table is any object with Arrow's C stream interface (PyArrow tables and readers, Polars and
pandas frames). It is read batch by batch. Columns are selected by name, and cast to the few types
that the record encoder reads. No code here runs per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import CorruptError
from penstock.client.arguments import DEFAULT_COLUMNS
from penstock.client.errors import InvalidArgument, UnreadableBatch
from penstock.client.fetch import ReadPosition, Run
from penstock.records import RecordTooLarge, columnar, split_batches
from penstock.records.columnar.inputs import as_bytes, as_headers, as_milliseconds, plain
from penstock.records.errors import InvalidRecord

DEFAULT_KEY: Final = "key"
DEFAULT_VALUE: Final = "value"
DEFAULT_TIMESTAMP: Final = "timestamp"
DEFAULT_HEADERS: Final = "headers"
_RECORD_BYTES: Final = 6
"""Bytes by which an encoded record exceeds its row: about ten bytes of varints replace 4-byte
offsets.
"""


class ColumnNames(Struct, frozen=True, kw_only=True):
    """Names of the caller's columns by their role; None for a role without a column."""

    key: str | None
    value: str
    timestamp: str | None
    headers: str | None
    partition: str | None


def open_stream(data: Any) -> Any:
    """Open an object with `__arrow_c_stream__` as a reader of record batches.

    Raises:
        InvalidArgument: `data` has no Arrow interface.
    """
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.RecordBatchReader):
        return data
    if not hasattr(data, "__arrow_c_stream__"):
        raise InvalidArgument(
            f"data of type {type(data).__name__} has no __arrow_c_stream__; pass a PyArrow"
            " table, record batch or reader, a Polars frame, or a pandas frame (2.2 or"
            " newer)"
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
    """Return the input's columns by role, after checking the requested names.

    If the input lacks a column with a default name, that role has no column.

    Raises:
        InvalidArgument: the value column, or a column with a requested name, is missing.
    """

    def find(name: str | None, default: str | None, what: str) -> str | None:
        if name is None:
            return None
        if schema.names.count(name) > 1:
            raise InvalidArgument(f"the data has several columns {name!r} for the records' {what}")
        if name in schema.names:
            return name
        if name == default and what != "value":
            return None
        raise InvalidArgument(
            f"the data has no column {name!r} for the records' {what}; its columns are "
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
    """Yield the batches that have rows, with only the named columns."""
    columns = (names.key, names.value, names.timestamp, names.headers, names.partition)
    chosen = list(dict.fromkeys(name for name in columns if name is not None))
    for batch in batches:
        if batch.num_rows:
            yield batch if batch.num_columns == len(chosen) else batch.select(chosen)


def normalise(batch: Any, names: ColumnNames) -> Any:
    """Return the batch with its columns renamed to their roles and cast to the encoder's types.

    The cost is the same for a few rows as for thousands, so join small batches first.

    Raises:
        InvalidArgument: a column has an invalid type; the message has the caller's name for it.
    """
    columns: dict[str, Any] = {}
    for role, make in _MAKERS.items():
        name = getattr(names, role)
        if name is not None:
            try:
                columns[role] = make(name, batch.column(name))
            except InvalidRecord as error:
                raise InvalidArgument(str(error)) from None
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _partition(name: str, column: Any) -> Any:
    column = plain(column)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InvalidArgument(
            f"column {name!r} has type {column.type} and {column.null_count} nulls; a"
            " partition column must have whole numbers and no nulls"
        )
    try:
        return column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f"column {name!r} has a value that is no partition number: {error}"
        ) from None


_MAKERS: Final = {
    "key": as_bytes,
    "value": as_bytes,
    "timestamp": as_milliseconds,
    "headers": as_headers,
    "partition": _partition,
}


def chunks(batches: Iterator[Any], rows_max: int, bytes_max: int) -> Iterator[Any]:
    """Split or join batches; each result encodes to about `bytes_max` and has at most `rows_max`
    rows.
    """
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


_EXTRA_COLUMNS: Final = {"partition": pa.int32(), "timestamp_type": pa.int8()}
_VIEWED: Final = ("key", "value")


def schema_of(columns: Sequence[str], views: bool) -> Any:
    """Return the Arrow schema of the named columns; with `views`, keys and values are binary views.

    Raises:
        InvalidArgument: a name is unknown, or there is none.
    """
    fields = []
    for name in columns:
        if name in _EXTRA_COLUMNS:
            fields.append(pa.field(name, _EXTRA_COLUMNS[name]))
        elif views and name in _VIEWED:
            fields.append(pa.field(name, pa.binary_view()))
        elif name in columnar.RECORD_SCHEMA.names:
            fields.append(columnar.RECORD_SCHEMA.field(name))
        else:
            known = ", ".join((*DEFAULT_COLUMNS, "timestamp_type"))
            raise InvalidArgument(f"column {name!r} is unknown; records have {known}")
    if not fields:
        raise InvalidArgument("columns: must name at least one column")
    return pa.schema(fields)


def decoded(topic: str, run: Run, schema: Any, views: bool) -> Iterator[tuple[Run, Any]]:
    """Decode a run of stored batches; yield the run with its records as an Arrow record batch.

    If a batch is unreadable, each batch before it is yielded as a run of its own.

    Raises:
        UnreadableBatch: the error names the batch, and the commands that skip it.
    """
    try:
        whole = _decode(run, schema, views)
    except (CorruptError, RecordTooLarge):
        headers = split_batches(run.data)
    else:
        yield run, whole
        return
    at = 0
    for header in headers:
        end = at + header.size_bytes
        behind = ReadPosition(header.partition_leader_epoch, header.next_offset)
        part = replace(run, data=run.data[at:end], behind=behind)
        try:
            yield part, _decode(part, schema, views)
        except (CorruptError, RecordTooLarge) as error:
            raise UnreadableBatch(topic, run.partition, header, error) from error
        at = end


def _decode(run: Run, schema: Any, views: bool) -> Any:
    columns = schema.names
    record_columns = [name for name in columns if name not in ("partition", "timestamp_type")]
    if "timestamp_type" in columns and "offset" not in record_columns:
        record_columns.append("offset")
    batch = columnar.decode_batches(
        run.data,
        columns=record_columns or ("offset",),
        start_offset=run.start_offset,
        end_offset=run.end_offset,
        aborted=run.aborted,
        views=views,
    )
    if record_columns == columns:
        return batch
    arrays = []
    for name in columns:
        if name == "partition":
            arrays.append(pa.array(np.full(batch.num_rows, run.partition, np.int32)))
        elif name == "timestamp_type":
            arrays.append(_timestamp_types(run, batch.column("offset").to_numpy()))
        else:
            arrays.append(batch.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _timestamp_types(run: Run, offsets: Any) -> Any:
    headers = split_batches(run.data)
    bases = np.array([header.base_offset for header in headers], np.int64)
    types = np.array([header.timestamp_type for header in headers], np.int8)
    if len(types) == 0:
        return pa.array(np.empty(0, np.int8))
    return pa.array(types[np.searchsorted(bases, offsets, side="right") - 1])
