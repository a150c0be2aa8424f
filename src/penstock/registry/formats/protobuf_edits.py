"""Edits of a Protobuf schema that resolve incompatibilities with another schema.

| rule                    | edit if the schema reads        | edit if the schema writes          |
|-------------------------|---------------------------------|------------------------------------|
| PACKAGE_CHANGED         | take the other package          | take the other package             |
| MESSAGE_REMOVED         | restore the message             | remove the message and its uses    |
| ..._KIND_CHANGED,       | give the field a new number and reserve the old one; restore the     |
| ..._TYPE_CHANGED,       | type instead if the field is required or in a oneof on either side   |
| ..._LABEL_CHANGED       |                                 |                                    |
| REQUIRED_FIELD_ADDED    | make the field optional         | make it required, or restore it    |
| REQUIRED_FIELD_REMOVED  | restore the field               | make the field optional            |
| ONEOF_FIELD_REMOVED     | move it to the oneof or restore | move it out of the oneof           |
|                         | it there                        |                                    |
| ..._MOVED_TO_..._ONEOF  | move fields out of the oneof    | move fields into the oneof         |

A restored element brings along the types and imports that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from penstock.registry.formats.protobuf_checks import LIBRARY_NUMBERS
from penstock.registry.formats.protobuf_descriptors import (
    FIELD_NUMBER_MAX,
    json_name,
    map_entry_name,
)
from penstock.registry.formats.protobuf_symbols import messages_of, types_of
from penstock.registry.formats.schema import Incompatibility

ROUNDS_MAX: Final = 64
"""Longest chain of types that one edit restores."""


def edit(
    own: FileDescriptorProto,
    other: FileDescriptorProto,
    problems: Sequence[Incompatibility],
    *,
    reads: bool,
) -> FileDescriptorProto | None:
    """Return an edited copy of `own` that resolves some of the problems; None if none is known.

    `own` is the reader if `reads`, otherwise the writer.
    """
    copy = FileDescriptorProto()
    copy.CopyFrom(own)
    editor = _Editor(copy, other, reads=reads)
    return copy if editor.apply(problems) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Message in both schemas.

    Attributes:
        full: full name of the message.
        own: descriptor in the edited schema.
        theirs: descriptor in the other schema; empty if that schema lacks the message.
    """

    full: str
    own: DescriptorProto
    theirs: DescriptorProto


class _Editor:
    def __init__(
        self, file: FileDescriptorProto, other: FileDescriptorProto, *, reads: bool
    ) -> None:
        self._file = file
        self._other = other
        self._reads = reads
        self._their_types = dict(types_of(other))
        self._theirs = dict(messages_of(other))
        self._own = dict(types_of(file))
        self._edits: Mapping[str, Callable[[_Pair, str], object]] = {
            "FIELD_KIND_CHANGED": self._change_field,
            "FIELD_SCALAR_KIND_CHANGED": self._change_field,
            "FIELD_NAMED_TYPE_CHANGED": self._change_field,
            "FIELD_NUMERIC_LABEL_CHANGED": self._change_field,
            "REQUIRED_FIELD_ADDED": self._relax_field if reads else self._require_field,
            "REQUIRED_FIELD_REMOVED": self._restore_field if reads else self._relax_field,
            "ONEOF_FIELD_REMOVED": self._join_oneof if reads else self._leave_oneof,
            "MULTIPLE_FIELDS_MOVED_TO_ONEOF": self._split_oneof if reads else self._gather_oneof,
            "FIELD_MOVED_TO_EXISTING_ONEOF": self._split_oneof if reads else self._gather_oneof,
        }

    def apply(self, problems: Sequence[Incompatibility]) -> bool:
        """Apply the edits of all problems; return whether the file has changed.

        A changed package is corrected alone, because all other paths depend on it.
        """
        if any(problem.rule == "PACKAGE_CHANGED" for problem in problems):
            self._take_package()
            return True
        before = self._file.SerializeToString(deterministic=True)
        for problem in problems:
            self._apply(problem)
        self._restore_types()
        for _, message in messages_of(self._file):
            _drop_unused_oneofs(message)
        return self._file.SerializeToString(deterministic=True) != before

    def _apply(self, problem: Incompatibility) -> None:
        if problem.rule == "MESSAGE_REMOVED":
            if self._reads:
                self._restore_type(problem.path)
            else:
                self._remove_message(problem.path)
            return
        full, _, name = problem.path.rpartition(".")
        own, handler = self._message(full), self._edits.get(problem.rule)
        if own is not None and handler is not None:
            theirs = self._theirs.get(full, DescriptorProto())
            handler(_Pair(full=full, own=own, theirs=theirs), name)

    def _message(self, full: str) -> DescriptorProto | None:
        found = self._own.get(full)
        return found if isinstance(found, DescriptorProto) else None

    def _take_package(self) -> None:
        old, new = self._file.package, self._other.package
        own = {f".{name}" for name in self._own}
        before = f".{old}." if old else "."
        after = f".{new}." if new else "."
        for name, replace in _references(self._file):
            if name in own:
                replace(after + name.removeprefix(before))
        if new:
            self._file.package = new
        else:
            self._file.ClearField("package")

    def _remove_message(self, path: str) -> None:
        if self._message(path) is None:
            return
        parent = self._message(path.rpartition(".")[0])
        messages = parent.nested_type if parent is not None else self._file.message_type
        removed = {f".{name}" for name in self._own if f"{name}.".startswith(f"{path}.")}
        _remove(messages, lambda message: message.name == path.rpartition(".")[2])
        self._own = dict(types_of(self._file))
        for full, message in list(messages_of(self._file)):
            for field in list(message.field):
                if removed & _types_of(field, message, full):
                    _remove_field(message, field, full)
            _remove(message.extension, lambda part: _uses(part, removed))
        _remove(self._file.extension, lambda part: _uses(part, removed))
        for service in self._file.service:
            _remove(service.method, lambda part: {part.input_type, part.output_type} & removed)

    def _change_field(self, pair: _Pair, name: str) -> None:
        """Give a field a new number, or its type in the other schema. The reader names it."""
        named = _by_name(pair.own if self._reads else pair.theirs, name)
        if named is None:
            return
        field = _by_number(pair.own, named.number)
        theirs = _by_number(pair.theirs, named.number)
        if field is None or theirs is None:
            return
        needed = any(_is_required(part) or part.HasField("oneof_index") for part in (field, theirs))
        free = None if needed else _free_number(pair.own, pair.theirs)
        if free is None:
            self._take_type(pair, field, theirs)
        else:
            pair.own.reserved_range.add(start=field.number, end=field.number + 1)
            field.number = free

    def _take_type(
        self, pair: _Pair, field: FieldDescriptorProto, theirs: FieldDescriptorProto
    ) -> None:
        """Give a field the type and label that it has in the other schema."""
        if theirs.type == FieldDescriptorProto.TYPE_GROUP:
            _remove_field(pair.own, field, pair.full)
            self._add_field(pair, theirs)
            return
        _remove_declared(pair.own, field, pair.full)
        own = FieldDescriptorProto()
        own.CopyFrom(field)
        field.CopyFrom(theirs)
        field.name, field.json_name = own.name, own.json_name
        field.ClearField("oneof_index")
        self._fit_label(field)
        if own.HasField("oneof_index") and field.label == FieldDescriptorProto.LABEL_OPTIONAL:
            field.oneof_index = own.oneof_index
            field.proto3_optional = own.proto3_optional
        self._copy_entry(pair, field, theirs)

    def _copy_entry(
        self, pair: _Pair, field: FieldDescriptorProto, theirs: FieldDescriptorProto
    ) -> None:
        entry = _declared(pair.theirs, theirs, pair.full)
        if entry is None:
            return
        copy = pair.own.nested_type.add()
        copy.CopyFrom(entry)
        if entry.options.map_entry:
            copy.name = map_entry_name(field.name)
            field.type_name = f".{pair.full}.{copy.name}"

    def _add_field(self, pair: _Pair, theirs: FieldDescriptorProto) -> FieldDescriptorProto:
        """Copy a field of the other schema, without its oneof."""
        _release(pair.own, theirs.number, theirs.name)
        field = pair.own.field.add()
        field.CopyFrom(theirs)
        field.ClearField("oneof_index")
        if _uses_name(pair.own, field):
            field.name = f"{field.name}_{field.number}"
            field.json_name = json_name(field.name)
        self._fit_label(field)
        self._copy_entry(pair, field, theirs)
        return field

    def _fit_label(self, field: FieldDescriptorProto) -> None:
        """Replace what the file's syntax does not allow."""
        syntax = self._file.syntax
        if syntax != "proto3":
            field.ClearField("proto3_optional")
        if syntax == "proto3":
            field.ClearField("default_value")
        if syntax and field.label == FieldDescriptorProto.LABEL_REQUIRED:
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
        if syntax != "editions" and field.options.HasField("features"):
            field.options.ClearField("features")

    def _relax_field(self, pair: _Pair, name: str) -> None:
        field = _by_name(pair.own, name)
        if field is None:
            return
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
        if field.options.features.field_presence == FeatureSet.LEGACY_REQUIRED:
            field.options.features.field_presence = FeatureSet.EXPLICIT

    def _require_field(self, pair: _Pair, name: str) -> None:
        theirs = _by_name(pair.theirs, name)
        if theirs is None:
            return
        field = _by_number(pair.own, theirs.number) or self._add_field(pair, theirs)
        field.ClearField("oneof_index")
        field.ClearField("proto3_optional")
        if self._file.syntax == "editions":
            field.options.features.field_presence = FeatureSet.LEGACY_REQUIRED
        else:
            field.label = FieldDescriptorProto.LABEL_REQUIRED

    def _restore_field(self, pair: _Pair, name: str) -> None:
        theirs = _by_name(pair.theirs, name)
        if theirs is not None:
            self._add_field(pair, theirs)

    def _join_oneof(self, pair: _Pair, name: str) -> None:
        """Put a field into the oneof that it has in the other schema."""
        written = _by_name(pair.theirs, name)
        if written is None:
            return
        index = _oneof_index(pair.own, pair.theirs.oneof_decl[written.oneof_index].name)
        if index is None:
            return
        field = _by_number(pair.own, written.number)
        if field is None:
            field = self._add_field(pair, written)
        elif field.label != FieldDescriptorProto.LABEL_OPTIONAL:
            self._take_type(pair, field, written)
        field.oneof_index = index
        field.ClearField("proto3_optional")

    def _leave_oneof(self, pair: _Pair, name: str) -> None:
        """Make a field of this schema a plain field."""
        field = _by_name(pair.own, name)
        if field is not None:
            field.ClearField("oneof_index")

    def _split_oneof(self, pair: _Pair, name: str) -> None:
        """Keep the fields in a oneof that exclude each other in the other schema too."""
        index = _oneof_index(pair.own, name)
        if index is None:
            return
        kept = name if _oneof_index(pair.theirs, name) is not None else None
        for field in pair.own.field:
            written = _by_number(pair.theirs, field.number)
            if not field.HasField("oneof_index") or field.oneof_index != index or written is None:
                continue
            group = _group(pair.theirs, written)
            kept = kept or group
            if group != kept:
                field.ClearField("oneof_index")
                if self._file.syntax == "proto3" and written.proto3_optional:
                    field.proto3_optional = True

    def _gather_oneof(self, pair: _Pair, name: str) -> None:
        """Make fields exclude each other here, if they do so in the other schema."""
        their_index = _oneof_index(pair.theirs, name)
        if their_index is None:
            return
        index = _oneof_index(pair.own, name)
        if index is None:
            index = len(pair.own.oneof_decl)
            pair.own.oneof_decl.add(name=name)
        for written in pair.theirs.field:
            field = _by_number(pair.own, written.number)
            if field is None or not written.HasField("oneof_index"):
                continue
            if written.oneof_index == their_index:
                if field.label != FieldDescriptorProto.LABEL_OPTIONAL:
                    self._take_type(pair, field, written)
                field.oneof_index = index
                field.ClearField("proto3_optional")

    def _restore_types(self) -> None:
        """Restore the types of the other schema that restored elements refer to."""
        for _ in range(ROUNDS_MAX):
            missing = {
                name[1:]
                for name, _ in _references(self._file)
                if name[1:] in self._their_types and name[1:] not in self._own
            }
            if not [name for name in sorted(missing) if self._restore_type(name)]:
                break
        self._restore_imports()

    def _restore_type(self, full: str) -> bool:
        """Copy a type of the other schema, or the outermost missing type around it."""
        parts = full.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            copy = self._their_types.get(name)
            if copy is None or name in self._own:
                continue
            parent = self._message(".".join(parts[: end - 1]))
            if isinstance(copy, DescriptorProto):
                message = (
                    parent.nested_type if parent is not None else self._file.message_type
                ).add()
                message.CopyFrom(copy)
            else:
                enum = (parent.enum_type if parent is not None else self._file.enum_type).add()
                enum.CopyFrom(copy)
            self._own = dict(types_of(self._file))
            return True
        return False

    def _restore_imports(self) -> None:
        theirs = {name for name, _ in _references(self._other)}
        mine = {name for name, _ in _references(self._file)}
        if mine & theirs - {f".{name}" for name in self._own}:
            present = set(self._file.dependency)
            self._file.dependency.extend(
                name for name in self._other.dependency if name not in present
            )


def _references(file: FileDescriptorProto) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Yield each reference to a type, and a function that replaces it."""
    fields = list(file.extension)
    for _, message in messages_of(file):
        fields += (*message.field, *message.extension)
    for field in fields:
        if field.type_name:
            yield field.type_name, partial(setattr, field, "type_name")
        if field.extendee:
            yield field.extendee, partial(setattr, field, "extendee")
    for service in file.service:
        for method in service.method:
            yield method.input_type, partial(setattr, method, "input_type")
            yield method.output_type, partial(setattr, method, "output_type")


def _remove(elements: Any, condition: Callable[[Any], Any]) -> None:
    for index in reversed(range(len(elements))):
        if condition(elements[index]):
            del elements[index]


def _uses(field: FieldDescriptorProto, types: set[str]) -> bool:
    return field.type_name in types or field.extendee in types


def _types_of(field: FieldDescriptorProto, message: DescriptorProto, full: str) -> set[str]:
    """Return the types that a field refers to, also as the value of a map."""
    entry = _declared(message, field, full)
    parts = entry.field if entry is not None and entry.options.map_entry else ()
    return {field.type_name, *(part.type_name for part in parts)} - {""}


def _declared(
    message: DescriptorProto, field: FieldDescriptorProto, full: str
) -> DescriptorProto | None:
    """Return the nested message that a map or a group declares."""
    for nested in message.nested_type:
        if field.type_name == f".{full}.{nested.name}" and (
            nested.options.map_entry or field.type == FieldDescriptorProto.TYPE_GROUP
        ):
            return nested
    return None


def _remove_declared(message: DescriptorProto, field: FieldDescriptorProto, full: str) -> None:
    declared = _declared(message, field, full)
    if declared is not None:
        name = declared.name
        _remove(message.nested_type, lambda nested: nested.name == name)


def _remove_field(message: DescriptorProto, field: FieldDescriptorProto, full: str) -> None:
    number = field.number
    _remove_declared(message, field, full)
    _remove(message.field, lambda part: part.number == number)


def _by_number(message: DescriptorProto, number: int) -> FieldDescriptorProto | None:
    return next((field for field in message.field if field.number == number), None)


def _by_name(message: DescriptorProto, name: str) -> FieldDescriptorProto | None:
    return next((field for field in message.field if field.name == name), None)


def _is_required(field: FieldDescriptorProto) -> bool:
    return (
        field.label == FieldDescriptorProto.LABEL_REQUIRED
        or field.options.features.field_presence == FeatureSet.LEGACY_REQUIRED
    )


def _uses_name(message: DescriptorProto, field: FieldDescriptorProto) -> bool:
    return any(
        part.name == field.name and part.number != field.number for part in message.field
    ) or any(oneof.name == field.name for oneof in message.oneof_decl)


def _group(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Return what a field shares with the fields that exclude it: its oneof, or its own number."""
    if field.HasField("oneof_index") and not field.proto3_optional:
        return message.oneof_decl[field.oneof_index].name
    return str(field.number)


def _oneof_index(message: DescriptorProto, name: str) -> int | None:
    names = enumerate(oneof.name for oneof in message.oneof_decl)
    return next((index for index, oneof in names if oneof == name), None)


def _free_number(message: DescriptorProto, theirs: DescriptorProto) -> int | None:
    """Return a number that neither message uses or reserves; None if there is none."""
    used = [0]
    for part in (message, theirs):
        used += (field.number for field in part.field)
        used += (reserved.end - 1 for reserved in part.reserved_range)
        used += (extended.end - 1 for extended in part.extension_range)
    number = max(used) + 1
    if number in LIBRARY_NUMBERS:
        number = LIBRARY_NUMBERS[-1] + 1
    return number if number <= FIELD_NUMBER_MAX else None


def _release(message: DescriptorProto, number: int, name: str) -> None:
    """Remove the reservation of a number and a name."""
    for index in reversed(range(len(message.reserved_range))):
        reserved = message.reserved_range[index]
        if reserved.start <= number < reserved.end:
            end = reserved.end
            reserved.end = number
            if number + 1 < end:
                message.reserved_range.add(start=number + 1, end=end)
            if reserved.start == reserved.end:
                del message.reserved_range[index]
    names = [part for part in message.reserved_name if part != name]
    message.reserved_name[:] = names


def _drop_unused_oneofs(message: DescriptorProto) -> None:
    used = sorted({field.oneof_index for field in message.field if field.HasField("oneof_index")})
    if len(used) == len(message.oneof_decl):
        return
    indexes = {old: new for new, old in enumerate(used)}
    for index in reversed(range(len(message.oneof_decl))):
        if index not in indexes:
            del message.oneof_decl[index]
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index = indexes[field.oneof_index]
