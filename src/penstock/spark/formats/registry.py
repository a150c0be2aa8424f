"""Schemas of a registry as the value format `registry`: choice and pinning of a reader's schema."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

from google.protobuf.descriptor import FileDescriptor
from msgspec import structs

from penstock.base.errors import InvalidError
from penstock.client.decoding import RegistryReader, json_shape
from penstock.client.errors import InvalidArgument
from penstock.client.registered import (
    ReaderSchema,
    RegistryPlace,
    SchemaContent,
    SchemaKind,
    pinned,
    reader_from_json,
    registry_place,
)
from penstock.client.schemas import RegistryRefused
from penstock.formats.json.debezium import EnvelopeReader, checked_envelope, with_unchanged
from penstock.formats.json.json_schema import Record
from penstock.formats.json.plain import Conversion
from penstock.formats.protobuf import load_message
from penstock.formats.readers import Reader
from penstock.formats.value_format import (
    NEWEST,
    InvalidFormat,
    ValueFormat,
    is_schema_file,
    read_schema_file,
)

START_SECONDS: Final = 5.0
"""Longest wait for the registry when a pipeline or a query starts."""


def place_of(value_format: ValueFormat) -> RegistryPlace:
    """Return the address of a format's registry, with the security options of its clients.

    Raises:
        UnusableFile: the file with the options cannot be read.
    """
    config = value_format.registry_config
    return registry_place(value_format.registry or "", None if config is None else str(config))


def subject_of(value_format: ValueFormat, topics: Sequence[str]) -> str:
    """Return the subject of the reader's schema: by default that of the only topic's values.

    Raises:
        InvalidFormat: no subject is set, and the topics are several or a pattern.
    """
    if value_format.subject is not None:
        return value_format.subject
    if len(topics) != 1:
        raise InvalidFormat("subject", "", "must be set if values come from several topics")
    return f"{topics[0]}-value"


def with_pinned_reader(value_format: ValueFormat, topics: Sequence[str]) -> ValueFormat:
    """Return a format whose reader's schema is fixed: read from a file, or from the registry.

    Raises:
        InvalidFormat: a setting is wrong, or the schema does not exist or is not supported.
        AdminUnavailable: the registry does not answer.
        RegistryRefused: the registry rejects the credentials.
    """
    choice = value_format.reader
    if is_schema_file(choice):
        schema = _from_file(Path(choice), value_format.message)
    else:
        subject = subject_of(value_format, topics)
        schema = _from_registry(value_format, subject)
    made = replace(value_format, schema=schema.to_json())
    try:
        value_reader(made).arrow_type()
    except InvalidFormat as error:
        if error.name == "message":
            raise
        reason = f"{schema.origin}: {error.value}: {error.reason}"
        raise InvalidFormat("reader", choice, reason) from error
    return made


def pinned_schema(value_format: ValueFormat) -> ReaderSchema:
    """Return the fixed schema of a format's reader.

    Raises:
        InvalidFormat: it is missing or damaged.
    """
    return reader_from_json(value_format.schema or "")


def registry_reader(value_format: ValueFormat, shape: Record | None = None) -> RegistryReader:
    """Return the reader of a format whose reader's schema is fixed.

    Raises:
        InvalidFormat: the fixed schema is damaged.
        UnusableFile: the file with the options of the registry's client cannot be read.
    """
    return RegistryReader(
        place=place_of(value_format),
        schema=pinned_schema(value_format),
        closed=value_format.unknown_fields == "reject",
        conversion=Conversion(
            zone=value_format.zone or "UTC", exact=value_format.decimals == "exact"
        ),
        shape=shape,
    )


def value_reader(value_format: ValueFormat) -> Reader:
    """Return the reader of a format's columns, which are those of a row if it has an envelope.

    Raises:
        InvalidFormat: as `registry_reader`, or the fixed schema is not that of such envelopes.
    """
    if value_format.envelope is None:
        return registry_reader(value_format)
    schema = pinned_schema(value_format)
    if schema.content.kind != "AVRO":
        raise InvalidFormat("envelope", value_format.envelope, "needs a schema in Avro")
    content = structs.replace(schema.content, text=with_unchanged(schema.content.text))
    reader = replace(registry_reader(value_format), schema=structs.replace(schema, content=content))
    return EnvelopeReader(reader=reader, envelope=checked_envelope(reader.arrow_type()))


def shape_of(value_format: ValueFormat) -> Record | None:
    """Return the shape of a fixed JSON Schema; None for other formats."""
    closed = value_format.unknown_fields == "reject"
    return json_shape(pinned_schema(value_format), closed=closed)


def _from_registry(value_format: ValueFormat, subject: str) -> ReaderSchema:
    try:
        client = replace(place_of(value_format), timeout_seconds=START_SECONDS).open()
    except InvalidArgument as error:
        raise InvalidFormat("registry", value_format.registry, str(error)) from error
    except InvalidError as error:
        config = value_format.registry_config or value_format.registry
        raise InvalidFormat("registry_config", config, str(error)) from error
    with client:
        try:
            return pinned(client, subject, value_format.reader, value_format.message)
        except RegistryRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            choice = value_format.reader
            reason = f"the registry {client.url} has no such schema: {error.message}"
            if choice == NEWEST:
                raise InvalidFormat("subject", subject, reason) from error
            raise InvalidFormat("reader", choice, f"{reason} (subject {subject})") from error


def _from_file(path: Path, message: str | None) -> ReaderSchema:
    try:
        return _schema_in(path, message)
    except InvalidFormat as error:
        name = "reader" if error.name == "schema_file" else error.name
        raise InvalidFormat(name, error.value, error.reason) from error


def _schema_in(path: Path, message: str | None) -> ReaderSchema:
    content = read_schema_file(path)
    if path.suffix in (".avsc", ".json"):
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise InvalidFormat("reader", path, "is not UTF-8") from error
        kind: SchemaKind = "AVRO" if path.suffix == ".avsc" else "JSON"
        return ReaderSchema(content=SchemaContent(kind=kind, text=text))
    descriptor = load_message(path, content, message)
    *parts, (_, text) = _files(descriptor.file)
    made = SchemaContent(kind="PROTOBUF", text=text, parts=tuple(parts))
    return ReaderSchema(content=made, message=descriptor.full_name)


def _files(file: FileDescriptor) -> list[tuple[str, str]]:
    """Return the files of a descriptor, each after its imports, without those of Protobuf."""
    found: dict[str, str] = {}

    def visit(each: FileDescriptor) -> None:
        if each.name in found or each.name.startswith("google/protobuf/"):
            return
        for needed in each.dependencies:
            visit(needed)
        found[each.name] = base64.b64encode(each.serialized_pb).decode()

    visit(file)
    return list(found.items())
