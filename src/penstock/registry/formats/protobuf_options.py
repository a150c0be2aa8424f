"""Values in Protobuf source texts: options and defaults.

Options that Protobuf declares are set in the descriptors. Custom options are set if a visible file
declares their extension; otherwise they stay in `uninterpreted_option`.

Source: `descriptor.proto`; the text format's specification.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf import text_encoding, text_format
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FieldOptions,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.registry.formats.protobuf_descriptors import OptionUse
from penstock.registry.formats.protobuf_source import unescaped
from penstock.registry.formats.protobuf_symbols import Scope, joined, messages_of
from penstock.registry.formats.schema import InvalidSchema

_INTEGER_BITS: Final[Mapping[int, tuple[bool, int]]] = {
    FieldDescriptorProto.TYPE_INT32: (True, 31),
    FieldDescriptorProto.TYPE_SINT32: (True, 31),
    FieldDescriptorProto.TYPE_SFIXED32: (True, 31),
    FieldDescriptorProto.TYPE_INT64: (True, 63),
    FieldDescriptorProto.TYPE_SINT64: (True, 63),
    FieldDescriptorProto.TYPE_SFIXED64: (True, 63),
    FieldDescriptorProto.TYPE_UINT32: (False, 32),
    FieldDescriptorProto.TYPE_FIXED32: (False, 32),
    FieldDescriptorProto.TYPE_UINT64: (False, 64),
    FieldDescriptorProto.TYPE_FIXED64: (False, 64),
}
"""Whether a type is signed, and the bits of its greatest value."""
_LITERAL: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')


def set_declared_options(options: Sequence[OptionUse]) -> None:
    """Set the options that Protobuf itself declares.

    Raises:
        InvalidSchema: an option does not exist, has a wrong value, or is set twice.
    """
    for option in options:
        if not option.is_custom:
            _set_option(option, option.target, option.parts)
    for group in _by_target(options):
        _drop_source_options(group[0].target)


def set_custom_options(options: Sequence[OptionUse], pool: DescriptorPool, scope: Scope) -> None:
    """Set the options whose extensions are in `scope`; keep the others as they are written.

    Raises:
        InvalidSchema: an option has a wrong value, or is set twice.
    """
    for group in _by_target(options):
        target = group[0].target
        extended = with_extensions(target, pool)
        unknown: list[OptionUse] = []
        for option in group:
            parts = _resolved_parts(option, scope)
            if parts is None or extended is None:
                unknown.append(option)
            else:
                _set_option(option, extended, parts)
        if extended is not None:
            _drop_source_options(extended)
            target.ParseFromString(extended.SerializePartialToString(deterministic=True))
        for option in unknown:
            _keep_option(option)


def with_extensions(target: Message, pool: DescriptorPool) -> Message | None:
    """Return a copy of an options message that knows a pool's extensions.

    None means that the pool lacks `descriptor.proto`.

    Raises:
        DecodeError: an extension's value is malformed.
    """
    try:
        kind = GetMessageClass(pool.FindMessageTypeByName(target.DESCRIPTOR.full_name))
    except KeyError:
        return None
    return kind.FromString(target.SerializeToString())


def _by_target(options: Sequence[OptionUse]) -> Iterator[Sequence[OptionUse]]:
    groups: dict[int, list[OptionUse]] = {}
    for option in options:
        groups.setdefault(id(option.target), []).append(option)
    yield from groups.values()


def spell_defaults(file: FileDescriptorProto) -> None:
    """Convert the defaults of a source text to the spelling of descriptors."""
    fields = [(extension, joined(file.package, extension.name)) for extension in file.extension]
    for full, message in messages_of(file):
        fields += (
            (field, f"{full}.{field.name}") for field in (*message.field, *message.extension)
        )
    for field, full in fields:
        if field.HasField("default_value"):
            field.default_value = _default(field, full)


def _default(field: FieldDescriptorProto, user: str) -> str:
    """Return a field's default in the spelling of descriptors."""
    written = field.default_value
    value: str | None = None
    if field.type in _INTEGER_BITS:
        value = _integer_default(written, *_INTEGER_BITS[field.type])
    elif field.type in (FieldDescriptorProto.TYPE_FLOAT, FieldDescriptorProto.TYPE_DOUBLE):
        value = _float_default(written, single=field.type == FieldDescriptorProto.TYPE_FLOAT)
    elif field.type == FieldDescriptorProto.TYPE_BOOL:
        value = written if written in ("true", "false") else None
    elif field.type == FieldDescriptorProto.TYPE_ENUM:
        value = written if written.isidentifier() else None
    elif written.startswith('"') and field.type == FieldDescriptorProto.TYPE_STRING:
        value = _utf8(_joined_literals(written))
    elif written.startswith('"') and field.type == FieldDescriptorProto.TYPE_BYTES:
        value = text_encoding.CEscape(_joined_literals(written), as_utf8=False)
    if value is None:
        raise InvalidSchema(f"The default {written[:40]} does not fit the type of {user}.")
    return value


def _integer_default(written: str, signed: bool, bits: int) -> str | None:
    digits = written.removeprefix("-")
    if not digits.isdecimal() or (digits is not written and not signed):
        return None
    number = int(written)
    return str(number) if -(1 << bits) <= number < 1 << bits else None


def _float_default(written: str, *, single: bool) -> str | None:
    try:
        number = float(written)
    except ValueError:
        return None
    if number != number:
        return "nan"
    if single:
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = float("inf") if number > 0 else float("-inf")
    for digits in (6, 9) if single else (15, 17):
        short = f"{number:.{digits}g}"
        if float(short) == number or (
            single and struct.pack("<f", float(short)) == struct.pack("<f", number)
        ):
            return short
    return short


def _joined_literals(written: str) -> bytes:
    return b"".join(map(unescaped, _LITERAL.findall(written)))


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _resolved_parts(option: OptionUse, scope: Scope) -> tuple[tuple[str, bool], ...] | None:
    """Return an option's name with full names of extensions; None if one is not visible."""
    parts: list[tuple[str, bool]] = []
    for name, is_extension in option.parts:
        full = scope.find(name, option.scope, ("extension",)) if is_extension else name
        if full is None:
            return None
        parts.append((full, is_extension))
    return tuple(parts)


def _set_option(option: OptionUse, target: Message, parts: tuple[tuple[str, bool], ...]) -> None:
    shown = ".".join(f"({name})" if extension else name for name, extension in option.parts)
    if option.parts[0][0] == "uninterpreted_option" or shown == "map_entry":
        raise InvalidSchema(f"Line {option.line}: the option {shown} cannot be set.")
    if _is_set(target, parts):
        raise InvalidSchema(f"Line {option.line}: the option {shown} is set a second time.")
    names = [f"[{name}]" if extension else name for name, extension in parts]
    text = " { ".join(names) + f": {option.value}" + " }" * (len(names) - 1)
    try:
        text_format.Merge(text, target)
    except (text_format.ParseError, ValueError, TypeError) as error:
        reason = str(error).rpartition(" : ")[2]
        raise InvalidSchema(
            f"Line {option.line}: the option {shown} is invalid: {reason}"
        ) from None


def _drop_source_options(message: Any) -> None:
    """Clear options that exist in source texts only, as protoc does."""
    for field, value in message.ListFields():
        if field.GetOptions().retention == FieldOptions.RETENTION_SOURCE:
            if field.is_extension:
                message.ClearExtension(field)
            else:
                message.ClearField(field.name)
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        else:
            for part in value if field.is_repeated else (value,):
                _drop_source_options(part)


def _is_set(message: Message, parts: Sequence[tuple[str, bool]]) -> bool:
    """Return whether an option of this name was set, and can be set only once."""
    for name, is_extension in parts:
        found = [
            (field, value)
            for field, value in message.ListFields()
            if field.is_extension == is_extension
            and name == (field.full_name if is_extension else field.name)
        ]
        if not found or found[0][0].is_repeated:
            return False
        message = found[0][1]
    return True


def _keep_option(option: OptionUse) -> None:
    """Add an option without a visible declaration to `uninterpreted_option`."""
    target: Any = option.target
    kept = target.uninterpreted_option.add()
    for name, is_extension in option.parts:
        kept.name.add(name_part=name, is_extension=is_extension)
    value = option.value
    digits = value.removeprefix("-")
    if value.startswith("{"):
        kept.aggregate_value = value[1:-1].strip()
    elif value.startswith('"'):
        kept.string_value = _joined_literals(value)
    elif digits.isdecimal() and int(value) in range(1 << 64):
        kept.positive_int_value = int(value)
    elif digits.isdecimal() and int(value) in range(-(1 << 63), 0):
        kept.negative_int_value = int(value)
    elif value[0].isalpha() or value[0] == "_":
        kept.identifier_value = value
    else:
        kept.double_value = float(value)
