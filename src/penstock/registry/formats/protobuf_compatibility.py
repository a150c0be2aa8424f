"""Rules for reading Protobuf data that another schema wrote.

Fields are compared by number, messages by name. The rules are those that Confluent documents for
its registry, with its names:

| rule                            | the reader                                                   |
|---------------------------------|--------------------------------------------------------------|
| PACKAGE_CHANGED                 | has another package                                          |
| MESSAGE_REMOVED                 | lacks a message of the writer                                |
| FIELD_KIND_CHANGED              | has a message, map, group or scalar where the writer has     |
|                                 | another one of them                                          |
| FIELD_SCALAR_KIND_CHANGED       | has a scalar type with another encoding                      |
| FIELD_NAMED_TYPE_CHANGED        | has a message of another name                                |
| FIELD_NUMERIC_LABEL_CHANGED     | has one number where the writer has a list, or the reverse   |
| REQUIRED_FIELD_ADDED            | requires a field that the writer may omit                    |
| REQUIRED_FIELD_REMOVED          | lacks a field that the writer requires                       |
| ONEOF_FIELD_REMOVED             | lacks a field of the writer in a oneof that both have        |
| MULTIPLE_FIELDS_MOVED_TO_ONEOF  | allows one of several fields that the writer can set at once |
| FIELD_MOVED_TO_EXISTING_ONEOF   | has such a field in a oneof that both have                   |

Other changes are compatible: added and removed fields, changed names of fields, enums and their
constants, reserved ranges, services, and lists of strings, bytes or messages instead of one value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from google.protobuf.descriptor import (
    Descriptor,
    FieldDescriptor,
    FileDescriptor,
    OneofDescriptor,
)
from google.protobuf.descriptor_pb2 import DescriptorProto

from penstock.base.errors import BugError
from penstock.registry.formats.schema import (
    COMPARISONS_MAX,
    PROBLEMS_MAX,
    Incompatibility,
    InvalidSchema,
)

Kind = Literal["scalar", "message", "map", "group"]

_ENCODINGS: Final[Mapping[int, str]] = {
    FieldDescriptor.TYPE_INT32: "varint",
    FieldDescriptor.TYPE_INT64: "varint",
    FieldDescriptor.TYPE_UINT32: "varint",
    FieldDescriptor.TYPE_UINT64: "varint",
    FieldDescriptor.TYPE_BOOL: "varint",
    FieldDescriptor.TYPE_ENUM: "varint",
    FieldDescriptor.TYPE_SINT32: "zigzag varint",
    FieldDescriptor.TYPE_SINT64: "zigzag varint",
    FieldDescriptor.TYPE_FIXED32: "fixed 32-bit",
    FieldDescriptor.TYPE_SFIXED32: "fixed 32-bit",
    FieldDescriptor.TYPE_FIXED64: "fixed 64-bit",
    FieldDescriptor.TYPE_SFIXED64: "fixed 64-bit",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "bytes",
    FieldDescriptor.TYPE_BYTES: "bytes",
}
"""Encodings of scalar types. Types with the same encoding can read each other."""
_TYPE_NAMES: Final[Mapping[int, str]] = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def check_reads(reader: FileDescriptor, writer: FileDescriptor) -> Sequence[Incompatibility]:
    """Return why data of `writer` cannot be decoded with `reader`.

    Raises:
        InvalidSchema: the check would compare more than `COMPARISONS_MAX` pairs.
    """
    comparison = _Comparison(reader, writer)
    comparison.run()
    return comparison.problems


def real_oneofs(message: Descriptor) -> Sequence[OneofDescriptor]:
    """Return the oneofs that the source declares, without those of proto3's `optional` fields."""
    if not any(len(oneof.fields) == 1 for oneof in message.oneofs):
        return message.oneofs
    proto = DescriptorProto()
    message.CopyToProto(proto)
    synthetic = {field.oneof_index for field in proto.field if field.proto3_optional}
    return [oneof for oneof in message.oneofs if oneof.index not in synthetic]


class _Comparison:
    def __init__(self, reader: FileDescriptor, writer: FileDescriptor) -> None:
        self.problems: list[Incompatibility] = []
        self._reader = reader
        self._writer = writer
        self._pairs = 0
        self._seen: set[tuple[str, str]] = set()
        self._waiting: deque[tuple[Descriptor, Descriptor]] = deque()

    def run(self) -> None:
        reader, writer = self._reader, self._writer
        if reader.package != writer.package:
            self._add(
                "PACKAGE_CHANGED",
                reader.package,
                f"The reader's package is {reader.package or '(none)'}, the writer's is"
                f" {writer.package or '(none)'}.",
            )
        self._messages(reader.message_types_by_name, writer.message_types_by_name)
        self._extensions()
        while self._waiting and len(self.problems) < PROBLEMS_MAX:
            self._message(*self._waiting.popleft())

    def _add(self, rule: str, path: str, message: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Incompatibility(rule=rule, path=path, message=message))

    def _count(self) -> None:
        self._pairs += 1
        if self._pairs > COMPARISONS_MAX:
            raise InvalidSchema(
                f"The check compares more than {COMPARISONS_MAX} pairs of types and fields. Split"
                " the schema."
            )

    def _enqueue(self, reader: Descriptor, writer: Descriptor) -> None:
        pair = reader.full_name, writer.full_name
        if pair not in self._seen:
            self._seen.add(pair)
            self._waiting.append((reader, writer))

    def _messages(self, reader: Mapping[str, Descriptor], writer: Mapping[str, Descriptor]) -> None:
        for name, written in writer.items():
            if written.GetOptions().map_entry or _is_group(written):
                continue
            if name in reader:
                self._enqueue(reader[name], written)
            else:
                self._add(
                    "MESSAGE_REMOVED",
                    written.full_name,
                    f"The writer has the message {written.full_name}, the reader does not.",
                )

    def _message(self, reader: Descriptor, writer: Descriptor) -> None:
        self._count()
        reads = {field.number: field for field in reader.fields}
        writes = {field.number: field for field in writer.fields}
        for number, written in writes.items():
            read = reads.get(number)
            if read is not None:
                self._field(read, written)
            elif written.is_required:
                self._add(
                    "REQUIRED_FIELD_REMOVED",
                    written.full_name,
                    f"The writer requires the field {_shown(written)}, the reader does not have"
                    " it.",
                )
        for number, read in reads.items():
            if number not in writes and read.is_required:
                self._add(
                    "REQUIRED_FIELD_ADDED",
                    read.full_name,
                    f"The reader requires the field {_shown(read)}, the writer does not have it.",
                )
        self._oneofs(reader, writer)
        self._messages(reader.nested_types_by_name, writer.nested_types_by_name)

    def _field(self, read: FieldDescriptor, written: FieldDescriptor) -> None:
        self._count()
        if read.is_required and not written.is_required:
            self._add(
                "REQUIRED_FIELD_ADDED",
                read.full_name,
                f"The reader requires the field {_shown(read)}, the writer may omit"
                f" {_shown(written)}.",
            )
        self._type(read, read, written)

    def _type(
        self, field: FieldDescriptor, read: FieldDescriptor, written: FieldDescriptor
    ) -> None:
        """Compare a field's types, or those of the keys or the values of the map `field`."""
        kind, other = _kind(read), _kind(written)
        if kind != other:
            self._differ("FIELD_KIND_CHANGED", field, read, written, f"a {kind}", f"a {other}")
        elif kind == "scalar":
            self._scalar(field, read, written)
        elif kind == "map":
            parts = zip(_message_type(read).fields, _message_type(written).fields, strict=True)
            for read_part, written_part in parts:
                self._type(read, read_part, written_part)
        else:
            self._named(field, read, written)

    def _scalar(
        self, field: FieldDescriptor, read: FieldDescriptor, written: FieldDescriptor
    ) -> None:
        encoding, other = _ENCODINGS[read.type], _ENCODINGS[written.type]
        if read.is_repeated != written.is_repeated and {encoding, other} != {"bytes"}:
            self._differ(
                "FIELD_NUMERIC_LABEL_CHANGED", field, read, written, _label(read), _label(written)
            )
        if encoding != other:
            self._differ(
                "FIELD_SCALAR_KIND_CHANGED", field, read, written,
                f"{_TYPE_NAMES[read.type]} (encoded as {encoding})",
                f"{_TYPE_NAMES[written.type]} (encoded as {other})",
            )  # fmt: skip

    def _named(
        self, field: FieldDescriptor, read: FieldDescriptor, written: FieldDescriptor
    ) -> None:
        reader, writer = _message_type(read), _message_type(written)
        if self._is_same_name(reader, writer):
            self._enqueue(reader, writer)
        else:
            self._differ(
                "FIELD_NAMED_TYPE_CHANGED", field, read, written, reader.full_name, writer.full_name
            )

    def _is_same_name(self, reader: Descriptor, writer: Descriptor) -> bool:
        """Compare names; a changed package is reported once, not for each field."""
        if reader.full_name == writer.full_name:
            return True
        if reader.file.name != self._reader.name or writer.file.name != self._writer.name:
            return False
        return _local_name(reader) == _local_name(writer)

    def _differ(
        self,
        rule: str,
        field: FieldDescriptor,
        read: FieldDescriptor,
        written: FieldDescriptor,
        reader: str,
        writer: str,
    ) -> None:
        part = "" if read is field else f"the {read.name} of "
        self._add(
            rule,
            field.full_name,
            f"The reader has {part}{_shown(field)} as {reader}, the writer has"
            f" {written.full_name if read is field else 'it'} as {writer}.",
        )

    def _oneofs(self, reader: Descriptor, writer: Descriptor) -> None:
        if not (reader.oneofs or writer.oneofs):
            return
        reads = {oneof.name: oneof for oneof in real_oneofs(reader)}
        writes = {oneof.name: oneof for oneof in real_oneofs(writer)}
        for name, written in writes.items():
            if name not in reads:
                continue
            kept = {field.number for field in reads[name].fields}
            for field in written.fields:
                if field.number not in kept:
                    self._add(
                        "ONEOF_FIELD_REMOVED",
                        f"{reader.full_name}.{field.name}",
                        f"The writer has {_shown(field)} in the oneof {name}, the reader does not.",
                    )
        groups = {
            field.number: f"oneof {name}"
            for name, oneof in writes.items()
            for field in oneof.fields
        }
        written_numbers = {field.number for field in writer.fields}
        for name, read in reads.items():
            self._joined(read, name in writes, groups, written_numbers)

    def _joined(
        self,
        oneof: OneofDescriptor,
        existing: bool,
        groups: Mapping[int, str],
        written: set[int],
    ) -> None:
        """Report a oneof of the reader that excludes fields which the writer can set together."""
        names = {
            groups.get(field.number, field.name): field
            for field in oneof.fields
            if field.number in written
        }
        if existing:
            names.pop(f"oneof {oneof.name}", None)
        if len(names) + existing < 2:
            return
        joined = ", ".join(names)
        rule = "FIELD_MOVED_TO_EXISTING_ONEOF" if existing else "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
        self._add(
            rule,
            oneof.full_name,
            f"The reader has {joined} in the oneof {oneof.full_name}, the writer can set"
            f" {'them besides its fields' if existing else 'several of them'}.",
        )

    def _extensions(self) -> None:
        reads = {_key(field): field for field in _extensions(self._reader)}
        for field in _extensions(self._writer):
            read = reads.get(_key(field))
            if read is not None:
                self._field(read, field)


def _extensions(file: FileDescriptor) -> Iterator[FieldDescriptor]:
    yield from file.extensions_by_name.values()
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        yield from message.extensions
        waiting.extend(message.nested_types)


def _kind(field: FieldDescriptor) -> Kind:
    if field.type == FieldDescriptor.TYPE_GROUP:
        return "group"
    if field.message_type is None:
        return "scalar"
    return "map" if field.message_type.GetOptions().map_entry else "message"


def _is_group(message: Descriptor) -> bool:
    """Return whether a group of proto2 declares a nested message."""
    parent = message.containing_type
    if parent is None:
        return False
    field = parent.fields_by_name.get(message.name.lower())
    return (
        field is not None
        and field.type == FieldDescriptor.TYPE_GROUP
        and _message_type(field).full_name == message.full_name
    )


def _message_type(field: FieldDescriptor) -> Descriptor:
    message = field.message_type
    if message is None:
        raise BugError(f"The field {field.full_name} has no message type.")
    return message


def _key(extension: FieldDescriptor) -> tuple[str, int]:
    extended = extension.containing_type
    return extended.full_name if extended is not None else "", extension.number


def _local_name(message: Descriptor) -> str:
    return message.full_name.removeprefix(f"{message.file.package}.")


def _label(field: FieldDescriptor) -> str:
    return "a list" if field.is_repeated else "one number"


def _shown(field: FieldDescriptor) -> str:
    return f"{field.full_name} (number {field.number})"
