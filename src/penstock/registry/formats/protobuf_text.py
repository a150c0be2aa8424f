"""Printer of .proto source texts from linked descriptors.

Reading a printed text gives the same descriptor again, apart from parts that source texts cannot
express. In particular the order of nested messages is kept, because clients refer to messages by
their index; maps and groups, which declare messages too, are printed at their place in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final, Protocol

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    Edition,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from penstock.registry.formats.protobuf_descriptors import (
    FIELD_NUMBER_MAX,
    INT32_MAX,
    LABELS,
    SCALARS,
    VISIBILITIES,
    json_name,
)
from penstock.registry.formats.protobuf_options import with_extensions
from penstock.registry.formats.protobuf_source import escaped, unescaped
from penstock.registry.formats.protobuf_symbols import joined
from penstock.registry.formats.schema import InvalidSchema

_SCALAR_NAMES: Final = {kind: name for name, kind in SCALARS.items()}
_LABELS: Final = {label: f"{word} " for word, label in LABELS.items()}
_VISIBILITIES: Final = {visibility: f"{word} " for word, visibility in VISIBILITIES.items()}


class Namer(Protocol):
    """Function that returns how the element `user` refers to a type or an extension."""

    def __call__(self, full: str, user: str, *, extension: bool = False) -> str: ...


def qualified(full: str, user: str, *, extension: bool = False) -> str:
    """Refer to each type by its full name."""
    return f".{full}"


def print_file(file: FileDescriptorProto, pool: DescriptorPool, namer: Namer = qualified) -> str:
    """Return the source text of a linked file, whose imports are in `pool`.

    Raises:
        InvalidSchema: no source text can express the descriptor.
    """
    return _Printer(file, pool, namer).text()


@dataclass(slots=True)
class _Unit:
    """Part of a message's body that is printed as a whole."""

    print: Callable[[], Iterator[str]]
    printed: bool = False
    owned: list[str] = field(default_factory=list)


class _Printer:
    def __init__(self, file: FileDescriptorProto, pool: DescriptorPool, namer: Namer) -> None:
        self._file = file
        self._pool = pool
        self._namer = namer

    def text(self) -> str:
        file = self._file
        package = file.package
        if file.syntax == "editions":
            head = [f'edition = "{Edition.Name(file.edition).removeprefix("EDITION_")}";']
        else:
            head = [f'syntax = "{file.syntax or "proto2"}";']
        if package:
            head.append(f"package {package};")
        blocks = ["\n".join(head), "\n".join(self._imports())]
        blocks.append("\n".join(self._option_lines(file.options, joined(package, "dummy"))))
        blocks += ["\n".join(self._enum(enum, package)) for enum in file.enum_type]
        blocks += ["\n".join(unit) for unit in self._types(file, package)]
        blocks += ["\n".join(self._service(service)) for service in file.service]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def _imports(self) -> Iterator[str]:
        file = self._file
        public, weak = set(file.public_dependency), set(file.weak_dependency)
        for index, name in enumerate(file.dependency):
            word = "public " if index in public else "weak " if index in weak else ""
            yield f"import {word}{escaped(name.encode())};"
        for name in file.option_dependency:
            yield f"import option {escaped(name.encode())};"

    def _types(self, file: FileDescriptorProto, package: str) -> Iterator[Sequence[str]]:
        extensions = self._extension_units(file.extension, file.message_type, package)
        yield from self._ordered(file.message_type, [], extensions, package)

    def _ordered(
        self,
        messages: Sequence[DescriptorProto],
        fields: Sequence[_Unit],
        extensions: Sequence[_Unit],
        scope: str,
    ) -> Iterator[Sequence[str]]:
        """Print fields, extensions and messages so that messages keep their order."""
        owners = {name: (units, unit) for units in (fields, extensions) for unit in units
                  for name in unit.owned}  # fmt: skip
        for message in messages:
            if message.name in owners:
                units, owner = owners[message.name]
                for unit in units:
                    if owner.printed:
                        break
                    yield from self._unit(unit)
            else:
                yield list(self._message(message, scope))
        for unit in (*fields, *extensions):
            yield from self._unit(unit)

    def _unit(self, unit: _Unit) -> Iterator[Sequence[str]]:
        if not unit.printed:
            unit.printed = True
            yield list(unit.print())

    def _message(self, message: DescriptorProto, scope: str) -> Iterator[str]:
        visibility = _VISIBILITIES.get(message.visibility, "")
        yield from self._body(f"{visibility}message {message.name}", message, scope)

    def _body(self, head: str, message: DescriptorProto, scope: str) -> Iterator[str]:
        full = joined(scope, message.name)
        lines = self._option_lines(message.options, full)
        lines += _ranges("reserved", _field_ranges(message.reserved_range))
        lines += self._reserved_names(message.reserved_name)
        for part in message.extension_range:
            options = _bracketed(self._options(part.options, full))
            lines += _ranges("extensions", _field_ranges([part]), options)
        for enum in message.enum_type:
            lines += self._enum(enum, full)
        fields = self._field_units(message, full)
        extensions = self._extension_units(message.extension, message.nested_type, full)
        for unit in self._ordered(message.nested_type, fields, extensions, full):
            lines += unit
        yield from _block(head, lines)

    def _field_units(self, message: DescriptorProto, full: str) -> Sequence[_Unit]:
        nested = {f".{full}.{part.name}": part for part in message.nested_type}
        units: list[_Unit] = []
        of_oneof: dict[int, _Unit] = {}
        members: dict[int, list[FieldDescriptorProto]] = {}
        for part in message.field:
            if part.HasField("oneof_index") and not part.proto3_optional:
                index = part.oneof_index
                if not 0 <= index < len(message.oneof_decl):
                    raise InvalidSchema(f"The oneof of {full}.{part.name} is not declared.")
                members.setdefault(index, []).append(part)
                unit = of_oneof.get(index)
                if unit is None:
                    unit = _Unit(
                        partial(
                            self._oneof, message.oneof_decl[index], members[index], nested, full
                        )
                    )
                    of_oneof[index] = unit
                    units.append(unit)
            else:
                unit = _Unit(partial(self._field, part, nested, full, member=False))
                units.append(unit)
            if part.type_name in nested and _declares(part, nested[part.type_name]):
                unit.owned.append(nested[part.type_name].name)
        return units

    def _oneof(
        self,
        oneof: OneofDescriptorProto,
        members: Sequence[FieldDescriptorProto],
        nested: Mapping[str, DescriptorProto],
        full: str,
    ) -> Iterator[str]:
        lines = self._option_lines(oneof.options, joined(full, oneof.name))
        for member in members:
            lines += self._field(member, nested, full, member=True)
        yield from _block(f"oneof {oneof.name}", lines)

    def _extension_units(
        self,
        extensions: Sequence[FieldDescriptorProto],
        messages: Sequence[DescriptorProto],
        scope: str,
    ) -> Sequence[_Unit]:
        nested = {f".{joined(scope, part.name)}": part for part in messages}
        units: list[_Unit] = []
        for _, group in groupby(extensions, key=lambda extension: extension.extendee):
            members = list(group)
            unit = _Unit(partial(self._extensions, members, nested, scope))
            unit.owned.extend(
                nested[extension.type_name].name
                for extension in members
                if extension.type == FieldDescriptorProto.TYPE_GROUP
                and extension.type_name in nested
            )
            units.append(unit)
        return units

    def _extensions(
        self,
        extensions: Sequence[FieldDescriptorProto],
        nested: Mapping[str, DescriptorProto],
        scope: str,
    ) -> Iterator[str]:
        first = extensions[0]
        lines: list[str] = []
        for extension in extensions:
            lines += self._field(extension, nested, scope, member=False)
        extendee = self._name(first.extendee, joined(scope, first.name))
        yield from _block(f"extend {extendee}", lines)

    def _field(
        self,
        part: FieldDescriptorProto,
        nested: Mapping[str, DescriptorProto],
        full: str,
        *,
        member: bool,
    ) -> Iterator[str]:
        user = joined(full, part.name)
        declared = nested.get(part.type_name)
        options = _bracketed([*self._special_options(part), *self._options(part.options, user)])
        if part.type == FieldDescriptorProto.TYPE_GROUP:
            if declared is None:
                raise InvalidSchema(f"The group {user} has no message of its own.")
            head = f"{self._label(part, member)}group {declared.name} = {part.number}{options}"
            yield from self._body(head, declared, full)
        elif declared is not None and declared.options.map_entry:
            if len(declared.field) != 2:
                raise InvalidSchema(f"The map {user} does not have one key and one value.")
            key, value = (self._type(kind, user) for kind in declared.field)
            yield f"map<{key}, {value}> {part.name} = {part.number}{options};"
        else:
            label = self._label(part, member)
            yield f"{label}{self._type(part, user)} {part.name} = {part.number}{options};"

    def _label(self, part: FieldDescriptorProto, member: bool) -> str:
        if member:
            return ""
        implicit = self._file.syntax in ("proto3", "editions")
        if implicit and part.label == FieldDescriptorProto.LABEL_OPTIONAL:
            return "optional " if part.proto3_optional else ""
        return _LABELS[part.label]

    def _type(self, part: FieldDescriptorProto, user: str) -> str:
        return _SCALAR_NAMES.get(part.type) or self._name(part.type_name, user)

    def _name(self, full: str, user: str, *, extension: bool = False) -> str:
        return self._namer(full.removeprefix("."), user, extension=extension)

    def _special_options(self, part: FieldDescriptorProto) -> Iterator[tuple[str, str]]:
        if part.HasField("default_value"):
            value = part.default_value
            if part.type == FieldDescriptorProto.TYPE_STRING:
                value = escaped(value.encode())
            elif part.type == FieldDescriptorProto.TYPE_BYTES:
                value = escaped(unescaped(f'"{value}"'))
            yield "default", value
        chosen = part.HasField("json_name") and part.json_name != json_name(part.name)
        if chosen and not part.HasField("extendee"):
            yield "json_name", escaped(part.json_name.encode())

    def _enum(self, enum: EnumDescriptorProto, scope: str) -> Iterator[str]:
        lines = self._option_lines(enum.options, joined(scope, enum.name))
        lines += _ranges("reserved", _enum_ranges(enum))
        lines += self._reserved_names(enum.reserved_name)
        for value in enum.value:
            options = _bracketed(self._options(value.options, joined(scope, value.name)))
            lines.append(f"{value.name} = {value.number}{options};")
        yield from _block(f"{_VISIBILITIES.get(enum.visibility, '')}enum {enum.name}", lines)

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        full = joined(self._file.package, service.name)
        lines = self._option_lines(service.options, full)
        for method in service.method:
            user = joined(full, method.name)
            sent = self._name(method.input_type, user)
            received = self._name(method.output_type, user)
            head = (
                f"rpc {method.name} ({'stream ' * method.client_streaming}{sent})"
                f" returns ({'stream ' * method.server_streaming}{received})"
            )
            inner = self._option_lines(method.options, user)
            lines += _block(head, inner) if inner else [f"{head};"]
        yield from _block(f"service {service.name}", lines)

    def _reserved_names(self, names: Sequence[str]) -> Sequence[str]:
        if not names:
            return ()
        plain = self._file.syntax == "editions"
        shown = ", ".join(name if plain else escaped(name.encode()) for name in names)
        return (f"reserved {shown};",)

    def _option_lines(self, options: Message, user: str) -> list[str]:
        return [f"option {name} = {value};" for name, value in self._options(options, user)]

    def _options(self, options: Message, user: str) -> Iterator[tuple[str, str]]:
        """Yield names and values of the options of an element, by their numbers."""
        if options.ByteSize():
            options = _decoded(options, self._pool, user)
        for part, value in options.ListFields():
            if part.name == "map_entry":
                continue
            name = part.name
            if part.is_extension:
                name = f"({self._name(part.full_name, user, extension=True)})"
            for item in value if part.is_repeated else (value,):
                if part.full_name.endswith(".uninterpreted_option"):
                    yield _uninterpreted(item)
                elif name == "features":
                    for feature, chosen in item.ListFields():
                        if not feature.is_extension:
                            yield f"features.{feature.name}", _value(feature, chosen, self._pool)
                else:
                    yield name, _value(part, item, self._pool)


def _decoded(options: Message, pool: DescriptorPool, user: str) -> Message:
    try:
        return with_extensions(options, pool) or options
    except DecodeError:
        raise InvalidSchema(f"The descriptor's options of {user} are malformed.") from None


def _bracketed(options: Iterable[tuple[str, str]]) -> str:
    shown = ", ".join(f"{name} = {value}" for name, value in options)
    return f" [{shown}]" if shown else ""


def _value(part: FieldDescriptor, value: Any, pool: DescriptorPool) -> str:
    if part.message_type is not None:
        shown = text_format.MessageToString(value, as_one_line=True, descriptor_pool=pool)
        return f"{{ {shown} }}" if shown else "{ }"
    if part.enum_type is not None:
        constant = part.enum_type.values_by_number.get(value)
        return constant.name if constant is not None else str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escaped(value.encode())
    return escaped(value) if isinstance(value, bytes) else str(value)


def _uninterpreted(option: Any) -> tuple[str, str]:
    name = ".".join(
        f"({part.name_part})" if part.is_extension else part.name_part for part in option.name
    )
    if option.HasField("aggregate_value"):
        return name, f"{{ {option.aggregate_value} }}"
    if option.HasField("string_value"):
        return name, escaped(option.string_value)
    for _, value in option.ListFields()[1:]:
        return name, str(value)
    raise InvalidSchema(f"The option {name} has no value.")


def _declares(part: FieldDescriptorProto, message: DescriptorProto) -> bool:
    return part.type == FieldDescriptorProto.TYPE_GROUP or message.options.map_entry


def _field_ranges(ranges: Sequence[Any]) -> Iterator[str]:
    for part in ranges:
        last = "max" if part.end in (FIELD_NUMBER_MAX + 1, INT32_MAX) else str(part.end - 1)
        yield str(part.start) if part.end == part.start + 1 else f"{part.start} to {last}"


def _enum_ranges(enum: EnumDescriptorProto) -> Iterator[str]:
    for part in enum.reserved_range:
        last = "max" if part.end == INT32_MAX else str(part.end)
        yield str(part.start) if part.end == part.start else f"{part.start} to {last}"


def _ranges(word: str, ranges: Iterator[str], options: str = "") -> Sequence[str]:
    shown = ", ".join(ranges)
    return (f"{word} {shown}{options};",) if shown else ()


def _block(head: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        yield f"{head} {{}}"
        return
    yield f"{head} {{"
    for line in lines:
        yield f"  {line}"
    yield "}"
