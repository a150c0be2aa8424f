"""Decoders of all value formats: load and check a format once, then decode frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.base.errors import BugError
from penstock.formats import InvalidFormat
from penstock.formats.json.debezium import DebeziumReader, checked
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Record, record_of_json_schema
from penstock.formats.json.plain import NOT_TEXT, Conversion
from penstock.formats.json.program import unsupported
from penstock.formats.readers import Reader, avro_reader, protobuf_reader
from penstock.formats.value_format import ValueFormat, check, read_json
from penstock.spark.errors import InvalidOption
from penstock.spark.formats.ddl import read_ddl, record_of, spark_type
from penstock.spark.formats.json_columns import finish, readable, record_type
from penstock.spark.formats.registry import (
    registry_reader,
    shape_of,
    value_reader,
    with_pinned_reader,
)
from penstock.spark.options import SourceOptions, named_as_option
from penstock.spark.schema import HEADERS, Opening

# Decoder that runs a reader of `penstock.formats` in Spark's Python workers, on Arrow batches.
#
# All columns of the frame are sent to Python, so select only the needed columns before decoding.


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
            place = batch.schema.get_field_index(HEADERS)
            headers = None if place < 0 else batch.column(place)
            decoded, errors = self.reader.read(values, headers)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, decoded, errors], [*batch.schema.names, "_value", "_error"]
            )


ZONE: Final = "spark.sql.session.timeZone"
UTC: Final = "UTC"


class Decoder(Protocol):
    """Decoder of record values in one format into columns."""

    @property
    def schema(self) -> StructType:
        """Schema of a value; every field is nullable."""
        ...

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        """Return all columns of `frame`, then `_value` and `_error`.

        `_value` is a struct of `schema`. If the value could not be decoded, `_value` is null and
        `_error` is the reason; otherwise `_error` is null. For a null value (a tombstone) both are
        null. The frame may be a batch or a stream.
        """
        ...


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """Decoder that returns the bytes in a struct of one field `value`, without errors."""

    @property
    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        value = frame[column]
        made = F.when(value.isNotNull(), F.struct(value.cast("binary").alias("value")))
        return frame.select("*", made.alias("_value"), F.lit(None).cast("string").alias("_error"))


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decoder of UTF-8 text into a struct of one field `value`."""

    @property
    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        text = frame[column].cast("string")
        good = F.is_valid_utf8(text)
        made = F.when(good, F.struct(text.alias("value")))
        error = F.when(text.isNotNull() & ~good, F.lit(NOT_TEXT))
        return frame.select("*", made.alias("_value"), error.alias("_error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder:
    """Decoder of JSON objects with fields whose types only Spark can decode.

    `reader` reads the other fields, in the shape `readable(record)`.
    """

    record: Record
    reader: Reader

    @property
    def reasons(self) -> list[str]:
        """Parts of the shape that only Spark can decode, each with its field."""
        return unsupported(self.record)

    @property
    def schema(self) -> StructType:
        return record_type(self.record)

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        return finish(by_reader(self.reader, frame, column), self.record)


def decoder(value_format: ValueFormat) -> Decoder:
    """Return the decoder of a format, with its schema loaded and checked.

    The format `json` needs a running Spark session, which reads the DDL.

    Raises:
        InvalidFormat: a setting is missing or contradicts another, or the schema is malformed or
            not supported.
    """
    check(value_format)
    match value_format.kind:
        case "raw":
            return RawDecoder()
        case "text":
            return TextDecoder()
        case "json" | "json-schema":
            return _json_decoder(value_format)
        case "debezium":
            return _debezium_decoder(value_format)
        case "avro":
            return ReaderDecoder(reader=avro_reader(value_format), value_format=value_format)
        case "protobuf":
            return ReaderDecoder(reader=protobuf_reader(value_format), value_format=value_format)
        case "registry":
            return _registry_decoder(value_format)


def opening_of(options: SourceOptions) -> Opening:
    """Return the `Opening` with which Spark's workers decode values while they read records.

    Raises:
        InvalidOption: the format cannot be used, or only Spark can decode it.
    """
    value_format = options.value_format
    try:
        if value_format.kind == "registry" and value_format.schema is None:
            value_format = with_pinned_reader(value_format, options.topics)
        made = decoder(value_format)
    except InvalidFormat as error:
        raise named_as_option(error) from error
    if not isinstance(made, ReaderDecoder):
        parts = "; ".join(made.reasons) if isinstance(made, JsonDecoder) else "such values"
        raise InvalidOption(
            "valueFormat", value_format.kind,
            f"only Spark decodes {parts}: read the column value",
        )  # fmt: skip
    opening = Opening(
        reader=made.reader, value=made.schema, with_headers=value_format.kind == "registry"
    )
    return opening if options.value_fields is None else opening.only(options.value_fields)


def _json_decoder(value_format: ValueFormat) -> Decoder:
    """Return the decoder of a schema in DDL, or of a JSON Schema file.

    A JSON Schema file needs no Spark session if the format sets a zone.
    """
    closed = value_format.unknown_fields == "reject"
    if value_format.kind == "json":
        schema = read_ddl(value_format.schema or "")
        record = record_of(schema, closed=closed)
        value_format = replace(
            value_format, schema=schema.json(), zone=value_format.zone or _session_zone()
        )
    else:
        record = record_of_json_schema(
            read_json(value_format.schema_file or Path()), closed=closed
        )  # fmt: skip
    conversion = Conversion(
        zone=value_format.zone or UTC, exact=value_format.decimals == "exact"
    )  # fmt: skip
    reader = JsonReader(
        record=record,
        framed=value_format.framing,
        ids=value_format.ids,
        conversion=conversion,
    )
    if unsupported(record):
        return JsonDecoder(record=record, reader=replace(reader, record=readable(record)))
    return ReaderDecoder(reader=reader, value_format=value_format)


def _debezium_decoder(value_format: ValueFormat) -> Decoder:
    schema = read_ddl(value_format.schema or "")
    zone = value_format.zone or _session_zone()
    if other := sorted(set(value_format.milliseconds).difference(schema.names)):
        raise InvalidFormat("milliseconds", other[0], "is not a column of the schema")
    reader = DebeziumReader(
        record=checked(record_of(schema, closed=value_format.unknown_fields == "reject")),
        conversion=Conversion(zone=zone, exact=value_format.decimals == "exact"),
        milliseconds=value_format.milliseconds,
        base64_decimals=value_format.decimal_handling == "precise",
    )
    value_format = replace(value_format, schema=schema.json(), zone=zone)
    return ReaderDecoder(reader=reader, value_format=value_format)


def _registry_decoder(value_format: ValueFormat) -> Decoder:
    record = shape_of(value_format)
    if record is not None and unsupported(record):
        reader = registry_reader(value_format, readable(record))
        return JsonDecoder(record=record, reader=reader)
    return ReaderDecoder(reader=value_reader(value_format), value_format=value_format)


def _session_zone() -> str:
    session = SparkSession.getActiveSession()
    return UTC if session is None else session.conf.get(ZONE) or UTC
