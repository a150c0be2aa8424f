"""Values that are one thing: bytes as they are, or text."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

NOT_TEXT = "not UTF-8 text"


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """The bytes themselves, in a struct of one field `value`. Never an error."""

    @property
    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        value = frame[column]
        made = F.when(value.isNotNull(), F.struct(value.cast("binary").alias("value")))
        return frame.select("*", made.alias("_value"), F.lit(None).cast("string").alias("_error"))


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """UTF-8 text, in a struct of one field `value`."""

    @property
    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        text = frame[column].cast("string")
        good = F.is_valid_utf8(text)
        made = F.when(good, F.struct(text.alias("value")))
        error = F.when(text.isNotNull() & ~good, F.lit(NOT_TEXT))
        return frame.select("*", made.alias("_value"), error.alias("_error"))
