"""One face for all kinds of value: load a format once, then decode frames with it."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.formats.readers import avro_reader, protobuf_reader
from penstock.formats.value_format import ValueFormat, check
from penstock.spark.formats.binary import BinaryDecoder
from penstock.spark.formats.json.decoder import json_decoder
from penstock.spark.formats.plain import RawDecoder, TextDecoder


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
    check(value_format)
    match value_format.kind:
        case "raw":
            return RawDecoder()
        case "text":
            return TextDecoder()
        case "json" | "json-schema":
            return json_decoder(value_format)
        case "avro":
            return BinaryDecoder(reader=avro_reader(value_format))
        case "protobuf":
            return BinaryDecoder(reader=protobuf_reader(value_format))
