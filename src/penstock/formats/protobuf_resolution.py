"""Resolution of a writer's Protobuf messages with a reader's schema, by field numbers.

The wire format has the numbers of fields and four kinds of wire values, so a reader decodes the
data of a writer if the kinds of equal numbers agree. The writer's schema is used to check this:

    MESSAGE_MISSING     the writer's file has no message with the reader's full name
    FIELD_KIND_CHANGED  a field's kind changed to one with another encoding
    FIELD_LABEL_CHANGED a repeated field became a single one

Within a group of kinds a value is converted as Protobuf's own readers convert it: int32, uint32,
int64, uint64, bool and enums; sint32 and sint64; fixed32 and sfixed32; fixed64 and sfixed64; string
and bytes. A single field may become a repeated one.

Source: the Protocol Buffers guides "Encoding" and "Updating A Message Type".
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from penstock.formats.protobuf import message_in, pool_of
from penstock.formats.value_format import InvalidFormat

MAIN: Final = "schema.proto"
"""Name of a file that a registry returns without a name."""
_COMMON: Final = (
    "calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction",
    "interval", "latlng", "localized_text", "money", "month", "phone_number", "postal_address",
    "quaternion", "timeofday",
)  # fmt: skip
"""Files of Google's common types, which clients import without a reference."""
_GROUPS: Final[Mapping[int, str]] = {
    **dict.fromkeys(
        (
            FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_INT64,
            FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM,
        ),
        "varint",
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), "fixed64"),
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES), "bytes"),
}  # fmt: skip
"""Groups of kinds with the same encoding; each other kind is a group of its own."""
_KINDS: Final[Mapping[int, str]] = {
    int(number): name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def linked(text: str, parts: Sequence[tuple[str, str]]) -> descriptor_pb2.FileDescriptorSet:
    """Return the files of a schema: its imports, and the schema itself as the last one.

    Args:
        text: the schema as a FileDescriptorProto in base64.
        parts: import paths and texts of referenced schemas; each precedes those that import it.

    Raises:
        InvalidFormat: a text is not a descriptor.
    """
    files = descriptor_pb2.FileDescriptorSet()
    for name, content in (*parts, (MAIN, text)):
        file = files.file.add()
        try:
            file.ParseFromString(base64.b64decode(content, validate=True))
        except (binascii.Error, DecodeError) as error:
            raise InvalidFormat("schema", name, "is not a Protobuf descriptor in base64") from error
        file.name = name
    known = {file.name for file in files.file}
    imports = {name for file in files.file for name in file.dependency} - known
    common = list(_common_files(imports))
    return descriptor_pb2.FileDescriptorSet(file=[*common, *files.file])


def _common_files(imports: set[str]) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    for short in _COMMON:
        if f"google/type/{short}.proto" in imports:
            module = importlib.import_module(f"google.type.{short}_pb2")
            yield descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def message_of_schema(
    text: str, parts: Sequence[tuple[str, str]], name: str | None, where: str
) -> Descriptor:
    """Return a message of a registered schema; without a name, its only message.

    Raises:
        InvalidFormat: the schema cannot be loaded, or has no such message.
    """
    files = linked(text, parts)
    try:
        pool = pool_of(files)
    except TypeError as error:
        raise InvalidFormat("schema", where, f"cannot be loaded: {error}") from error
    return message_in(pool, files, name, where)


def message_at(text: str, parts: Sequence[tuple[str, str]], path: Sequence[int]) -> str:
    """Return the full name of the message at the positions `path` in a registered schema.

    Raises:
        InvalidFormat: the schema has no such message.
    """
    file = linked(text, parts).file[-1]
    messages, names = file.message_type, [file.package] if file.package else []
    for index in path:
        if not 0 <= index < len(messages):
            raise InvalidFormat("message", str(list(path)), "the schema has no such message")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def check_reads(reader: Descriptor, writer: Descriptor) -> None:
    """Check that a reader's message decodes the data of a writer's message.

    Raises:
        InvalidFormat: a field does not; the error names its path and the violated rule.
    """
    pending: list[tuple[Descriptor, Descriptor, str]] = [(reader, writer, "")]
    seen = set()
    while pending:
        ours, theirs, where = pending.pop()
        if (ours.full_name, theirs.full_name) in seen:
            continue
        seen.add((ours.full_name, theirs.full_name))
        for field in ours.fields:
            other = theirs.fields_by_number.get(field.number)
            if other is None:
                continue
            path = f"{where}.{field.name}" if where else field.name
            _check_field(field, other, path)
            if field.message_type is not None and other.message_type is not None:
                pending.append((field.message_type, other.message_type, path))


def _kind(field: FieldDescriptor) -> str:
    return _KINDS[field.type]


def _check_field(reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> None:
    if _GROUPS.get(reader.type, _kind(reader)) != _GROUPS.get(writer.type, _kind(writer)):
        raise InvalidFormat(
            "schema",
            f"field {path}",
            f"number {writer.number} is {_kind(writer)} for the writer, but {_kind(reader)} for the"
            " reader (FIELD_KIND_CHANGED)",
        )
    if writer.is_repeated and not reader.is_repeated:
        raise InvalidFormat(
            "schema",
            f"field {path}",
            f"number {writer.number} is repeated for the writer, but not for the reader"
            " (FIELD_LABEL_CHANGED)",
        )
