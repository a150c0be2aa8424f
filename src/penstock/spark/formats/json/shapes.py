"""What a JSON value must look like, and what it becomes: a small tree of values.

Spark's DDL (`ddl.py`) and JSON Schema (`json_schema.py`) are both turned into this tree, and
`columns.py` turns the tree into column expressions. A shape says the Spark type of a value; a
check is one more condition on it, with the words that say which one failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition on a value that is not null; `words` say what is wrong when it is not true."""

    words: str
    holds: Callable[[Column], Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A value without fields or items."""

    data_type: DataType
    checks: tuple[Check, ...] = ()
    nullable: bool = True
    text_too: bool = True
    """Whether a decimal may be written as a string."""
    pattern: str | None = None
    """What the text of a date or time must look like, where it is not the usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A named member of an object; `required` means present, and not null unless it may be."""

    name: str
    shape: Shape
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An object with fields; a `closed` one has no others."""

    fields: tuple[Field, ...]
    closed: bool = False
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """An array; checks are on the array as a whole."""

    item: Shape
    checks: tuple[Check, ...] = ()
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An object as a map from its names to values of one shape."""

    value: Shape
    nullable: bool = True


Shape = Leaf | Record | Items | Named


def spark_type(shape: Shape) -> DataType:
    """The type that a shape becomes; everything in it may be null."""
    match shape:
        case Leaf():
            return shape.data_type
        case Record():
            return StructType(
                [StructField(field.name, spark_type(field.shape)) for field in shape.fields]
            )
        case Items():
            return ArrayType(spark_type(shape.item))
        case Named():
            return MapType(StringType(), spark_type(shape.value))
