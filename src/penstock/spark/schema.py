"""Schema of the source, in Spark's types and in Arrow's.

The columns are those of Spark's Kafka source, in the same order. Spark requires that the schema of
Arrow batches is exactly equal, so both forms are declared here. Every column is nullable.
`timestamp` is in microseconds, UTC. `headers` is included only on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
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

from penstock.spark.errors import InvalidOption

if TYPE_CHECKING:
    from penstock.formats.readers import Reader


BATCH_ROWS_MAX: Final = 65_536
HEADERS: Final = "headers"
VALUE: Final = "_value"
ERROR: Final = "_error"
"""Columns that the source adds if it decodes values: the struct, and the error."""

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


# Decoding of values while a task reads records, into two more columns.
#
# A reader of `penstock.formats` converts each value to a struct, or reports an error, while the
# worker still has the records in Arrow. Spark receives only the selected fields, but every value is
# checked as a whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Decoder of values: a reader of one format, and the selected fields; it can be pickled.

    With `with_headers` the reader also reads the headers of records.
    """

    reader: Reader
    value: StructType
    with_headers: bool = False

    @property
    def schema(self) -> tuple[StructField, StructField]:
        """The two columns that the decoder adds: the value as a struct, and the error of an invalid
        value.
        """
        return StructField(VALUE, self.value), StructField(ERROR, StringType())

    def only(self, names: Iterable[str]) -> Opening:
        """Return a decoder for some of the fields.

        Raises:
            InvalidOption: no field is named, or a field does not exist.
        """
        wanted = set(names)
        unknown = sorted(wanted.difference(self.value.names))
        if unknown or not wanted:
            raise InvalidOption(
                "valueFields", ", ".join(unknown) or "[]",
                f"must name at least one of the fields {', '.join(self.value.names)}",
            )  # fmt: skip
        kept = [field for field in self.value.fields if field.name in wanted]
        return replace(self, value=StructType(kept))

    def arrow_fields(self) -> tuple[pa.Field, pa.Field]:
        """Return the Arrow fields of the two columns, with exactly the types that Spark expects."""
        return (
            pa.field(VALUE, to_arrow_type(self.value, timezone="UTC")),
            pa.field(ERROR, pa.string()),
        )

    def columns(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        opened, errors = self.reader.read(values, headers)
        names = self.value.names
        if opened.type.num_fields != len(names):
            parts = [opened.field(name) for name in names]
            opened = pa.StructArray.from_arrays(parts, names=names, mask=opened.is_null())
        return opened.cast(self.arrow_fields()[0].type), errors
