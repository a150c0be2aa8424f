"""Protobuf schemas of the registry: parsing, identity, normal form, and output formats.

A schema arrives as a .proto source text, or as a base64 FileDescriptorProto, which clients in
Python and .NET send. A descriptor is printed as source text first, so both forms of one schema
have the same identity: the printed text of the linked descriptor, with full type names.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Final

from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError, Message

from penstock.registry.formats.protobuf_compatibility import check_reads
from penstock.registry.formats.protobuf_descriptors import describe
from penstock.registry.formats.protobuf_edits import edit
from penstock.registry.formats.protobuf_imports import COMPILED_IMPORTS, SOURCE_IMPORTS
from penstock.registry.formats.protobuf_linker import Linker
from penstock.registry.formats.protobuf_source import check_size, check_total
from penstock.registry.formats.protobuf_symbols import Scope, messages_of, types_of
from penstock.registry.formats.protobuf_text import Namer, print_file
from penstock.registry.formats.schema import (
    Dependency,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    Policy,
    SchemaType,
)

FORMATS: Final = ("serialized", "ignore_extensions")


class ProtobufSchema(ParsedSchema):
    """A valid Protobuf file with the files that it imports.

    Attributes:
        files: linked files: each one follows its imports, and the schema itself is last. Callers
            must not modify them.
    """

    schema_type: ClassVar[SchemaType] = "PROTOBUF"

    def __init__(
        self, text: str, name: str, linker: Linker, dependencies: Sequence[Dependency]
    ) -> None:
        """Store the linked files of the schema that `linker` has as the file `name`.

        The descriptor pool is many times larger than the files, so it is rebuilt on demand.
        """
        self.text = text
        self._dependencies = tuple(dependencies)
        self.files = tuple(linker.dependencies(name))
        self.identity = print_file(self.file, linker.pool)

    @property
    def file(self) -> FileDescriptorProto:
        """The linked descriptor of the schema itself. Callers must not modify it."""
        return self.files[-1]

    def linked(self) -> FileDescriptor:
        """Return the schema's descriptor in a new pool with all its imports."""
        return Linker.of(self.files).pool.FindFileByName(self.file.name)

    def normalized(self) -> ProtobufSchema:
        file = FileDescriptorProto()
        file.CopyFrom(self.file)
        _normalize_file(file)
        return parse_protobuf(print_file(file, Linker.of(self.files).pool), self._dependencies)

    def check_reads(
        self, writer: ProtobufSchema, policy: Policy = "STRICT"
    ) -> Sequence[Incompatibility]:
        return check_reads(self.linked(), writer.linked())

    def edited(
        self,
        other: ProtobufSchema,
        problems: Sequence[Incompatibility],
        *,
        reads: bool,
        policy: Policy = "STRICT",
    ) -> ProtobufSchema | None:
        file = edit(self.file, other.file, problems, reads=reads)
        if file is None:
            return None
        try:
            return self.with_file(file)
        except InvalidSchema:
            return None

    def with_file(self, file: FileDescriptorProto) -> ProtobufSchema:
        """Return a schema with another descriptor of the file, and the same dependencies.

        Raises:
            InvalidSchema: the descriptor is invalid.
        """
        return parse_protobuf(self._printed(file), self._dependencies)

    def formatted(self, name: str) -> str:
        match name:
            case "":
                return self.text
            case "serialized":
                return base64.b64encode(self.file.SerializeToString(deterministic=True)).decode()
            case "ignore_extensions":
                file = FileDescriptorProto()
                file.CopyFrom(self.file)
                _drop_extensions(file)
                return self._printed(file)
        raise InvalidSchema(
            f"The format {name!r} does not exist for Protobuf. Use one of {', '.join(FORMATS)}, or"
            " none."
        )

    def _printed(self, file: FileDescriptorProto) -> str:
        linker = Linker.of(self.files)
        return print_file(file, linker.pool, _short_names(linker.scope(self.file.name)))


def parse_protobuf(text: str, dependencies: Sequence[Dependency]) -> ProtobufSchema:
    """Return the schema of a .proto source text or of a base64 FileDescriptorProto.

    Each dependency precedes those that use it. Its name is its import path. Dependencies with the
    name of a file that needs no reference are ignored.

    Raises:
        InvalidSchema: the text is malformed, too large, or refers to something that is missing.
    """
    check_size(text)
    if not text.strip():
        raise InvalidSchema("The schema is empty. Send a .proto source text.")
    used = [part for part in dependencies if not _is_known(part.name)]
    check_total([text, *(part.text for part in used)])
    try:
        linker = Linker()
        for dependency in used:
            source = _source_text(dependency.text, dependency.name, linker)
            linker.add(describe(source, dependency.name))
        name = _unused_name(used)
        source = _source_text(text, name, linker)
        linker.add(describe(source, name))
        return ProtobufSchema(source, name, linker, used)
    except RecursionError:
        raise InvalidSchema("The schema nests too deep. Nest its types and options less.") from None


def _is_known(name: str) -> bool:
    return name in COMPILED_IMPORTS or name in SOURCE_IMPORTS


def _unused_name(dependencies: Sequence[Dependency]) -> str:
    """Return a file name for a schema that no dependency has."""
    names = {dependency.name for dependency in dependencies}
    name = "schema.proto"
    while name in names:
        name = f"_{name}"
    return name


def _source_text(text: str, name: str, linker: Linker) -> str:
    """Return a schema's source text, which is printed if the text is a descriptor.

    `linker` has the files that the schema imports.
    """
    file = _decoded(text)
    if file is None:
        return text
    file.name = name
    scope = linker.described_scope(file)
    extensions = [*file.extension]
    for _, message in messages_of(file):
        extensions += message.extension
    pool = linker.pool
    if any(extension.extendee.startswith(".google.protobuf.") for extension in extensions):
        pool = linker.copy_with(file).pool
    return print_file(file, pool, _short_names(scope))


def _decoded(text: str) -> FileDescriptorProto | None:
    """Return the descriptor that a text holds in base64; None if it holds none."""
    stripped = text.strip()
    if not stripped.isascii() or any(mark in stripped for mark in ";{"):
        return None
    try:
        serialized = base64.b64decode(stripped, validate=True)
        file = FileDescriptorProto.FromString(serialized)
    except (binascii.Error, DecodeError):
        return None
    file.ClearField("source_code_info")
    _check_strings(file)
    return file


def _check_strings(message: Message) -> None:
    """Raise InvalidSchema if a descriptor has a string that is not UTF-8.

    The library returns such a string as bytes.
    """
    for field, value in message.ListFields():
        for part in value if field.is_repeated else (value,):
            if isinstance(part, Message):
                _check_strings(part)
            elif isinstance(part, bytes) and field.type == FieldDescriptor.TYPE_STRING:
                raise InvalidSchema(f"The descriptor's {field.name} {part!r:.40} is not UTF-8.")


def _short_names(scope: Scope) -> Namer:
    def namer(full: str, user: str, *, extension: bool = False) -> str:
        return scope.shortest(full, user, ("extension",) if extension else ("message", "enum"))

    return namer


def _normalize_file(file: FileDescriptorProto) -> None:
    """Sort elements whose order has no meaning."""
    _normalize_imports(file)
    _sort(file.enum_type, lambda enum: enum.name)
    _sort(file.extension, lambda extension: (extension.extendee, extension.number))
    _sort(file.service, lambda service: service.name)
    for service in file.service:
        _sort(service.method, lambda method: method.name)
    for enum in file.enum_type:
        _normalize_enum(enum)
    for message in file.message_type:
        _normalize_message(message)


def _normalize_imports(file: FileDescriptorProto) -> None:
    public = {file.dependency[index] for index in file.public_dependency}
    weak = {file.dependency[index] for index in file.weak_dependency}
    names = sorted(file.dependency)
    file.dependency[:] = names
    file.public_dependency[:] = [index for index, name in enumerate(names) if name in public]
    file.weak_dependency[:] = [index for index, name in enumerate(names) if name in weak]
    file.option_dependency.sort()


def _normalize_message(message: DescriptorProto) -> None:
    """Sort fields by number; the nested messages that clients count keep their places."""
    _sort(message.field, lambda field: field.number)
    _sort_oneofs(message)
    _sort(message.enum_type, lambda enum: enum.name)
    _sort(message.extension, lambda extension: (extension.extendee, extension.number))
    _sort(message.extension_range, lambda part: part.start)
    _normalize_reserved(message)
    numbers = {field.type_name.rpartition(".")[2]: field.number for field in message.field}
    ordered: list[DescriptorProto] = []
    for is_entry, group in groupby(message.nested_type, lambda nested: nested.options.map_entry):
        run = list(group)
        if is_entry:
            run.sort(key=lambda entry: numbers.get(entry.name, 0))
        ordered += run
    _replace(message.nested_type, ordered)
    for nested in message.nested_type:
        _normalize_message(nested)
    for enum in message.enum_type:
        _normalize_enum(enum)


def _sort_oneofs(message: DescriptorProto) -> None:
    """Order oneofs by the lowest number of their fields. Fields are sorted already."""
    order: dict[int, int] = {}
    for field in sorted(message.field, key=lambda field: field.proto3_optional):
        if field.HasField("oneof_index"):
            order.setdefault(field.oneof_index, len(order))
    oneofs = list(message.oneof_decl)
    _replace(message.oneof_decl, [oneofs[index] for index in order])
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index = order[field.oneof_index]


def _normalize_enum(enum: EnumDescriptorProto) -> None:
    """Sort constants by number after the first one, which is the default."""
    first, *others = enum.value
    others.sort(key=lambda value: (value.number, value.name))
    _replace(enum.value, [first, *others])
    _normalize_reserved(enum)


def _normalize_reserved(part: DescriptorProto | EnumDescriptorProto) -> None:
    part.reserved_name.sort()
    _sort(part.reserved_range, lambda reserved: reserved.start)


def _sort(elements: Any, key: Callable[[Any], Any]) -> None:
    _replace(elements, sorted(elements, key=key))


def _replace(elements: Any, ordered: Sequence[Message]) -> None:
    copies = [type(element).FromString(element.SerializePartialToString()) for element in ordered]
    del elements[:]
    elements.extend(copies)


def _drop_extensions(file: FileDescriptorProto) -> None:
    """Remove extensions, extension ranges and custom options."""
    del file.extension[:]
    _drop_custom(file.options)
    for service in file.service:
        _drop_custom(service.options)
        for method in service.method:
            _drop_custom(method.options)
    for _, declared in types_of(file):
        _drop_custom(declared.options)
        parts: Sequence[Any]
        if isinstance(declared, DescriptorProto):
            del declared.extension[:]
            del declared.extension_range[:]
            parts = (*declared.field, *declared.oneof_decl)
        else:
            parts = declared.value
        for part in parts:
            _drop_custom(part.options)


def _drop_custom(options: Any) -> None:
    if not options.ByteSize():
        return
    options.DiscardUnknownFields()
    del options.uninterpreted_option[:]
    for field, _ in options.ListFields():
        if field.is_extension:
            options.ClearExtension(field)
