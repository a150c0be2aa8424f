"""Decoder of values by the schemas of a registry: each by its writer's schema, as the reader's.

The header of each value names the schema that it was written with. The values of a batch are
grouped by this name, and every group is decoded at once into the columns of the reader's schema.

    id 1: rows 0 2 3 ─┐
    id 7: rows 1 4   ─┴─> columns of the reader's schema, in the order of the rows

Schemas are fetched when their ids first occur, and kept with what was compiled from them. If the
registry does not answer, the batch fails, and a retry may succeed. Values of an id that the
registry does not know, or whose schema cannot be read as the reader's, are invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor

from penstock.client.errors import InvalidArgument
from penstock.client.registered import (
    ReaderSchema,
    RegistryPlace,
    SchemaContent,
    WriterSchemas,
    opened,
    pinned,
)
from penstock.client.schemas import SchemaClient
from penstock.formats import avro, framing
from penstock.formats.framing import SchemaKey
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Record, record_of_json_schema
from penstock.formats.json.plain import Conversion
from penstock.formats.protobuf import Message, column_of_message, indexes_of, message_of
from penstock.formats.protobuf_resolution import check_reads, message_of_schema
from penstock.formats.value_format import InvalidFormat
from penstock.formats.values import ABSENT, Longs, Values

READERS_MAX: Final = 64
"""Most readers' schemas that a process keeps."""
VALUE: Final = "value"
VALUE_ERROR: Final = "value_error"
HEADERS: Final = "headers"
"""Columns of a table of records that are decoded, added, and searched for ids."""

Decoded = tuple[pa.Array, pa.StringArray]
Decode = Callable[[Values, Values], Decoded]
"""Function that decodes values, given the values and the bytes that follow the ids.

Both are the same if the ids are in the values, and not in headers of the records.
"""


class FormatReader(Protocol):
    """Reader's schema of one format."""

    def arrow_type(self) -> pa.DataType: ...

    def writer(self, content: SchemaContent, where: str) -> Decode:
        """Return the decoder for data of a writer's schema, which `where` names.

        Raises:
            InvalidFormat: the schema is not supported, or cannot be read as the reader's.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Avro:
    node: avro.Node

    def arrow_type(self) -> pa.DataType:
        return avro.column_of_schema(self.node).type

    def writer(self, content: SchemaContent, where: str) -> Decode:
        from penstock.formats.avro_decode import run
        from penstock.formats.avro_program import program

        documents = [_document(text) for _, text in content.parts]
        made = program(avro.parse_writer(_document(content.text), documents), self.node)
        return lambda payload, frames: run(made, payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Protobuf:
    message: Message
    descriptor: Descriptor
    exact: bool

    def arrow_type(self) -> pa.DataType:
        return column_of_message(self.message).type

    def writer(self, content: SchemaContent, where: str) -> Decode:
        from penstock.formats.protobuf_decode import decode

        name = self.descriptor.full_name
        try:
            theirs = message_of_schema(content.text, content.parts, name, where)
        except InvalidFormat as error:
            rule = f"{error.reason} (MESSAGE_MISSING)" if error.name == "message" else error.reason
            raise InvalidFormat(error.name, error.value, rule) from error
        check_reads(self.descriptor, theirs)
        indexes = indexes_of(theirs)

        def read(payload: Values, frames: Values) -> Decoded:
            framing.skip_indexes(frames, indexes)
            if frames is not payload:
                payload.problems[:] = np.where(payload.problems, payload.problems, frames.problems)
            return decode(self.message, payload, exact=self.exact)

        return read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Json:
    reader: JsonReader

    def arrow_type(self) -> pa.DataType:
        return self.reader.arrow_type()

    def writer(self, content: SchemaContent, where: str) -> Decode:
        return lambda payload, frames: self.reader.read_values(payload)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFormat("schema", text[:100], f"is not JSON: {error}") from error


def _avro(schema: ReaderSchema) -> _Avro:
    content = schema.content
    documents = [_document(text) for _, text in content.parts]
    return _Avro(node=avro.parse(_document(content.text), documents))


def _protobuf(schema: ReaderSchema, *, exact: bool) -> _Protobuf:
    content = schema.content
    found = message_of_schema(content.text, content.parts, schema.message, schema.origin)
    message = message_of(found)
    if message.special is not None:
        raise InvalidFormat(
            "message", found.full_name, "is one value, but must be a message with fields"
        )
    return _Protobuf(message=message, descriptor=found, exact=exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryReader:
    """Reader of values with ids of a registry's schemas; it can be pickled.

    Attributes:
        header: name of the record header that may have the id instead of the value.
        closed: for JSON Schema: fields outside the schema are errors.
        shape: for JSON Schema: shape to read instead of the schema's own.
    """

    place: RegistryPlace
    schema: ReaderSchema
    header: str = framing.VALUE_HEADER
    closed: bool = False
    conversion: Conversion = field(default_factory=Conversion)
    shape: Record | None = None

    def arrow_type(self) -> pa.DataType:
        return format_reader(self).arrow_type()

    def read(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """Return a struct per value, and the error text of each invalid value.

        The struct of an invalid value is null.

        Raises:
            AdminUnavailable: the registry does not answer.
            RegistryRefused: the registry rejects the reader's credentials.
        """
        return _writers(self).read(values, headers)


def json_shape(schema: ReaderSchema, *, closed: bool) -> Record | None:
    """Return the shape of a JSON Schema; None for other formats.

    Raises:
        InvalidFormat: the schema is not supported.
    """
    if schema.content.kind != "JSON":
        return None
    return record_of_json_schema(_document(schema.content.text), closed=closed)


@lru_cache(READERS_MAX)
def format_reader(reader: RegistryReader) -> FormatReader:
    """Return the compiled schema of a reader.

    Raises:
        InvalidFormat: the schema is not supported.
    """
    kind = reader.schema.content.kind
    if kind == "AVRO":
        return _avro(reader.schema)
    if kind == "PROTOBUF":
        return _protobuf(reader.schema, exact=reader.conversion.exact)
    shape = reader.shape or json_shape(reader.schema, closed=reader.closed)
    if shape is None:
        raise InvalidFormat("schema", kind, "must be AVRO, PROTOBUF or JSON")
    return _Json(reader=JsonReader(record=shape, conversion=reader.conversion))


@lru_cache(READERS_MAX)
def _writers(reader: RegistryReader) -> Writers:
    return Writers(reader, reader.place.open())


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with one schema: their values, and the bytes behind their ids."""

    key: SchemaKey
    rows: Longs
    payload: Values
    frames: Values


def groups_of(found: Values, headers: pa.ListArray | None, header: str) -> Iterator[Group]:
    """Yield values by the schema that their headers name, or the header `header` of their records.

    Values without a schema get a problem.
    """
    named = None if headers is None else framing.header_values(headers, header)
    if named is not None:
        rows, content = named
        there = found.problems[rows] == 0
        rows, frames = rows[there], Values.of(content.filter(pa.array(there)))
        for key, inner in framing.by_schema(frames):
            payload = found.take(rows[inner])
            yield Group(key, rows[inner], payload, frames.take(inner))
        bad = frames.problems != 0
        found.problems[rows[bad]] = frames.problems[bad]
        others = np.setdiff1d(np.arange(len(found)), rows)
    else:
        others = np.arange(len(found))
    rest = found if named is None else found.take(others)
    grouped = framing.by_schema(rest)
    found.problems[others] = rest.problems
    for key, inner in grouped:
        if len(grouped) == 1:  # with the values that are absent or have no header
            yield Group(key, others, rest, rest)
        else:
            payload = rest.take(inner)
            yield Group(key, others[inner], payload, payload)


class Writers:
    """Writers' schemas of a registry, compiled for one reader; for one thread."""

    def __init__(self, reader: RegistryReader, client: SchemaClient) -> None:
        self._url = client.url
        self._reader = format_reader(reader)
        self._schema = reader.schema
        self._header = reader.header
        self._decoders = WriterSchemas(client, reader.schema.subject, self._decoder)

    def read(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> Decoded:
        """Decode values as `RegistryReader.read` does."""
        found = Values.of(values)
        groups = list(groups_of(found, headers, self._header))
        decoders = self._decoders.find([group.key for group in groups])
        parts = [self._decode(group, decoders[group.key]) for group in groups]
        if len(groups) == 1 and groups[0].payload is found:
            return parts[0]
        rows = [group.rows for group in groups]
        rest = np.setdiff1d(np.arange(len(found)), np.concatenate([*rows, []]))
        empty = pa.nulls(rest.size, self._reader.arrow_type())
        parts.append((empty, found.take(rest).texts(unframed_words)))
        order = np.empty(len(found), np.int64)
        order[np.concatenate([*rows, rest]).astype(np.int64)] = np.arange(len(found))
        decoded, errors = (pa.concat_arrays(side) for side in zip(*parts, strict=True))
        return decoded.take(pa.array(order)), errors.take(pa.array(order))

    def _decode(self, group: Group, decoder: Decode | str | None) -> Decoded:
        payload = group.payload
        unframed = payload.texts(unframed_words)
        if decoder is None:
            decoder = self._unknown_text(group.key)
        if isinstance(decoder, str):
            empty = pa.nulls(len(payload), self._reader.arrow_type())
            read = pa.array(payload.problems == 0)
            return empty, pc.if_else(read, pa.scalar(decoder, pa.string()), unframed)
        payload.problems[payload.problems > 0] = ABSENT
        decoded, errors = decoder(payload, group.frames)
        if errors.null_count < len(errors):
            errors = pc.binary_join_element_wise(f"{schema_label(group.key)}: ", errors, "")
        return decoded, framing.with_errors(errors, unframed)

    def _decoder(self, key: SchemaKey, content: SchemaContent) -> Decode | str:
        """Return the decoder of a writer's schema, or the reason why there is none."""
        kind = self._schema.content.kind
        if content.kind != kind:
            return f"{schema_label(key)} is {content.kind}, but {self._schema.origin} is {kind}"
        try:
            return self._reader.writer(content, schema_label(key))
        except InvalidFormat as error:
            return f"{schema_label(key)}: {error.value}: {error.reason}"

    def _unknown_text(self, key: SchemaKey) -> str:
        return (
            f"{schema_label(key)} is not in the schema registry {self._url}. Register the"
            " schema there with this id and replay the dead letter, or correct the producer"
        )


def decoded_table(
    read: Callable[[Sequence[str]], Any],
    columns: Sequence[str],
    decode: str | SchemaClient | RegistryReader,
    topic: str,
    *,
    views: bool,
) -> Any:
    """Return a table of records whose values are decoded.

    Args:
        read: returns a table with columns of records.
        columns: columns of the result; an error column follows `value`.

    Raises:
        InvalidArgument: the columns lack `value`, or are views.
        RegistryRefused, AdminUnavailable: as `RegistryReader.read`.
    """
    if views or VALUE not in columns:
        what = "views" if views else f"columns = {list(columns)!r}"
        raise InvalidArgument(f"{what}: decode needs the column {VALUE} without views")
    with opened(decode.place if isinstance(decode, RegistryReader) else decode) as client:
        if isinstance(decode, RegistryReader):
            reader = decode
        else:
            schema = pinned(client, f"{topic}-value")
            reader = RegistryReader(place=RegistryPlace(url=client.url), schema=schema)
        table = read(tuple(dict.fromkeys((*columns, VALUE, HEADERS))))
        fields = _decoded_fields(table.schema, columns, reader)
        writers = Writers(reader, client)
        batches = [_decoded_batch(batch, fields, writers) for batch in table.to_batches()]
        return pa.Table.from_batches(batches, schema=fields)


def _decoded_fields(schema: Any, columns: Sequence[str], reader: RegistryReader) -> Any:
    fields = []
    for name in columns:
        kind = reader.arrow_type() if name == VALUE else schema.field(name).type
        fields.append(pa.field(name, kind))
        if name == VALUE:
            fields.append(pa.field(VALUE_ERROR, pa.string()))
    return pa.schema(fields)


def _decoded_batch(batch: Any, fields: Any, writers: Writers) -> Any:
    decoded, errors = writers.read(batch.column(VALUE), batch.column(HEADERS))
    made = {VALUE: decoded, VALUE_ERROR: errors}
    columns = [made[name] if name in made else batch.column(name) for name in fields.names]
    return pa.RecordBatch.from_arrays(columns, schema=fields)


def schema_label(key: SchemaKey) -> str:
    """Return the name of a schema in error messages."""
    return f"schema id {key}" if key.isdecimal() else f"schema {key}"


def unframed_words(place: int, reason: int) -> str:
    """Return the error of a value without a readable header."""
    return f"{framing.PLACES[place]}{framing.WORDS[reason]}"
