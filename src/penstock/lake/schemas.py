"""Schemas of Iceberg tables: types of new columns, evolution, conversion of rows, and partitions.

All columns of a new table allow nulls, at any depth. A table's schema follows the rows if the sink
has `add_columns`: new columns are added, int becomes long, float becomes double, and decimals get
more digits, as Iceberg's rules allow. Rows are converted to the table's types; a conversion that
would change a value is rejected.

| Arrow                                  | Iceberg                                             |
|----------------------------------------|-----------------------------------------------------|
| int8, int16, uint8, uint16             | int                                                 |
| uint32, uint64                         | long; larger values are rejected                    |
| timestamp of any unit, time32, date64  | timestamp, time and date in microseconds and days   |
| timestamp with a zone                  | timestamptz: the same instant, in UTC               |
| dictionary, view and large types       | type of their values                                |
| null                                   | no column, until a batch has values                 |

Source: the Iceberg table specification, "Schemas and Data Types", "Schema Evolution", "Partitioning
Transforms".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import Transform, parse_transform

from penstock.lake.target import LakeMismatch

DECIMAL_DIGITS_MAX: Final = 38
VERSION_MAX: Final = 2
"""Newest format version of tables that are written."""
_PARTITION: Final = re.compile(
    r"(?:(?P<name>[a-z]+)\(\s*(?:(?P<size>\d{1,9})\s*,\s*)?(?P<of>[^(),]+?)\s*\)|(?P<column>[^(),]+))"
)
_SIZED: Final = ("bucket", "truncate")
_TRANSFORMS: Final = ("identity", "year", "month", "day", "hour", *_SIZED)
_INTEGERS: Final = {
    pa.uint8(): pa.int32(), pa.uint16(): pa.int32(), pa.int8(): pa.int32(), pa.int16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.uint64(): pa.int64(),
}  # fmt: skip
_UNKNOWN: Final = (pa.types.is_duration, pa.types.is_interval, pa.types.is_decimal)
"""Types without a counterpart; `_storable` accepts smaller decimals before it tests them."""


def storable(name: str, rows: pa.Schema) -> pa.Schema:
    """Return the schema of rows in types that Iceberg has, without columns of the type null.

    Args:
        name: the table's name in messages.

    Raises:
        LakeMismatch: a type has no counterpart, or two columns have one name.
    """
    if len(set(rows.names)) < len(rows.names):
        twice = next(column for column in rows.names if rows.names.count(column) > 1)
        raise LakeMismatch(f"table {name}: there are two columns {twice}. Rename one of them")
    found = ((field.name, _storable(f"table {name}: column {field.name}", field.type))
             for field in rows)  # fmt: skip
    return pa.schema([pa.field(column, kind) for column, kind in found if kind is not None])


def _storable(place: str, kind: pa.DataType) -> pa.DataType | None:
    if kind in _INTEGERS:
        return _INTEGERS[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_dictionary(kind):
        return _storable(place, kind.value_type)
    if pa.types.is_decimal(kind) and kind.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return _storable_nested(place, kind)
    if any(unknown(kind) for unknown in _UNKNOWN):
        raise LakeMismatch(f"{place} has type {kind}, which Iceberg does not have. Cast it")
    return kind


def _storable_nested(place: str, kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        found = [(field.name, _storable(f"{place}.{field.name}", field.type)) for field in kind]
        fields = [pa.field(name, inner) for name, inner in found if inner is not None]
        return pa.struct(fields) if fields else None
    if pa.types.is_map(kind):
        key, item = _storable(place, kind.key_type), _storable(place, kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_union(kind):
        raise LakeMismatch(f"{place} has type {kind}, which Iceberg does not have. Cast it")
    inner = _storable(f"{place}.element", kind.value_type)
    return None if inner is None else pa.list_(inner)


def evolve(transaction: Transaction, name: str, rows: pa.Schema) -> bool:
    """Add what a table's schema lacks for rows to a transaction; return whether it lacked anything.

    Args:
        rows: schema in types of `storable`.

    Raises:
        LakeMismatch: a column has a type to which the table's type cannot be widened.
    """
    before = transaction.table_metadata.schema()
    try:
        with transaction.update_schema() as update:
            update.union_by_name(rows)
    except (ValidationError, ValueError, TypeError) as error:
        raise LakeMismatch(
            f"table {name}: the rows have columns of other types than the table: {error}. Cast them"
        ) from error
    return transaction.table_metadata.schema().fields != before.fields


def lacking(table: Schema, rows: pa.Schema) -> list[str]:
    """Return the columns of rows that a table lacks, and those whose types are too narrow."""
    there = {field.name for field in table.fields}
    return [column for column in rows.names if column not in there] or list(rows.names)


def fitted(name: str, rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with a table's columns and types; missing columns are null.

    Raises:
        LakeMismatch: a value has no equal value in the table's type, or is null where the table
            requires a value.
    """
    given = {field.name: rows[field.name] for field in rows.schema}
    columns: list[Any] = []
    fields = arrow_schema(schema)
    for field, declared in zip(fields, schema.fields, strict=True):
        values = given.get(field.name)
        if values is None:
            values = pa.nulls(rows.num_rows, field.type)
        if declared.required and values.null_count:
            raise LakeMismatch(
                f"table {name}: column {field.name} is null in some rows, but must not be null in"
                " the table. Drop these rows, or set a value"
            )
        columns.append(cast(name, field.name, values, field.type))
    return pa.table(columns, schema=fields)


def cast(name: str, column: str, values: Any, kind: pa.DataType) -> Any:
    """Return values in a type of the table; the errors are those of `fitted`."""
    try:
        return values if values.type == kind else values.cast(kind)
    except pa.lib.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise LakeMismatch(
            f"table {name}: column {column} cannot be converted from {values.type} to {kind}:"
            f" {error}"
        ) from error


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table's rows; every part allows nulls."""
    found = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in found])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind


# Partitions


def partition(text: str) -> tuple[str, Transform[Any, Any]]:
    """Return the column and the transform of an entry of `partition_by`.

    Entries are `country`, `day(at)`, `bucket(16, id)` and `truncate(4, name)`.

    Raises:
        LakeMismatch: the entry has another form.
    """
    found = _PARTITION.fullmatch(text.strip())
    if found is not None and found["column"]:
        return found["column"].strip(), parse_transform("identity")
    if found is not None and found["name"] in _TRANSFORMS:
        sized = found["name"] in _SIZED
        if sized == bool(found["size"]) and int(found["size"] or 1):
            size = f"[{int(found['size'])}]" if sized else ""
            return found["of"], parse_transform(f"{found['name']}{size}")
    raise LakeMismatch(
        f"partition_by: {text!r} is not a partition. Write a column, day(COLUMN), with identity,"
        " year, month or hour instead of day, bucket(16, COLUMN) or truncate(4, COLUMN)"
    )


def add_partitions(update: UpdateSpec, partition_by: Sequence[str]) -> None:
    for text in partition_by:
        column, transform = partition(text)
        try:
            update.add_field(column, transform)
        except (ValidationError, ValueError) as error:
            raise LakeMismatch(f"partition_by: {text}: {error}") from error


def check_partitions(name: str, rows: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check that rows can be divided by partitions.

    Raises:
        LakeMismatch: a column is missing, or its type is nested or floating-point.
    """
    for text in partition_by:
        column, _ = partition(text)
        if column not in rows.names:
            raise LakeMismatch(f"table {name}: partition column {column} is not in the rows")
        kind = rows.field(column).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise LakeMismatch(
                f"table {name}: partition column {column} has type {kind}. Use whole numbers,"
                " decimals, texts, dates or timestamps"
            )


def partition_texts(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """Return the partitions of a table in the form of `partition_by`."""
    found = []
    for field in spec.fields:
        column = schema.find_column_name(field.source_id) or ""
        name, _, size = str(field.transform).rstrip("]").partition("[")
        text = f"{name}({size}, {column})" if size else f"{name}({column})"
        found.append(column if name == "identity" else text)
    return tuple(found)


def check_spec(name: str, table: Table, partition_by: Sequence[str]) -> None:
    """Check that a table can be written, and has the partitions of a sink, which may be left out.

    Raises:
        LakeMismatch: the partitions differ, or pyiceberg cannot write the table's version.
    """
    if table.format_version > VERSION_MAX:
        raise LakeMismatch(
            f"table {name} has format version {table.format_version}, which pyiceberg reads, but"
            f" does not write. Write to a table of version {VERSION_MAX}"
        )
    there = partition_texts(table.spec(), table.schema())
    wanted = [partition(text) for text in partition_by]
    if wanted and wanted != [partition(text) for text in there]:
        raise LakeMismatch(
            f"table {name} is partitioned by {', '.join(there) or 'no column'}, but partition_by of"
            f" the sink is {', '.join(partition_by)}"
        )
