"""Spark's types for the Arrow types of value formats, and the reverse."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
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
)

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
