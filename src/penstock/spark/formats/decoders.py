"""One face for all kinds of value: load a format once, then decode frames with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.spark.formats.errors import InvalidFormat
from penstock.spark.formats.value_format import INFER, KINDS, ValueFormat

SCHEMA_FILE_BYTES_MAX: Final = 16 << 20


class Decoder(Protocol):
    """What makes columns of the values of one format."""

    @property
    def schema(self) -> StructType:
        """What a value becomes; every field may be null."""
        ...

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        """All columns of `frame`, then `_value` and `_error`.

        `_value` is a struct of `schema`, and null when the value could not be decoded; `_error`
        says what is wrong then, and is null otherwise. A value that is null (a tombstone) has
        neither. The frame may be a batch's or a stream's.
        """
        ...


def decoder(value_format: ValueFormat) -> Decoder:
    """The decoder of a format, its schema loaded and checked.

    Kind `json` needs a running Spark session, which reads the DDL.

    Raises:
        InvalidFormat: a setting is missing, contradicts another, or names a schema that is
            malformed or has something that is not supported.
    """
    _check(value_format)
    match value_format.kind:
        case "raw" | "text":
            from penstock.spark.formats.plain import RawDecoder, TextDecoder

            return RawDecoder() if value_format.kind == "raw" else TextDecoder()
        case "json" | "json-schema":
            from penstock.spark.formats.json.decoder import json_decoder

            return json_decoder(value_format)
        case "avro":
            from penstock.spark.formats.binary import avro_decoder

            return avro_decoder(value_format)
        case "protobuf":
            from penstock.spark.formats.binary import protobuf_decoder

            return protobuf_decoder(value_format)


def _check(value_format: ValueFormat) -> None:
    kind = value_format.kind
    if kind not in KINDS:
        raise InvalidFormat("format", kind, f"must be one of {', '.join(KINDS)}")
    _check_needs(value_format)
    if value_format.framing not in ("none", "confluent"):
        raise InvalidFormat("framing", value_format.framing, "must be none or confluent")
    if value_format.framing != "none" and kind in ("raw", "text"):
        raise InvalidFormat("framing", value_format.framing, f"format {kind} has no framing")
    if value_format.unknown_fields not in ("ignore", "reject"):
        raise InvalidFormat(
            "unknown_fields", value_format.unknown_fields, "must be ignore or reject"
        )
    if value_format.unknown_fields == "reject" and kind not in ("json", "json-schema"):
        raise InvalidFormat("unknown_fields", "reject", f"is for JSON, the format is {kind}")


def _check_needs(value_format: ValueFormat) -> None:
    kind = value_format.kind
    if kind == "json":
        if not value_format.schema:
            raise InvalidFormat("schema", "", "format json needs a schema in Spark's DDL")
        if value_format.schema.strip().lower() == INFER:
            raise InvalidFormat(
                "schema", INFER, "must be replaced by what infer_json finds before decoding"
            )
    elif value_format.schema is not None:
        raise InvalidFormat("schema", value_format.schema, f"is for json, the format is {kind}")
    filed = kind in ("json-schema", "avro", "protobuf")
    if filed and value_format.schema_file is None:
        raise InvalidFormat("schema_file", "", f"format {kind} needs a schema file")
    if not filed and value_format.schema_file is not None:
        raise InvalidFormat("schema_file", value_format.schema_file, f"format {kind} has none")
    if kind != "protobuf" and value_format.message is not None:
        raise InvalidFormat(
            "message", value_format.message, f"is for protobuf, the format is {kind}"
        )


def read_schema_file(path: Path) -> bytes:
    """The bytes of a schema file.

    Raises:
        InvalidFormat: it cannot be read, or is larger than `SCHEMA_FILE_BYTES_MAX`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SCHEMA_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidFormat("schema_file", path, f"cannot be read: {error.strerror}") from error
    if len(content) > SCHEMA_FILE_BYTES_MAX:
        raise InvalidFormat(
            "schema_file", path, f"is larger than {SCHEMA_FILE_BYTES_MAX} bytes: not a schema"
        )
    return content
