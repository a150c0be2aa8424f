"""Schema of the source, in Spark's types and in Arrow's.

The columns are those of Spark's Kafka source, in the same order. Spark requires that the schema of
Arrow batches is exactly equal, so both forms are declared here. Every column is nullable.
`timestamp` is in microseconds, UTC. `headers` is included only on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

BATCH_ROWS_MAX: Final = 65_536
HEADERS: Final = "headers"
VALUE: Final = "_value"
ERROR: Final = "_error"
"""Columns that the source adds if it decodes values: the struct, and the error (`opening.py`)."""

_HEADER_SPARK: Final = StructType(
    [StructField("key", StringType()), StructField("value", BinaryType())]
)
HEADERS_ARROW: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
        nullable=True,
    )
)
TIMESTAMP_ARROW: Final = pa.timestamp("us", tz="UTC")

_COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), TIMESTAMP_ARROW),
    "timestampType": (IntegerType(), pa.int32()),
    HEADERS: (ArrayType(_HEADER_SPARK), HEADERS_ARROW),
}
COLUMN_NAMES: Final = tuple(_COLUMNS)
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMN_NAMES if name != HEADERS)


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the Spark schema of these columns, in the given order."""
    return StructType([StructField(name, _COLUMNS[name][0], nullable=True) for name in columns])


def quoted(column: str) -> str:
    """Return a column's name, quoted for Spark's SQL."""
    return "`" + column.replace("`", "``") + "`"


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns, equal to the one that Spark expects."""
    return pa.schema([pa.field(name, _COLUMNS[name][1], nullable=True) for name in columns])
