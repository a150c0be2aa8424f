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
from http import HTTPStatus
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.client.errors import InvalidArgument
from penstock.client.registered import (
    ID_MAX,
    ReaderSchema,
    RegistryPlace,
    SchemaContent,
    pinned,
    registry_place,
    writer_content,
)
from penstock.client.schemas import RegistryRefused, SchemaClient
from penstock.formats import avro, framing
from penstock.formats.framing import SchemaKey
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Record, record_of_json_schema
from penstock.formats.json.plain import Conversion
from penstock.formats.protobuf import Message, column_of_message, indexes_of, message_of
from penstock.formats.protobuf_resolution import check_reads, message_of_schema
from penstock.formats.value_format import InvalidFormat
from penstock.formats.values import ABSENT, Longs, Values

WRITERS_MAX: Final = 1_000
"""Most writers' schemas that are kept for a reader's schema."""
READERS_MAX: Final = 64
"""Most readers' schemas that a process keeps."""
VALUE: Final = "value"
VALUE_ERROR: Final = "value_error"
HEADERS: Final = "headers"
"""Columns of a table of records that are decoded, added, and searched for ids."""
UNKNOWN_SECONDS: Final = 10.0
"""Time in seconds after which the registry is asked again for an id that it did not know."""

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

    def __init__(
        self, reader: RegistryReader, client: SchemaClient, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._clock = clock
        self._reader = format_reader(reader)
        self._schema = reader.schema
        self._header = reader.header
        self._known: dict[SchemaKey, Decode | str] = {}
        self._unknown: dict[SchemaKey, float] = {}

    def read(self, values: pa.BinaryArray, headers: pa.ListArray | None) -> Decoded:
        """Decode values as `RegistryReader.read` does."""
        found = Values.of(values)
        groups = list(groups_of(found, headers, self._header))
        decoders = self._found([group.key for group in groups])
        if len(groups) == 1 and groups[0].payload is found:
            return self._decode(groups[0].key, decoders, found, found)
        parts = [self._decode(group.key, decoders, group.payload, group.frames) for group in groups]
        rows = [group.rows for group in groups]
        rest = np.setdiff1d(np.arange(len(found)), np.concatenate([*rows, []]))
        empty = pa.nulls(rest.size, self._reader.arrow_type())
        parts.append((empty, found.take(rest).texts(unframed_words)))
        order = np.empty(len(found), np.int64)
        order[np.concatenate([*rows, rest]).astype(np.int64)] = np.arange(len(found))
        decoded, errors = (pa.concat_arrays(side) for side in zip(*parts, strict=True))
        return decoded.take(pa.array(order)), errors.take(pa.array(order))

    def _decode(
        self,
        key: SchemaKey,
        decoders: dict[SchemaKey, Decode | str],
        payload: Values,
        frames: Values,
    ) -> Decoded:
        found = decoders[key]
        unframed = payload.texts(unframed_words)
        if isinstance(found, str):
            empty = pa.nulls(len(payload), self._reader.arrow_type())
            read = pa.array(payload.problems == 0)
            return empty, pc.if_else(read, pa.scalar(found, pa.string()), unframed)
        payload.problems[payload.problems > 0] = ABSENT
        decoded, errors = found(payload, frames)
        if errors.null_count < len(errors):
            errors = pc.binary_join_element_wise(f"{schema_label(key)}: ", errors, "")
        return decoded, framing.with_errors(errors, unframed)

    def _found(self, keys: Sequence[SchemaKey]) -> dict[SchemaKey, Decode | str]:
        """Return the decoder of each id or GUID, or the reason why there is none.

        An id that the registry does not know may have been registered at another of its servers, so
        it is searched again after a pause.
        """
        now = self._clock.monotonic()
        self._unknown = {key: end for key, end in self._unknown.items() if end > now}
        wanted = [key for key in dict.fromkeys(keys) if key not in self._unknown]
        missing = [key for key in wanted if not self._fetch(key)]
        if missing:
            self._client.pause()
        until = self._clock.monotonic() + UNKNOWN_SECONDS
        for key in missing:
            if not self._fetch(key):
                self._unknown[key] = until
        found = {
            key: self._unknown_text(key) if key in self._unknown else self._known[key]
            for key in keys
        }
        for key in list(self._known)[:-WRITERS_MAX]:
            del self._known[key]
        return found

    def _fetch(self, key: SchemaKey) -> bool:
        """Prepare a writer's schema, unless it is known; return whether the registry has it."""
        if key in self._known:
            return True
        if key.isdecimal() and int(key) > ID_MAX:
            return False
        try:
            content = writer_content(self._client, key, self._schema.subject)
        except RegistryRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        self._known[key] = self._prepared(key, content)
        return True

    def _prepared(self, key: SchemaKey, content: SchemaContent) -> Decode | str:
        kind = self._schema.content.kind
        if content.kind != kind:
            return f"{schema_label(key)} is {content.kind}, but {self._schema.origin} is {kind}"
        try:
            return self._reader.writer(content, schema_label(key))
        except InvalidFormat as error:
            return f"{schema_label(key)}: {error.value}: {error.reason}"

    def _unknown_text(self, key: SchemaKey) -> str:
        return (
            f"{schema_label(key)} is not in the schema registry {self._client.url}. Register the"
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
    if isinstance(decode, RegistryReader):
        reader, client, own = decode, decode.place.open(), True
    else:
        own = isinstance(decode, str)
        place = registry_place(decode) if isinstance(decode, str) else RegistryPlace(url=decode.url)
        client = place.open() if isinstance(decode, str) else decode
        reader = RegistryReader(place=place, schema=pinned(client, f"{topic}-value"))
    try:
        table = read(tuple(dict.fromkeys((*columns, VALUE, HEADERS))))
        parts = Writers(reader, client)
        made = [_decoded_batch(batch, columns, parts) for batch in table.to_batches()]
        return pa.Table.from_batches(made, schema=_table_schema(table.schema, columns, reader))
    finally:
        if own:
            client.close()


def _decoded_batch(batch: Any, columns: Sequence[str], writers: Writers) -> Any:
    decoded, errors = writers.read(batch.column(VALUE), batch.column(HEADERS))
    made: dict[str, Any] = {}
    for name in columns:
        made[name] = decoded if name == VALUE else batch.column(name)
        if name == VALUE:
            made[VALUE_ERROR] = errors
    return pa.RecordBatch.from_pydict(made)


def _table_schema(schema: Any, columns: Sequence[str], reader: RegistryReader) -> Any:
    fields = []
    for name in columns:
        kind = reader.arrow_type() if name == VALUE else schema.field(name).type
        fields.append(pa.field(name, kind))
        if name == VALUE:
            fields.append(pa.field(VALUE_ERROR, pa.string()))
    return pa.schema(fields)


def schema_label(key: SchemaKey) -> str:
    """Return the name of a schema in error messages."""
    return f"schema id {key}" if key.isdecimal() else f"schema {key}"


def unframed_words(place: int, reason: int) -> str:
    """Return the error of a value without a readable header."""
    return f"{framing.PLACES[place]}{framing.WORDS[reason]}"
