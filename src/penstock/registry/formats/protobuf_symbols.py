"""Symbols of Protobuf files, and the rules by which a name finds its symbol.

Source: the language specification, "Type resolution", and protoc's order of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
)

from penstock.registry.formats.protobuf_source import KEYWORDS
from penstock.registry.formats.schema import DEPTH_MAX, InvalidSchema

SymbolKind = Literal[
    "package", "message", "enum", "constant", "field", "oneof", "extension", "service", "method"
]
_SCOPES: Final = frozenset({"package", "message", "enum", "service"})
"""Kinds of symbols that other symbols can be nested in."""


def joined(scope: str, name: str) -> str:
    """Return the full name of an element in a scope, which is empty outside of packages."""
    return f"{scope}.{name}" if scope else name


def messages_of(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """Yield the full names and descriptors of all messages, outer ones first."""
    waiting = [
        (joined(file.package, message.name), message) for message in reversed(file.message_type)
    ]
    while waiting:
        full, message = waiting.pop()
        yield full, message
        waiting += ((f"{full}.{nested.name}", nested) for nested in reversed(message.nested_type))


def types_of(
    file: FileDescriptorProto,
) -> Iterator[tuple[str, DescriptorProto | EnumDescriptorProto]]:
    """Yield the full names and descriptors of all messages and enums."""
    for enum in file.enum_type:
        yield joined(file.package, enum.name), enum
    for full, message in messages_of(file):
        yield full, message
        for enum in message.enum_type:
            yield f"{full}.{enum.name}", enum


def symbols_of(file: FileDescriptorProto) -> dict[str, SymbolKind]:
    """Return the kinds of all symbols of a file, by full name.

    Raises:
        InvalidSchema: two symbols have the same name.
    """
    symbols: dict[str, SymbolKind] = {}
    parts = file.package.split(".") if file.package else []
    for end in range(1, len(parts) + 1):
        symbols[".".join(parts[:end])] = "package"
    for name, kind in _symbols(file):
        if name in symbols:
            raise InvalidSchema(
                f"The name {name} is defined twice: as a {symbols[name]} and as a {kind}."
            )
        symbols[name] = kind
    return symbols


def _symbols(file: FileDescriptorProto) -> Iterator[tuple[str, SymbolKind]]:
    prefix = f"{file.package}." if file.package else ""
    for message in file.message_type:
        yield from _message_symbols(message, prefix)
    for enum in file.enum_type:
        yield from _enum_symbols(enum, prefix)
    for extension in file.extension:
        yield prefix + extension.name, "extension"
    for service in file.service:
        yield prefix + service.name, "service"
        for method in service.method:
            yield f"{prefix}{service.name}.{method.name}", "method"


def _message_symbols(
    message: DescriptorProto, prefix: str, depth: int = 1
) -> Iterator[tuple[str, SymbolKind]]:
    if depth > DEPTH_MAX:
        raise InvalidSchema(f"The message {message.name} is nested deeper than {DEPTH_MAX} levels.")
    full = prefix + message.name
    yield full, "message"
    inner = f"{full}."
    for field in message.field:
        yield inner + field.name, "field"
    for oneof in message.oneof_decl:
        yield inner + oneof.name, "oneof"
    for extension in message.extension:
        yield inner + extension.name, "extension"
    for enum in message.enum_type:
        yield from _enum_symbols(enum, inner)
    for nested in message.nested_type:
        yield from _message_symbols(nested, inner, depth + 1)


def _enum_symbols(enum: EnumDescriptorProto, prefix: str) -> Iterator[tuple[str, SymbolKind]]:
    yield prefix + enum.name, "enum"
    for value in enum.value:
        yield prefix + value.name, "constant"


class Scope:
    """Symbols that a file can refer to."""

    def __init__(self, visible: Mapping[str, SymbolKind], own: Mapping[str, SymbolKind]) -> None:
        self._symbols = {**visible, **own}

    def find(self, name: str, user: str, kinds: Sequence[SymbolKind]) -> str | None:
        """Return the full name that `name` has in the element `user`, or None."""
        if name.startswith("."):
            full = name[1:]
            return full if self._symbols.get(full) in kinds else None
        first, _, rest = name.partition(".")
        scope = user
        while scope:
            scope = scope.rpartition(".")[0]
            found = f"{scope}.{first}" if scope else first
            kind = self._symbols.get(found)
            if kind is None:
                continue
            if rest:
                if kind in _SCOPES:
                    full = f"{found}.{rest}"
                    return full if self._symbols.get(full) in kinds else None
            elif kind in kinds:
                return found
        return None

    def shortest(self, full: str, user: str, kinds: Sequence[SymbolKind]) -> str:
        """Return the shortest name with which the element `user` can refer to a symbol."""
        parts = full.split(".")
        for begin in range(len(parts) - 1, -1, -1):
            name = ".".join(parts[begin:])
            if parts[begin] not in KEYWORDS and self.find(name, user, kinds) == full:
                return name
        return f".{full}"

    def kind(self, full: str) -> SymbolKind | None:
        return self._symbols.get(full)
