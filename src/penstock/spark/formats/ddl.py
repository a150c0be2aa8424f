"""Shapes of JSON values from Spark schemas, for the format `json`.

A shape (`formats/json/shapes.py`) describes the JSON that is valid for a type. `not null` makes a
field required. Types without a JSON form are rejected.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import ParseException, PySparkValueError
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from penstock.formats.errors import InvalidFormat
from penstock.formats.json.shapes import Field, Items, Leaf, Named, Record, Shape
from penstock.spark.formats.types import ARROW_TYPES


def read_ddl(text: str) -> StructType:
    """Return the schema that a text defines in Spark's DDL or JSON; needs a running Spark session.

    Raises:
        InvalidFormat: the text is neither, or the schema has no fields.
    """
    as_json = text.lstrip().startswith("{")
    kind = "JSON" if as_json else "DDL"
    try:
        made = StructType.fromJson(json.loads(text)) if as_json else StructType.fromDDL(text)
    except (ParseException, PySparkValueError, ValueError, KeyError, TypeError) as error:
        why = str(error).strip().splitlines()[0]
        raise InvalidFormat("schema", text, f"is not a schema in Spark's {kind}: {why}") from error
    if not isinstance(made, StructType) or not made.fields:
        raise InvalidFormat("schema", text, "has no fields")
    return made


def record_of(schema: StructType, *, closed: bool = False, where: str = "") -> Record:
    """Return the shape of JSON objects with the fields of a Spark schema.

    Args:
        closed: reject other fields.
        where: path of the schema, before the names of its fields in errors.

    Raises:
        InvalidFormat: a type cannot be read from JSON, or a field name occurs twice.
    """
    names = [field.name for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        reason = f"field {where}{twice[0]} occurs twice"
        raise InvalidFormat("schema", schema.simpleString(), reason)
    return Record(
        fields=tuple(
            Field(
                name=field.name,
                shape=replace(
                    _shape(field.dataType, f"{where}{field.name}", closed), nullable=field.nullable
                ),
                required=not field.nullable,
            )
            for field in schema.fields
        ),
        closed=closed,
    )


def _shape(data_type: DataType, where: str, closed: bool) -> Shape:
    match data_type:
        case StructType():
            return record_of(data_type, closed=closed, where=f"{where}.")
        case ArrayType():
            return Items(item=_shape(data_type.elementType, f"{where}[]", closed))
        case MapType():
            if not isinstance(data_type.keyType, StringType):
                key = data_type.keyType.simpleString()
                raise InvalidFormat("schema", key, f"field {where}: keys of a map must be strings")
            return Named(value=_shape(data_type.valueType, f"{where}{{}}", closed))
    leaf = _leaf(data_type)
    if leaf is not None:
        return leaf
    raise InvalidFormat(
        "schema", data_type.simpleString(), f"field {where}: this type cannot be read from JSON"
    )


def _leaf(data_type: DataType) -> Leaf | None:
    if type(data_type) is StringType:
        return Leaf(data_type=pa.string(), collation=data_type.collation)
    # Spark allows decimal(0,0), which can hold no number.
    if isinstance(data_type, DecimalType) and data_type.precision:
        return Leaf(data_type=pa.decimal128(data_type.precision, data_type.scale))
    if isinstance(data_type, VariantType):
        return Leaf()
    found = None if isinstance(data_type, NullType) else ARROW_TYPES.get(data_type)
    return None if found is None else Leaf(data_type=found)
