"""Shapes of JSON values from Spark schemas, for the format `json`.

A shape (`formats/json/json_schema.py`) describes the JSON that is valid for a type. `not null`
makes a field required. Types without a JSON form are rejected.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import ParseException, PySparkValueError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from penstock.formats.json.json_schema import Field, Items, Leaf, Named, Record, Shape
from penstock.formats.value_format import INFER, InvalidFormat
from penstock.spark.schema import quoted

SPARK_TYPES: Final[dict[Any, DataType]] = {
    pa.null(): NullType(),
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestampType(),
    pa.timestamp("us"): TimestampNTZType(),
}
ARROW_TYPES: Final = {made: data_type for data_type, made in SPARK_TYPES.items()}
"""Arrow types by Spark type, without decimals and nested types."""


def spark_type(data_type: pa.DataType) -> DataType:
    """Return Spark's type for a column of a reader; all of its parts are nullable."""
    if pa.types.is_struct(data_type):
        return StructType([StructField(field.name, spark_type(field.type)) for field in data_type])
    if pa.types.is_list(data_type):
        return ArrayType(spark_type(data_type.value_type))
    if pa.types.is_map(data_type):
        return MapType(spark_type(data_type.key_type), spark_type(data_type.item_type))
    if pa.types.is_decimal128(data_type):
        return DecimalType(data_type.precision, data_type.scale)
    return SPARK_TYPES[data_type]


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


def infer_json(frame: DataFrame, column: str = "value", *, rows_max: int) -> str:
    """Return a schema in Spark's DDL whose field types cover all sampled values.

    Args:
        frame: a batch with the values; not a stream.
        rows_max: largest number of values to sample; nulls do not count.

    Raises:
        InvalidFormat: the sample is empty, or has no JSON object.
    """
    text = frame[column].cast("string")
    sample = frame.select(text.alias("t")).where(text.isNotNull()).limit(rows_max)
    # Text that is not JSON gives a null variant, which the aggregate ignores.
    variant = F.try_parse_json(F.when(F.is_valid_utf8("t"), F.col("t")))
    row = sample.select(variant.alias("v")).select(
        F.count(F.lit(1)).alias("rows"),
        F.schema_of_variant_agg(
            F.when(F.schema_of_variant("v").startswith("OBJECT<"), F.col("v"))
        ).alias("found"),
    ).head()  # fmt: skip
    if row is None or not row["rows"]:
        raise InvalidFormat(
            "schema", INFER, "there are no values yet to infer the schema from; set the schema"
        )
    found = str(row["found"])
    if not found.startswith("OBJECT<"):
        raise InvalidFormat(
            "schema", INFER, f"none of {row['rows']} sampled values is a JSON object with fields"
        )
    return _as_ddl(found)


def _as_ddl(found: str) -> str:
    """Return the DDL for a result of `schema_of_variant_agg`.

    Decimals become doubles, as in Spark's own JSON reader. Fields that are always null become
    strings.
    """
    ddl = found.replace("OBJECT<", "STRUCT<")
    made = read_ddl(f"v {ddl}").fields[0].dataType
    if not isinstance(made, StructType) or not made.fields:
        raise InvalidFormat("schema", INFER, "the sampled objects have no fields")
    return ", ".join(f"{quoted(field.name)} {_type(field.dataType)}" for field in made.fields)


def _type(data_type: DataType) -> str:
    match data_type:
        case StructType():
            inner = (f"{quoted(field.name)}: {_type(field.dataType)}" for field in data_type.fields)
            return f"struct<{', '.join(inner)}>" if data_type.fields else "variant"
        case ArrayType():
            return f"array<{_type(data_type.elementType)}>"
        case DecimalType():
            return "double"
        case NullType():
            return "string"
    return data_type.simpleString()
