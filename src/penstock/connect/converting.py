"""Conversion of rows to the bytes of records: keys and values as JSON, or with a registered schema.

In the format `json`, text and bytes are written unchanged, and every other type as JSON with null
fields. In the format `registry`, values are Avro with a schema id (`registering.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
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


DIGITS_MAX: Final = 76
"""Most digits of a decimal in Arrow."""


def fitted(tables: Sequence[Any]) -> list[Any]:
    """Return tables in one schema that has the columns of all; missing columns are null.

    Raises:
        pa.ArrowException: the types of a column conflict, or no type has all values exactly.
    """
    schemas = [table.schema for table in tables]
    if all(schema.equals(schemas[0]) for schema in schemas):
        return list(tables)
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return [
        table
        if table.schema.equals(schema)
        else pa.table([_column(table, field) for field in schema], schema=schema)
        for table in tables
    ]


def _column(table: Any, field: Any) -> Any:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    return exact(whole(table.column(field.name)), field.type)


def exact(values: Any, kind: Any) -> Any:
    """Return an array in another type, without a change of any value.

    A double is equal to its shortest text, such as 0.1.

    Raises:
        pa.ArrowException: the type does not have all values.
    """
    given = values.type
    if given == kind:
        return values
    if pa.types.is_struct(given) and pa.types.is_struct(kind):
        return _exact_structs(values, kind)
    if pa.types.is_list(given) and pa.types.is_list(kind):
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        items = exact(values.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, items, kind, mask=values.is_null())
    if pa.types.is_decimal(kind) and (pa.types.is_floating(given) or pa.types.is_integer(given)):
        return values.cast(pa.string()).cast(kind)
    if pa.types.is_decimal(given) and pa.types.is_floating(kind):
        made = values.cast(pa.string()).cast(kind)
        if not made.cast(pa.string()).cast(given).equals(values):
            raise pa.ArrowInvalid(f"a number of {given} is not exact in {kind}")
        return made
    return values.cast(kind)


def _exact_structs(values: Any, kind: Any) -> Any:
    there = {field.name for field in values.type}
    if not there.issubset(field.name for field in kind):
        raise pa.ArrowInvalid(f"{kind} does not have the fields of {values.type}")
    columns = [
        exact(values.field(field.name), field.type)
        if field.name in there
        else pa.nulls(len(values), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=values.is_null())
