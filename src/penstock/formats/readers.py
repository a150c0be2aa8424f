"""Readers of Avro and Protobuf values: load a schema file once, then decode arrays of values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.formats import avro as avro_schema
from penstock.formats import framing
from penstock.formats.avro import column_of_schema
from penstock.formats.protobuf import (
    Message,
    column_of_message,
    indexes_of,
    load_message,
    message_of,
)
from penstock.formats.value_format import (
    Framing,
    InvalidFormat,
    ValueFormat,
    read_json,
    read_schema_file,
)
from penstock.formats.values import Values


class Reader(Protocol):
    """Reader of values in one format, with or without a registry's header; it can be pickled."""

    def arrow_type(self) -> pa.DataType: ...

    def read(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        """Return a struct per value, and the error text of each invalid value.

        The struct of an invalid value is null. `headers` are the headers of the values' records.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroReader:
    record: avro_schema.Record
    framed: Framing = "none"
    ids: tuple[int, ...] = ()

    def arrow_type(self) -> pa.DataType:
        return column_of_schema(self.record).type

    def read(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        from penstock.formats.avro_decode import decode

        found = Values.of(values)
        foreign = framing.skip_header(found, (), self.ids) if self.framed == "confluent" else None
        decoded, errors = decode(self.record, found)
        return decoded, framing.with_errors(errors, foreign)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufReader:
    message: Message
    indexes: tuple[int, ...]
    framed: Framing = "none"
    ids: tuple[int, ...] = ()
    exact: bool = True

    def arrow_type(self) -> pa.DataType:
        return column_of_message(self.message).type

    def read(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        from penstock.formats.protobuf_decode import decode

        found = Values.of(values)
        framed = self.framed == "confluent"
        foreign = framing.skip_header(found, self.indexes, self.ids) if framed else None
        decoded, errors = decode(self.message, found, exact=self.exact)
        return decoded, framing.with_errors(errors, foreign)


def avro_reader(value_format: ValueFormat) -> AvroReader:
    """Return the reader of an Avro schema file.

    Raises:
        InvalidFormat: the schema is malformed or not supported.
    """
    document = read_json(value_format.schema_file or Path())
    return AvroReader(
        record=avro_schema.parse(document), framed=value_format.framing, ids=value_format.ids
    )


def protobuf_reader(value_format: ValueFormat) -> ProtobufReader:
    """Return the reader of a message in a `.proto` file or a descriptor set.

    Raises:
        InvalidFormat: the file does not compile, or the message is missing or not supported.
    """
    path = value_format.schema_file or Path()
    descriptor = load_message(path, read_schema_file(path), value_format.message)
    message = message_of(descriptor)
    if message.special is not None:
        raise InvalidFormat(
            "message", descriptor.full_name, "is one value, but must be a message with fields"
        )
    return ProtobufReader(
        message=message,
        indexes=indexes_of(descriptor),
        framed=value_format.framing,
        ids=value_format.ids,
        exact=value_format.decimals == "exact",
    )
