"""JSON columns that Spark completes: variants, bytes, collations, and checks of patterns.

The reader (`formats/json/decode.py`) returns any JSON, and base64, as text. Spark converts them to
variants and bytes. Patterns are regular expressions of Java, so Spark checks them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock.formats.json.json_schema import Items, Leaf, Named, Record, Shape
from penstock.formats.json.plain import SHOWN_CHARACTERS
from penstock.formats.json.program import unsupported
from penstock.spark.formats.ddl import spark_type

_PATTERN: Final = "pattern"


def finish(frame: DataFrame, record: Record) -> DataFrame:
    """Complete the JSON columns of a frame: convert text to variants and bytes, check patterns.

    Args:
        frame: a frame whose last two columns a reader of `readable(record)` has returned.
    """
    others = frame.columns[:-2]
    value = F.col("_value")
    error = _first([F.col("_error"), *_errors(record, value, "")])
    # A separate select builds the struct, so that Spark does not evaluate each error again.
    found = frame.select(*others, value, error.alias("_error"))
    made = F.when(F.col("_error").isNull(), _value(record, value)).cast(record_type(record))
    return found.select(*others, made.alias("_value"), "_error")


def readable(record: Record) -> Record:
    """Return the shape that the reader uses: without patterns, which only Spark can check."""
    parts = (replace(part, shape=_readable(part.shape)) for part in record.fields)
    return replace(record, fields=tuple(parts))


def _readable(shape: Shape) -> Shape:
    match shape:
        case Leaf():
            checks = tuple(check for check in shape.checks if check.keyword != _PATTERN)
            return replace(shape, checks=checks)
        case Record():
            return readable(shape)
        case Items():
            return replace(shape, item=_readable(shape.item))
        case Named():
            return replace(shape, value=_readable(shape.value))


def _first(errors: list[Column]) -> Column:
    return F.coalesce(*errors, F.lit(None).cast("string"))


def _value(shape: Shape, column: Column) -> Column:
    if not unsupported(shape):
        return column
    match shape:
        case Leaf(data_type=None):
            return F.try_parse_json(column)
        case Leaf():
            binary = shape.data_type == pa.binary()
            return F.try_to_binary(column, F.lit("base64")) if binary else column
        case Record():
            parts = (
                _value(part.shape, column.getField(part.name)).alias(part.name)
                for part in shape.fields
            )
            return F.when(column.isNotNull(), F.struct(*parts))
        case Items():
            return F.transform(column, lambda item: _value(shape.item, item))
        case Named():
            return F.transform_values(column, lambda _, item: _value(shape.value, item))


def _errors(shape: Shape, column: Column, where: str) -> Iterator[Column]:
    """Yield a column for each part that Spark checks: its error, or null; in schema order."""
    if not unsupported(shape):
        return
    match shape:
        case Leaf():
            yield from _leaf_errors(shape, column, f"field {where}: ")
        case Record():
            prefix = f"{where}." if where else ""
            for part in shape.fields:
                yield from _errors(part.shape, column.getField(part.name), f"{prefix}{part.name}")
        case Items():
            yield _first_of(shape.item, column, f"{where}[]")
        case Named():
            yield _first_of(shape.value, F.map_values(column), f"{where}{{}}")


def _first_of(shape: Shape, items: Column, where: str) -> Column:
    each = F.transform(items, lambda item: _first(list(_errors(shape, item, where))))
    return F.get(F.filter(each, lambda error: error.isNotNull()), 0)


def _leaf_errors(leaf: Leaf, column: Column, label: str) -> Iterator[Column]:
    wrong = column.isNotNull() & _value(leaf, column).isNull()
    if leaf.data_type is None:
        yield F.when(wrong, F.lit(f"{label}is too large or nests too deep for a variant"))
    elif leaf.data_type == pa.binary():
        shown = F.substring(column, 1, SHOWN_CHARACTERS)
        yield F.when(wrong, F.concat(F.lit(f"{label}'"), shown, F.lit("' is not binary")))
    for check in leaf.checks:
        if check.keyword == _PATTERN:
            yield F.when(~column.rlike(check.bound), F.lit(f"{label}{check.words}"))


def column_type(shape: Shape) -> DataType:
    """Return the Spark type of a shape; all of its parts are nullable."""
    match shape:
        case Leaf(data_type=None):
            return VariantType()
        case Leaf(collation=str(collation)):
            return StringType(collation)
        case Leaf():
            return spark_type(shape.data_type)
        case Record():
            return record_type(shape)
        case Items():
            return ArrayType(column_type(shape.item))
        case Named():
            return MapType(StringType(), column_type(shape.value))


def record_type(record: Record) -> StructType:
    return StructType([StructField(part.name, column_type(part.shape)) for part in record.fields])
