"""Comparison of a batch's schema with its table's schema, and checks for forbidden nulls.

The comparison of types ignores nullability, because declared nullability does not describe the
rows. For example, Spark marks the result of `split` as a list without nulls. New tables are
therefore created with every column nullable. If another tool's table forbids nulls, at any depth,
the values of each batch are checked.

Source: the Delta transaction protocol, "Schema Serialization Format".
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Field, Schema
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.schema import quoted

RESERVED: Final = "_penstock"
"""Prefix of column names that this package reserves for itself."""
_NULLABLE: Final = frozenset({"nullable", "containsNull", "valueContainsNull"})
_PARTS: Final = {"array": ("elementType",), "map": ("keyType", "valueType")}
_STEPS: Final = {"elementType": "element", "keyType": "key", "valueType": "value"}


def schema_of(schema: StructType) -> Schema:
    """Convert a Spark schema to a Delta schema in which everything is nullable.

    Raises:
        TableMismatch: Delta tables do not support a column's type.
    """
    fields = _nullable(schema.jsonValue())["fields"]
    for field, column in zip(fields, schema, strict=True):
        if not _is_delta(field):
            raise TableMismatch(
                f"column {column.name} has type {column.dataType.simpleString()}, which Delta "
                "tables do not support. Cast it to another type"
            )
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _is_delta(field: Any) -> bool:
    try:
        Schema.from_json(json.dumps({"type": "struct", "fields": [field]}))
    except ValueError:
        return False
    # `deltalake` accepts these types, although Delta's protocol does not define them.
    return not any(name == "void" or name.startswith("interval") for name in _leaves(field["type"]))


def _leaves(kind: Any) -> Iterator[str]:
    if not isinstance(kind, dict):
        yield str(kind)
        return
    inner = [field["type"] for field in kind.get("fields", ())]
    for part in (*inner, *(kind[name] for name in _PARTS.get(kind["type"], ()))):
        yield from _leaves(part)


def with_nulls(frame: DataFrame) -> DataFrame:
    """Return the frame with column types that allow nulls at any depth.

    PySpark's conversion to Arrow rejects a null struct whose fields are declared non-nullable.
    """
    schema = StructType.fromJson(_nullable(frame.schema.jsonValue()))
    return frame.select(
        *(
            F.col(quoted(field.name))
            if field.dataType == kept.dataType
            else F.col(quoted(field.name)).cast(field.dataType).alias(field.name)
            for field, kept in zip(schema, frame.schema, strict=True)
        )
    )


def check_partitions(names: Sequence[str], schema: StructType) -> None:
    """Check that these columns of a batch can be partition columns.

    Raises:
        InvalidOption: a column has a binary or nested type, or every column would be a partition
            column.
    """
    for name in names:
        kind = schema[name].dataType
        if isinstance(kind, (ArrayType, BinaryType, MapType, StructType, VariantType)):
            said = f"has type {kind.simpleString()}; use numbers, texts, dates or timestamps"
            raise InvalidOption("partition_by", name, said)
    if names and len(names) == len(schema):
        said = "leaves no column for the data files; use fewer partition columns"
        raise InvalidOption("partition_by", ", ".join(names), said)


def _nullable(node: Any) -> Any:
    if isinstance(node, list):
        return [_nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A column's metadata may be rules of the table that it was read from.
    return {
        name: True if name in _NULLABLE else {} if name == "metadata" else _nullable(item)
        for name, item in node.items()
    }


def check_names(names: Sequence[str]) -> None:
    """Check that one table can have columns with all of these names.

    Raises:
        TableMismatch: two names differ only in case, or a name begins with `RESERVED`.
    """
    counts = Counter(name.lower() for name in names)
    if twice := [name for name in names if counts[name.lower()] > 1]:
        raise TableMismatch(
            f"columns {' and '.join(twice[:2])} have the same name in a Delta table, which ignores "
            "case. Rename one of them"
        )
    if own := [name for name in names if name.lower().startswith(RESERVED)]:
        raise TableMismatch(f"column {own[0]} begins with {RESERVED}, which is reserved. Rename it")


def added_columns(name: str, table: Schema, batch: Schema, *, allowed: bool) -> list[Field]:
    """Return the columns of a batch that its table lacks.

    Args:
        name: the table's name in messages.
        allowed: whether the table may get new columns.

    Raises:
        TableMismatch: a column has another type or spelling than in the table, the batch lacks a
            column that must not be null, or new columns are not allowed.
    """
    added = _compared(name, table, batch)
    if added and not allowed:
        raise TableMismatch(
            f"table {name} has no column {', '.join(field.name for field in added)}. Set "
            "add_columns = true to add it"
        )
    return added


def _compared(name: str, table: Schema, batch: Schema) -> list[Field]:
    known = {field.name: field for field in table.fields}
    spelled = {field.name.lower(): field.name for field in table.fields}
    added: list[Field] = []
    for field in batch.fields:
        existing = known.pop(field.name, None)
        if existing is None and field.name.lower() in spelled:
            there = spelled[field.name.lower()]
            raise TableMismatch(
                f"table {name}: column {field.name} differs only in case from the table's column "
                f"{there}. Rename it to {there}"
            )
        if existing is None:
            added.append(field)
            continue
        for place, kept, new in _differences(field.name, _type(existing), _type(field)):
            raise TableMismatch(
                f"table {name}: column {place} has type {kept} in the table, but type {new} in the "
                "batch"
            )
    if required := [field.name for field in known.values() if not field.nullable]:
        raise TableMismatch(
            f"table {name}: the batch lacks column {required[0]}, which must not be null in the "
            "table"
        )
    return added


def _type(field: Field) -> Any:
    return json.loads(field.to_json())["type"]


def _differences(place: str, table: Any, batch: Any) -> Iterator[tuple[str, str, str]]:
    kind = table["type"] if isinstance(table, dict) else table
    if kind != (batch["type"] if isinstance(batch, dict) else batch):
        yield place, _shown(table), _shown(batch)
    elif kind == "struct":
        sides = [
            {field["name"]: field["type"] for field in side["fields"]} for side in (table, batch)
        ]
        if list(sides[0]) != list(sides[1]):
            yield place, _shown(table), _shown(batch)
            return
        for name, inner in sides[0].items():
            yield from _differences(f"{place}.{name}", inner, sides[1][name])
    else:
        for part in _PARTS.get(str(kind), ()):
            yield from _differences(f"{place}.{_STEPS[part]}", table[part], batch[part])


def _shown(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "struct":
        fields = (f"{field['name']}: {_shown(field['type'])}" for field in kind["fields"])
        return f"struct<{', '.join(fields)}>"
    return f"{kind['type']}<{', '.join(_shown(kind[part]) for part in _PARTS[kind['type']])}>"


def fitted(name: str, rows: pa.Table, table: Schema) -> pa.Table:
    """Return the rows converted to the table's types, whose nested parts may forbid nulls.

    Top-level columns stay nullable. Columns that the table lacks are not converted.

    Raises:
        TableMismatch: a value is null although the table forbids it.
    """
    wanted = {field.name: field for field in pa.schema(table.to_arrow())}
    columns: list[pa.ChunkedArray] = []
    for field, values in zip(rows.schema, rows.columns, strict=True):
        kept = wanted.get(field.name, field)
        if place := _forbidden_null(field.name, values, kept):
            raise TableMismatch(
                f"table {name}: {place} is null in some rows of the batch, but the table does not "
                "allow nulls there. Drop these rows, or set a value"
            )
        columns.append(_retyped(values, kept.type))
    return pa.table(columns, names=rows.column_names)


def with_one_nan(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values with one bit pattern for all NaN, at any depth.

    `deltalake` would otherwise treat NaN with different signs as different values.
    """
    return pa.chunked_array([_rebuilt(chunk, values.type) for chunk in values.chunks], values.type)


def _retyped(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if values.type == kind:
        return values
    # Arrow's cast rejects a null struct whose fields are non-nullable.
    return pa.chunked_array([_rebuilt(chunk, kind) for chunk in values.chunks], kind)


def _rebuilt(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(array), pa.scalar(math.nan, kind), array)
    if not pa.types.is_nested(kind):
        return array.cast(kind)
    array = pa.concat_arrays([array, array[:0]]) if array.offset else array
    gaps = array.is_null()
    if pa.types.is_struct(kind):
        parts = [_rebuilt(array.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=gaps)
    if pa.types.is_map(kind):
        keys, items = _rebuilt(array.keys, kind.key_type), _rebuilt(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=gaps)
    inner = _rebuilt(array.values, kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, inner, type=kind, mask=gaps)


def _forbidden_null(place: str, values: pa.ChunkedArray, wanted: pa.Field) -> str | None:
    if not wanted.nullable and values.null_count:
        return place
    kind = wanted.type
    if pa.types.is_struct(kind):
        present = values.drop_null()
        for number, field in enumerate(kind):
            inner = pc.struct_field(present, [number])
            if found := _forbidden_null(f"{place}.{field.name}", inner, field):
                return found
    elif pa.types.is_map(kind):
        entries = pc.list_flatten(values.cast(pa.list_(pa.struct(_entry(values.type)))))
        return _forbidden_null(place, entries, pa.field(place, pa.struct(_entry(kind))))
    elif pa.types.is_list(kind):
        return _forbidden_null(f"{place}.element", pc.list_flatten(values), kind.value_field)
    return None


def _entry(kind: pa.MapType) -> list[pa.Field]:
    return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]


# Repair of strings that are not valid UTF-8, before they are written to a table.
#
# Spark keeps the bytes of `cast(key as string)` unchanged and writes them into Parquet files, which
# other readers then cannot open. Invalid bytes are therefore replaced by U+FFFD, as by Spark's
# `make_valid_utf8`. Two different keys must stay different, so an invalid key becomes `\x` and its
# bytes in hexadecimal, as PostgreSQL writes bytes.


def valid_text(batch: DataFrame, keys: Collection[str] = ()) -> DataFrame:
    """Return the batch with valid UTF-8 in all strings, at any depth; valid strings do not change.

    Args:
        batch: batch to repair.
        keys: columns in which different strings must stay different, including nested strings.
    """
    columns: list[str] = []
    for field in batch.schema:
        name = quoted(field.name)
        mended = _mended(field.dataType, name, key=field.name in keys)
        columns.append(name if mended is None else f"{mended} as {name}")
    if columns == [quoted(name) for name in batch.columns]:
        return batch
    return batch.selectExpr(*columns)


def _mended(kind: DataType, value: str, *, key: bool, depth: int = 0) -> str | None:
    """Return the SQL expression that repairs a value's strings; None for a type without strings."""
    item = f"_item{depth}"
    inner = depth + 1
    if isinstance(kind, StringType):
        if not key:
            return f"make_valid_utf8({value})"
        shown = f"concat('\\\\x', hex(cast({value} as binary)))"
        return f"if(is_valid_utf8({value}), {value}, {shown})"
    if isinstance(kind, ArrayType):
        element = _mended(kind.elementType, item, key=key, depth=inner)
        return element and f"transform({value}, {item} -> {element})"
    if isinstance(kind, MapType):
        name = _mended(kind.keyType, item, key=True, depth=inner)
        held = _mended(kind.valueType, f"{item}_value", key=key, depth=inner)
        both = f"({item}, {item}_value)"
        mended = f"transform_keys({value}, {both} -> {name})" if name else value
        return f"transform_values({mended}, {both} -> {held})" if held else name and mended
    if isinstance(kind, StructType):
        parts = [
            (
                field.name,
                _mended(field.dataType, f"{value}.{quoted(field.name)}", key=key, depth=depth),
            )
            for field in kind
        ]
        if not any(part for _, part in parts):
            return None
        fields = ", ".join(
            f"{part or f'{value}.{quoted(name)}'} as {quoted(name)}" for name, part in parts
        )
        return f"if({value} is null, null, struct({fields}))"
    return None
