"""Decoder that runs a reader of `penstock.formats` in Spark's Python workers, on Arrow batches.

All columns of the frame are sent to Python, so select only the needed columns before decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from penstock.base.errors import BugError
from penstock.formats.readers import Reader
from penstock.formats.value_format import ValueFormat
from penstock.spark.formats.types import spark_type


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderDecoder:
    """Decoder of a value format for which `penstock.formats` has a reader."""

    reader: Reader
    value_format: ValueFormat

    @property
    def schema(self) -> StructType:
        made = spark_type(self.reader.arrow_type())
        if not isinstance(made, StructType):
            raise BugError(f"the reader returns {made.simpleString()} instead of a struct")
        return made

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        return by_reader(self.reader, frame, column)


def by_reader(reader: Reader, frame: DataFrame, column: str) -> DataFrame:
    """Return the frame with `_value` and `_error`, decoded from `column` by a reader."""
    value = StructField("_value", spark_type(reader.arrow_type()))
    fields = [*frame.schema.fields, value, StructField("_error", StringType())]
    return frame.mapInArrow(_Batches(reader=reader, column=column), StructType(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batches:
    reader: Reader
    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column(batch.schema.get_field_index(self.column))
            if not pa.types.is_binary(values.type):
                values = values.cast(pa.binary())
            decoded, errors = self.reader.read(values)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, decoded, errors], [*batch.schema.names, "_value", "_error"]
            )
