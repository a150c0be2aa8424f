"""Random changes of Protobuf files, as users make them between two versions of a schema."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

OPTIONAL: Final = FieldDescriptorProto.LABEL_OPTIONAL
REQUIRED: Final = FieldDescriptorProto.LABEL_REQUIRED
REPEATED: Final = FieldDescriptorProto.LABEL_REPEATED
MESSAGE: Final = FieldDescriptorProto.TYPE_MESSAGE
GROUP: Final = FieldDescriptorProto.TYPE_GROUP
ENUM: Final = FieldDescriptorProto.TYPE_ENUM
SCALARS: Final = [
    kind for kind in FieldDescriptorProto.Type.values() if kind not in (MESSAGE, GROUP, ENUM)
]
KEYS: Final = [FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_STRING]


class Change:
    """Random change of a file. Many changes give an invalid file; the caller tries again."""

    def __init__(self, seed: int, file: FileDescriptorProto) -> None:
        self.random = random.Random(seed)
        self.file = file
        self._prefix = f".{file.package}." if file.package else "."
        self.kinds: list[str] = []

    def apply(self) -> None:
        changes: Sequence[Callable[[], Any]] = (
            self.add_field,
            self.remove_field,
            self.change_type,
            self.change_type,
            self.change_label,
            self.rename_field,
            self.renumber_field,
            self.swap_message_type,
            self.join_oneof,
            self.join_oneof,
            self.leave_oneof,
            self.drop_oneof,
            self.remove_oneof_field,
            self.add_message,
            self.remove_message,
            self.rename_message,
            self.change_map,
            self.change_constants,
            self.remove_enum,
            self.reserve,
            self.change_package,
            self.change_method,
            self.change_default,
        )
        for _ in range(self.random.choice((1, 1, 2, 3))):
            change = self.random.choice(changes)
            self.kinds.append(change.__name__)
            change()
        self._remove_orphans()

    def _remove_orphans(self) -> None:
        """Remove entries of maps that are gone, and oneofs without fields."""
        for full, message in self.messages():
            used = {field.type_name for field in message.field}
            remove(message.nested_type, partial(_is_orphan, full, used))

    def messages(self) -> list[tuple[str, DescriptorProto]]:
        """Return all messages that the source declares as such, with their full names."""
        found = []
        waiting = [(self._prefix + message.name, message) for message in self.file.message_type]
        while waiting:
            full, message = waiting.pop()
            found.append((full, message))
            waiting.extend(
                (f"{full}.{nested.name}", nested)
                for nested in message.nested_type
                if not nested.options.map_entry
            )
        return found

    def enums(self) -> list[EnumDescriptorProto]:
        nested = [enum for _, message in self.messages() for enum in message.enum_type]
        return [*self.file.enum_type, *nested]

    def field(self, *, scalar: bool = False) -> tuple[DescriptorProto, FieldDescriptorProto] | None:
        fields = [
            (message, field)
            for _, message in self.messages()
            for field in message.field
            if not scalar or field.type in SCALARS
        ]
        return self.random.choice(fields) if fields else None

    def add_field(self) -> None:
        _, message = self.random.choice(self.messages())
        field = message.field.add(
            name=f"added_{self.random.randrange(1000)}",
            number=self.random.randrange(700, 900),
            type=self.random.choice(SCALARS),
            label=self.random.choice((OPTIONAL, OPTIONAL, REPEATED, REQUIRED)),
        )
        if self.file.syntax != "" and field.label == REQUIRED:
            field.label = OPTIONAL
        if message.oneof_decl and field.label == OPTIONAL and self.random.random() < 0.5:
            field.oneof_index = self.random.randrange(len(message.oneof_decl))

    def remove_field(self) -> None:
        found = self.field()
        if found:
            message, field = found
            number, name = field.number, field.name
            remove(message.field, lambda part: part.number == number)
            if self.random.random() < 0.4:
                message.reserved_range.add(start=number, end=number + 1)
                message.reserved_name.append(name)

    def change_type(self) -> None:
        found = self.field(scalar=self.random.random() < 0.9)
        if found:
            _, field = found
            field.ClearField("default_value")
            field.ClearField("type_name")
            field.options.ClearField("packed")
            field.type = self.random.choice(SCALARS)
            enums = [self._prefix + enum.name for enum in self.file.enum_type]
            if enums and self.random.random() < 0.3:
                field.type, field.type_name = ENUM, self.random.choice(enums)

    def change_label(self) -> None:
        found = self.field()
        if found:
            _, field = found
            field.ClearField("default_value")
            field.ClearField("oneof_index")
            field.options.ClearField("packed")
            field.ClearField("proto3_optional")
            labels = (OPTIONAL, REPEATED) if self.file.syntax else (OPTIONAL, REPEATED, REQUIRED)
            field.label = self.random.choice(labels)

    def rename_field(self) -> None:
        found = self.field()
        if found:
            _, field = found
            field.name = f"renamed_{self.random.randrange(1000)}"
            field.ClearField("json_name")

    def renumber_field(self) -> None:
        found = self.field()
        if found:
            found[1].number = self.random.randrange(900, 990)

    def swap_message_type(self) -> None:
        names = [name for name, _ in self.messages()]
        fields = [
            field
            for _, message in self.messages()
            for field in message.field
            if field.type == MESSAGE and field.type_name in names
        ]
        if fields:
            self.random.choice(fields).type_name = self.random.choice(names)

    def join_oneof(self) -> None:
        _, message = self.random.choice(self.messages())
        fields = [
            field
            for field in message.field
            if field.label == OPTIONAL and field.type != GROUP and not field.default_value
        ]
        if not fields:
            return
        chosen = self.random.sample(fields, min(len(fields), self.random.choice((1, 1, 2, 3))))
        synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
        existing = [index for index in range(len(message.oneof_decl)) if index not in synthetic]
        if existing and self.random.random() < 0.5:
            index = self.random.choice(existing)
        else:
            index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"joined_{self.random.randrange(1000)}")
        for field in chosen:
            field.ClearField("proto3_optional")
            field.oneof_index = index

    def leave_oneof(self) -> None:
        fields = [
            field
            for _, message in self.messages()
            for field in message.field
            if field.HasField("oneof_index")
        ]
        if fields:
            field = self.random.choice(fields)
            field.ClearField("oneof_index")
            field.ClearField("proto3_optional")

    def drop_oneof(self) -> None:
        found = [message for _, message in self.messages() if message.oneof_decl]
        if found:
            message = self.random.choice(found)
            index = self.random.randrange(len(message.oneof_decl))
            for field in message.field:
                if field.HasField("oneof_index") and field.oneof_index == index:
                    field.ClearField("oneof_index")
                    field.ClearField("proto3_optional")

    def remove_oneof_field(self) -> None:
        fields = [
            (message, field.number)
            for _, message in self.messages()
            for field in message.field
            if field.HasField("oneof_index") and not field.proto3_optional
        ]
        if fields:
            message, number = self.random.choice(fields)
            remove(message.field, lambda part: part.number == number)

    def add_message(self) -> None:
        messages = self.file.message_type
        if self.random.random() < 0.5:
            messages = self.random.choice(self.messages())[1].nested_type
        added = messages.add(name=f"Added{self.random.randrange(1000)}")
        added.field.add(
            name="value", number=1, type=FieldDescriptorProto.TYPE_INT32, label=OPTIONAL
        )

    def remove_message(self) -> None:
        full, _ = self.random.choice(self.messages())
        for name, message in self.messages():
            remove(message.field, lambda field: f"{field.type_name}.".startswith(f"{full}."))
            remove(message.nested_type, partial(_has_name, full, name))
        remove(self.file.message_type, lambda message: self._prefix + message.name == full)

    def rename_message(self) -> None:
        full, message = self.random.choice(self.messages())
        message.name = f"Renamed{self.random.randrange(1000)}"
        renamed = f"{full.rpartition('.')[0]}.{message.name}"
        for _, user in self.messages():
            for field in (
                *user.field,
                *(part for entry in user.nested_type for part in entry.field),
            ):
                if f"{field.type_name}.".startswith(f"{full}."):
                    field.type_name = renamed + field.type_name.removeprefix(full)

    def change_map(self) -> None:
        entries = [
            entry
            for _, message in self.messages()
            for entry in message.nested_type
            if entry.options.map_entry
        ]
        if entries:
            part = self.random.choice(self.random.choice(entries).field)
            part.ClearField("type_name")
            part.type = self.random.choice(KEYS if part.name == "key" else SCALARS)

    def change_constants(self) -> None:
        enums = self.enums()
        if enums:
            enum = self.random.choice(enums)
            if self.random.random() < 0.5:
                number = self.random.randrange(60, 90)
                enum.value.add(name=f"{enum.name.upper()}_ADDED{number}", number=number)
            elif len(enum.value) > 1 and not enum.options.allow_alias:
                del enum.value[-1]

    def remove_enum(self) -> None:
        if self.file.enum_type:
            enum = self.random.choice(self.file.enum_type)
            full = self._prefix + enum.name
            for _, message in self.messages():
                for field in message.field:
                    if field.type_name == full:
                        field.ClearField("type_name")
                        field.ClearField("default_value")
                        field.type = FieldDescriptorProto.TYPE_INT32
            name = enum.name
            remove(self.file.enum_type, lambda part: part.name == name)

    def reserve(self) -> None:
        _, message = self.random.choice(self.messages())
        if message.reserved_range and self.random.random() < 0.7:
            del message.reserved_range[:]
        else:
            message.reserved_range.add(start=960, end=970)

    def change_package(self) -> None:
        if self.random.random() < 0.3:
            old, self._prefix = self._prefix, f".{self.file.package}x."
            self.file.package += "x"
            for _, message in self.messages():
                for field in (
                    *message.field,
                    *message.extension,
                    *(part for entry in message.nested_type for part in entry.field),
                ):
                    if field.type_name.startswith(old):
                        field.type_name = self._prefix + field.type_name.removeprefix(old)
                    if field.extendee.startswith(old):
                        field.extendee = self._prefix + field.extendee.removeprefix(old)
            for service in self.file.service:
                for method in service.method:
                    method.input_type = self._prefix + method.input_type.removeprefix(old)
                    method.output_type = self._prefix + method.output_type.removeprefix(old)

    def change_method(self) -> None:
        if self.file.service:
            method = self.file.service[0].method[0]
            method.client_streaming = not method.client_streaming

    def change_default(self) -> None:
        fields = [
            field
            for _, message in self.messages()
            for field in message.field
            if field.default_value
        ]
        if fields:
            self.random.choice(fields).ClearField("default_value")


def _is_orphan(full: str, used: set[str], nested: DescriptorProto) -> bool:
    return nested.options.map_entry and f"{full}.{nested.name}" not in used


def _has_name(full: str, scope: str, nested: DescriptorProto) -> bool:
    return f"{scope}.{nested.name}" == full


def remove(elements: Any, condition: Callable[[Any], bool]) -> None:
    indexes = [index for index, element in enumerate(elements) if condition(element)]
    for index in reversed(indexes):
        del elements[index]
