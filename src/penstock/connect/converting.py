"""Conversion of rows to the bytes of records: keys and values as JSON, or with a registered schema.

In the format `json`, text and bytes are written unchanged, and every other type as JSON with null
fields. In the format `registry`, values are Avro with a schema id (`registering.py`).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.connect.plugins import HEADERS, KEY, ORDER, PARTITION, TIMESTAMP, VALUE, Records
from penstock.formats.json.writing import json_values

_KEPT: Final = (HEADERS, TIMESTAMP, PARTITION, ORDER)


class Converter(Protocol):
    """Conversion of one column of a topic's rows to bytes."""

    def convert(self, topic: str, column: Any) -> Any:
        """Return a column of bytes; null values stay null.

        Raises:
            InvalidError: the type of the column has no such form.
        """


class JsonConverter:
    """Conversion to JSON; text and bytes are unchanged."""

    def convert(self, topic: str, column: Any) -> Any:
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return column
        if pa.types.is_null(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return column.cast(pa.binary())
        try:
            return json_values(column).cast(pa.binary())
        except pa.ArrowException as error:
            raise InvalidError(f"topic {topic}: no JSON for a column of {kind}: {error}") from error


def encoded(records: Records, key: Converter, value: Converter) -> Any:
    """Return the rows as a table that `TransactionalProducer.write_arrow` accepts.

    Raises:
        InvalidError: a column has no form in the format.
    """
    rows = records.rows.combine_chunks()
    columns: dict[str, Any] = {}
    for name, converter in ((KEY, key), (VALUE, value)):
        if name in rows.column_names:
            columns[name] = converter.convert(records.topic, whole(rows.column(name)))
    for name in _KEPT:
        if name in rows.column_names:
            columns[name] = whole(rows.column(name))
    return pa.table(columns)


def whole(column: Any) -> Any:
    """Return a chunked column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def joined(tables: list[Any]) -> Any:
    """Return the rows of several tables of one topic, in the order of their column `order`."""
    rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
    if ORDER not in rows.column_names:
        return rows
    if len(tables) > 1:
        rows = rows.take(pc.sort_indices(rows.column(ORDER)))
    return rows.drop_columns([ORDER])
