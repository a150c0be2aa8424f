"""The decoder of the kinds `json` and `json-schema`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import StructType

from penstock.formats import framing
from penstock.formats.schema_files import read_json
from penstock.formats.value_format import Framing, ValueFormat
from penstock.spark.formats.json.columns import decode_json, schema_of
from penstock.spark.formats.json.ddl import read_ddl, record_of
from penstock.spark.formats.json.json_schema import record_of_json_schema
from penstock.spark.formats.json.shapes import Record
from penstock.spark.formats.plain import NOT_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder:
    """Objects of one shape, framed or not."""

    record: Record
    framed: Framing = "none"

    @property
    def schema(self) -> StructType:
        return schema_of(self.record)

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        value = frame[column].cast("binary")
        payload, wrong = _payload(self.framed, value)
        text = payload.cast("string")
        before = F.coalesce(wrong, F.when(~F.is_valid_utf8(text), F.lit(NOT_TEXT)))
        return decode_json(frame, self.record, text=text, present=value.isNotNull(), before=before)


def json_decoder(value_format: ValueFormat) -> JsonDecoder:
    """The decoder of a schema in DDL, or of a JSON Schema file.

    Raises:
        InvalidFormat: the schema is malformed or has something that is not supported.
    """
    closed = value_format.unknown_fields == "reject"
    if value_format.kind == "json":
        record = record_of(read_ddl(value_format.schema or ""), closed=closed)
    else:
        path = value_format.schema_file or Path()
        record = record_of_json_schema(read_json(path), closed=closed)
    return JsonDecoder(record=record, framed=value_format.framing)


def _payload(framed: Framing, value: Column) -> tuple[Column, Column]:
    """The bytes behind the frame, and what is wrong with the frame (or null)."""
    if framed == "none":
        return value, F.lit(None).cast("string")
    wrong = F.when(F.octet_length(value) < framing.HEADER_BYTES, F.lit(framing.TOO_SHORT)).when(
        F.substring(value, 1, 1) != F.lit(framing.MAGIC), F.lit(framing.NO_MAGIC)
    )
    size_max = 2**31 - 1 - framing.HEADER_BYTES
    return F.substring(value, framing.HEADER_BYTES + 1, size_max), wrong
