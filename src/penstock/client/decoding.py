"""Decoding of fetched batches to Arrow record batches with the requested columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from penstock.base.errors import CorruptError
from penstock.client.errors import InvalidArgument, UnreadableBatch
from penstock.client.fetch import ReadPosition, Run
from penstock.records import RecordTooLarge, columnar, split_batches
from penstock.records.positions import READ_COMMITTED, READ_UNCOMMITTED

Isolation = Literal["read_uncommitted", "read_committed"]

RECORD_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
DEFAULT_COLUMNS: Final = ("partition", *RECORD_COLUMNS)
_EXTRA_COLUMNS: Final = {"partition": pa.int32(), "timestamp_type": pa.int8()}
_VIEWED: Final = ("key", "value")
_ISOLATION: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


def isolation_level(name: str) -> int:
    """Return the number of an isolation level.

    Raises:
        InvalidArgument: the name is unknown.
    """
    level = _ISOLATION.get(name)
    if level is None:
        raise InvalidArgument(f"isolation = {name!r}: must be read_uncommitted or read_committed")
    return level


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
    """Yield a run with its decoded records.

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
