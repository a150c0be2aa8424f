"""Linker of Protobuf files: resolves type names, sets options, and builds the descriptor pool.

Names are resolved as protoc does: from the innermost scope outwards, by the first part of the
name. A name counts only if its file is imported, directly or through public imports. The pool of
the protobuf library then checks the rest: numbers, constants, extensions, features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool

from penstock.registry.formats.protobuf_checks import check_file
from penstock.registry.formats.protobuf_descriptors import (
    FIELD_NUMBER_MAX,
    INT32_MAX,
    DescribedFile,
    describe,
    json_name,
)
from penstock.registry.formats.protobuf_imports import COMPILED_IMPORTS, SOURCE_IMPORTS
from penstock.registry.formats.protobuf_options import (
    set_custom_options,
    set_declared_options,
    spell_defaults,
)
from penstock.registry.formats.protobuf_symbols import (
    Scope,
    SymbolKind,
    joined,
    messages_of,
    symbols_of,
)
from penstock.registry.formats.schema import REFERENCES_MAX, TYPES_MAX, InvalidSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedFile:
    """Descriptor with resolved names, and the symbols that it declares."""

    file: FileDescriptorProto
    symbols: Mapping[str, SymbolKind]


class Linker:
    """Set of linked files.

    Attributes:
        pool: descriptors of all added files.
    """

    def __init__(self) -> None:
        self.pool = DescriptorPool()
        self._files: dict[str, LinkedFile] = {}
        self._elements = 0

    @classmethod
    def of(cls, files: Sequence[FileDescriptorProto]) -> Linker:
        """Return a linker with files that have been linked before, in dependency order."""
        linker = cls()
        for file in files:
            linker._build(file)
            linked = known_file(file.name) or LinkedFile(file=file, symbols=symbols_of(file))
            linker._files[file.name] = linked
        return linker

    def add(self, described: DescribedFile) -> LinkedFile:
        """Link a file whose imports have been added, or are known files.

        Raises:
            InvalidSchema: the file is invalid, or one of its imports is missing.
        """
        file = described.file
        self._count(described.elements)
        linked = self._resolved(file)
        spell_defaults(file)
        set_declared_options(described.options)
        _widen_message_sets(file)
        check_file(file)
        self._build(file)
        self._files[file.name] = linked
        custom = [option for option in described.options if option.is_custom]
        if custom:
            set_custom_options(custom, self.pool, self._scope(linked))
        return linked

    def copy_with(self, file: FileDescriptorProto) -> Linker:
        """Return a linker with the files here and a file from `described_scope`.

        Raises:
            InvalidSchema: the file is invalid.
        """
        return Linker.of([*(linked.file for linked in self._files.values()), file])

    def described_scope(self, file: FileDescriptorProto) -> Scope:
        """Complete the type names of a compiler's descriptor, and return the file's scope.

        Raises:
            InvalidSchema: a type is not defined, or an import is missing.
        """
        return self._scope(self._resolved(file))

    def scope(self, name: str) -> Scope:
        """Return the symbols that an added file can refer to, with extensions for its options."""
        return self._scope(self._files[name])

    def _scope(self, linked: LinkedFile) -> Scope:
        return Scope(self._visible(linked.file, _imports(linked.file)), linked.symbols)

    def _resolved(self, file: FileDescriptorProto) -> LinkedFile:
        """Add the known files that a file imports, and resolve the file's type names."""
        self._import(file)
        symbols = symbols_of(file)
        _resolve(file, Scope(self._visible(file, file.dependency), symbols))
        return LinkedFile(file=file, symbols=symbols)

    def _add_known(self, name: str) -> bool:
        """Add a file that needs no reference; return False if `name` is not such a file."""
        linked = known_file(name)
        if linked is None:
            return False
        self._import(linked.file)
        self._build(linked.file)
        self._files[name] = linked
        return True

    def dependencies(self, name: str) -> Sequence[FileDescriptorProto]:
        """Return the files that a file needs, with itself as the last, in dependency order."""
        needed = {name}
        for current, linked in reversed(self._files.items()):
            if current in needed:
                needed.update(_imports(linked.file))
        return tuple(linked.file for current, linked in self._files.items() if current in needed)

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > TYPES_MAX:
            raise InvalidSchema(
                f"The schema and its references have more than {TYPES_MAX} types, fields and"
                " constants."
            )

    def _import(self, file: FileDescriptorProto) -> None:
        imports = _imports(file)
        if len(imports) > REFERENCES_MAX:
            raise InvalidSchema(f"The schema imports more than {REFERENCES_MAX} files.")
        for name in imports:
            if name == file.name or not (name in self._files or self._add_known(name)):
                raise InvalidSchema(
                    f"The imported file {name!r} does not exist. Register it, and add a reference"
                    " with this name."
                )
        if len(self._files) > REFERENCES_MAX + len(COMPILED_IMPORTS) + len(SOURCE_IMPORTS):
            raise InvalidSchema(f"The schema has more than {REFERENCES_MAX} references.")

    def _build(self, file: FileDescriptorProto) -> None:
        try:
            self.pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as error:
            reason = str(error).rpartition("descriptor pool: ")[2].removesuffix(".")
            raise InvalidSchema(f"The schema is invalid: {reason}.") from None

    def _visible(self, file: FileDescriptorProto, imports: Sequence[str]) -> dict[str, SymbolKind]:
        visible: dict[str, SymbolKind] = {}
        waiting, seen = list(imports), {file.name}
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            linked = self._files[name]
            visible.update(linked.symbols)
            imported = linked.file
            waiting.extend(imported.dependency[index] for index in imported.public_dependency)
        return visible


@cache
def known_file(name: str) -> LinkedFile | None:
    """Return a file that needs no reference; None if `name` is not such a file."""
    if name in COMPILED_IMPORTS:
        file = FileDescriptorProto.FromString(COMPILED_IMPORTS[name])
        return LinkedFile(file=file, symbols=symbols_of(file))
    if name in SOURCE_IMPORTS:
        return Linker().add(describe(SOURCE_IMPORTS[name], name))
    return None


def _imports(file: FileDescriptorProto) -> Sequence[str]:
    return [*file.dependency, *file.option_dependency]


def _widen_message_sets(file: FileDescriptorProto) -> None:
    """Extend the ranges of message sets, whose extensions have numbers of 31 bits."""
    for _, message in messages_of(file):
        if message.options.message_set_wire_format:
            for part in message.extension_range:
                if part.end == FIELD_NUMBER_MAX + 1:
                    part.end = INT32_MAX


def _resolve(file: FileDescriptorProto, scope: Scope) -> None:
    for full, message in messages_of(file):
        for field in (*message.field, *message.extension):
            _resolve_field(field, f"{full}.{field.name}", scope)
    for extension in file.extension:
        _resolve_field(extension, joined(file.package, extension.name), scope)
    for service in file.service:
        for method in service.method:
            user = f"{joined(file.package, service.name)}.{method.name}"
            method.input_type = _found(method.input_type, user, scope, ("message",))
            method.output_type = _found(method.output_type, user, scope, ("message",))


def _resolve_field(field: FieldDescriptorProto, user: str, scope: Scope) -> None:
    if field.HasField("extendee"):
        field.extendee = _found(field.extendee, user, scope, ("message",))
    if field.HasField("type_name"):
        field.type_name = _found(field.type_name, user, scope, ("message", "enum"))
        is_message = scope.kind(field.type_name[1:]) == "message"
        if not field.HasField("type"):
            field.type = (
                FieldDescriptorProto.TYPE_MESSAGE if is_message else FieldDescriptorProto.TYPE_ENUM
            )
    if not field.HasField("json_name"):
        field.json_name = json_name(field.name)


def _found(name: str, user: str, scope: Scope, kinds: Sequence[SymbolKind]) -> str:
    full = scope.find(name, user, kinds)
    if full is None:
        raise InvalidSchema(
            f"{user} refers to {name}, which is not defined as {' or '.join(kinds)}. Define it, or"
            " import its file."
        )
    return f".{full}"
