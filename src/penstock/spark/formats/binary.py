"""The decoders of binary formats in Spark: Arrow batches in, two columns more out.

Everything is done on the executors by columns (`avro/`, `protobuf/`); this is the way there. All
columns of the frame pass through Python, so a frame should be cut to the columns it needs before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.base.errors import BugError
from penstock.spark.formats import framing
from penstock.spark.formats.avro import decode as avro
from penstock.spark.formats.avro import schema as avro_schema
from penstock.spark.formats.decoders import read_schema_file
from penstock.spark.formats.errors import InvalidFormat
from penstock.spark.formats.lockstep.cursor import Lanes
from penstock.spark.formats.protobuf import decode as protobuf
from penstock.spark.formats.protobuf.descriptors import indexes_of, load_message
from penstock.spark.formats.protobuf.indexes import skip_indexes
from penstock.spark.formats.protobuf.schema import Message, message_of
from penstock.spark.formats.value_format import Framing, ValueFormat


class _Reads(Protocol):
    """What reads the values of one format; pickled on the driver."""

    def data_type(self) -> pa.DataType: ...

    def read(self, lanes: Lanes, framed: Framing) -> tuple[pa.StructArray, pa.StringArray]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Avro:
    record: avro_schema.Record

    def data_type(self) -> pa.DataType:
        return avro.arrow_type(self.record)

    def read(self, lanes: Lanes, framed: Framing) -> tuple[pa.StructArray, pa.StringArray]:
        _skip_frame(lanes, framed)
        return avro.decode_lanes(self.record, lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Protobuf:
    message: Message
    indexes: tuple[int, ...]

    def data_type(self) -> pa.DataType:
        return protobuf.arrow_type(self.message)

    def read(self, lanes: Lanes, framed: Framing) -> tuple[pa.StructArray, pa.StringArray]:
        _skip_frame(lanes, framed)
        if framed == "confluent":
            skip_indexes(lanes, self.indexes)
        return protobuf.decode_lanes(self.message, lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryDecoder:
    """Values of one binary format, framed or not."""

    reads: _Avro | _Protobuf
    framed: Framing = "none"

    @property
    def schema(self) -> StructType:
        made = spark_type(self.reads.data_type())
        if not isinstance(made, StructType):
            raise BugError(f"a value becomes {made.simpleString()} instead of a struct")
        return made

    def decode(self, frame: DataFrame, column: str = "value") -> DataFrame:
        added = [StructField("_value", self.schema), StructField("_error", StringType())]
        batches = _Batches(reads=self.reads, framed=self.framed, column=column)
        return frame.mapInArrow(batches, StructType([*frame.schema.fields, *added]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batches:
    """What a task does with its batches; pickled on the driver."""

    reads: _Avro | _Protobuf
    framed: Framing
    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column(batch.schema.get_field_index(self.column))
            if not pa.types.is_binary(values.type):
                values = values.cast(pa.binary())
            decoded, errors = self.reads.read(Lanes.of(values), self.framed)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, decoded, errors], [*batch.schema.names, "_value", "_error"]
            )


def _skip_frame(lanes: Lanes, framed: Framing) -> None:
    if framed == "none":
        return
    lanes.fail(lanes.good & (lanes.end - lanes.position < framing.HEADER_BYTES), framing.TOO_SHORT)
    first = lanes.octets.data[lanes.position]
    lanes.fail(lanes.good & (first != framing.MAGIC[0]), framing.NO_MAGIC)
    lanes.advance(np.where(lanes.good, framing.HEADER_BYTES, 0), "")


def avro_decoder(value_format: ValueFormat) -> BinaryDecoder:
    """The decoder of an Avro schema file.

    Raises:
        InvalidFormat: the schema is malformed or has something that is not supported.
    """
    path = value_format.schema_file or Path()
    try:
        document = json.loads(read_schema_file(path))
    except (ValueError, RecursionError) as error:
        raise InvalidFormat("schema_file", path, f"is not JSON: {error}") from error
    record = avro_schema.parse(document)
    return BinaryDecoder(reads=_Avro(record=record), framed=value_format.framing)


def protobuf_decoder(value_format: ValueFormat) -> BinaryDecoder:
    """The decoder of a message of a `.proto` file or a descriptor set.

    Raises:
        InvalidFormat: the file does not compile, has no such message, or the message has something
            that is not supported.
    """
    path = value_format.schema_file or Path()
    descriptor = load_message(path, read_schema_file(path), value_format.message)
    message = message_of(descriptor)
    if message.special is not None:
        raise InvalidFormat(
            "message", descriptor.full_name, "is one value, not a message of fields"
        )
    reads = _Protobuf(message=message, indexes=indexes_of(descriptor))
    return BinaryDecoder(reads=reads, framed=value_format.framing)


_PLAIN: dict[Any, DataType] = {
    pa.null(): NullType(),
    pa.bool_(): BooleanType(),
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


def spark_type(data_type: pa.DataType) -> DataType:
    """Spark's type for a column of the decoders; everything in it may be null."""
    if pa.types.is_struct(data_type):
        return StructType([StructField(field.name, spark_type(field.type)) for field in data_type])
    if pa.types.is_list(data_type):
        return ArrayType(spark_type(data_type.value_type))
    if pa.types.is_map(data_type):
        return MapType(spark_type(data_type.key_type), spark_type(data_type.item_type))
    if pa.types.is_decimal128(data_type):
        return DecimalType(data_type.precision, data_type.scale)
    return _PLAIN[data_type]
