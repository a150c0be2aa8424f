"""The decoder of the kinds `json` and `json-schema`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import StructType

from penstock.spark.formats import framing
from penstock.spark.formats.decoders import read_schema_file
from penstock.spark.formats.errors import InvalidFormat
from penstock.spark.formats.json.columns import decode_json, schema_of
from penstock.spark.formats.json.ddl import read_ddl, record_of
from penstock.spark.formats.json.json_schema import record_of_json_schema
from penstock.spark.formats.json.shapes import Record
from penstock.spark.formats.plain import NOT_TEXT
from penstock.spark.formats.value_format import Framing, ValueFormat


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
        payload, wrong = framing.payload(self.framed, value)
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
        record = record_of_json_schema(load_json(path), closed=closed)
    return JsonDecoder(record=record, framed=value_format.framing)


def load_json(path: Path) -> Any:
    """A schema file that is JSON.

    Raises:
        InvalidFormat: it cannot be read or is not JSON.
    """
    content = read_schema_file(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidFormat("schema_file", path, f"is not JSON: {error}") from error
