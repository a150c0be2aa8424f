"""Conversion of a .proto syntax tree to a FileDescriptorProto.

The result is what protoc's parser produces before it links: type names are as written, types of
fields with a named type are unset, and options are separate, because their values depend on
imported files. `protobuf_linker` completes it.

Source: `descriptor.proto` and the language specifications of proto2, proto3 and editions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
    SymbolVisibility,
)
from google.protobuf.message import Message
from proto_schema_parser.antlr.ProtobufParser import ProtobufParser as Grammar

from penstock.registry.formats.protobuf_source import Source, read_source, unescaped
from penstock.registry.formats.protobuf_symbols import joined
from penstock.registry.formats.schema import TYPES_MAX, InvalidSchema

FIELD_NUMBER_MAX: Final = (1 << 29) - 1
INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
EDITIONS: Final[Mapping[str, int]] = {"2023": 1000, "2024": 1001}
"""Editions that are read, as numbers of `google.protobuf.Edition`."""

SCALARS: Final[Mapping[str, FieldDescriptorProto.Type.ValueType]] = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "fixed64": FieldDescriptorProto.TYPE_FIXED64,
    "fixed32": FieldDescriptorProto.TYPE_FIXED32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "sfixed32": FieldDescriptorProto.TYPE_SFIXED32,
    "sfixed64": FieldDescriptorProto.TYPE_SFIXED64,
    "sint32": FieldDescriptorProto.TYPE_SINT32,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
}
LABELS: Final[Mapping[str, FieldDescriptorProto.Label.ValueType]] = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
VISIBILITIES: Final[Mapping[str, SymbolVisibility.ValueType]] = {
    "export": SymbolVisibility.VISIBILITY_EXPORT,
    "local": SymbolVisibility.VISIBILITY_LOCAL,
}
_UTF8_OPTION: Final = (("features", False), ("utf8_validation", False))

Syntax = Literal["proto2", "proto3", "editions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionUse:
    """Option in a source text that still has to be set.

    Attributes:
        target: the options message that the option belongs to.
        scope: full name of the element with the option, for the resolution of extension names.
        parts: the option's name: each part with whether it is an extension in parentheses.
        value: the value in the spelling of Protobuf's text format.
        line: line number in the source text.
    """

    target: Message
    scope: str
    parts: tuple[tuple[str, bool], ...]
    value: str
    line: int

    @property
    def is_custom(self) -> bool:
        return any(is_extension for _, is_extension in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedFile:
    """Descriptor of a source file before linking, and its options."""

    file: FileDescriptorProto
    options: Sequence[OptionUse]
    elements: int


def describe(text: str, name: str) -> DescribedFile:
    """Return the descriptor of a source text.

    Raises:
        InvalidSchema: the text is malformed, or exceeds a limit.
    """
    return _Describer(read_source(text), name).describe()


def json_name(name: str) -> str:
    """Return the JSON name that a field has if its schema sets none."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def map_entry_name(field: str) -> str:
    """Return the name of the message that holds an entry of a map field."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


class _Describer:
    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._file = FileDescriptorProto(name=name)
        self._options: list[OptionUse] = []
        self._elements = 0
        self._syntax: Syntax = "proto2"
        self._imports: set[str] = set()

    def describe(self) -> DescribedFile:
        tree = self._source.tree
        self._read_syntax(tree)
        package = [child for child in _children(tree.fileElement()) if _is(child, "packageDecl")]
        if len(package) > 1:
            self._source.reject(package[1], "the package is declared a second time.")
        if package:
            self._file.package = package[0].packageName().getText()
        for child in _children(tree.fileElement()):
            self._file_element(child, self._file.package)
        return DescribedFile(file=self._file, options=self._options, elements=self._elements)

    def _read_syntax(self, tree: Any) -> None:
        if tree.syntaxDecl():
            value = _string(tree.syntaxDecl().syntaxLevel().stringLiteral())
            if value not in ("proto2", "proto3"):
                self._source.reject(
                    tree.syntaxDecl(), f"the syntax {value!r} is neither proto2 nor proto3."
                )
            if value == "proto3":
                self._syntax = "proto3"
                self._file.syntax = "proto3"
        elif tree.editionDecl():
            value = _string(tree.editionDecl().editionLevel().stringLiteral())
            if value not in EDITIONS:
                self._source.reject(
                    tree.editionDecl(),
                    f"the edition {value!r} is not supported: use one of {', '.join(EDITIONS)}.",
                )
            self._syntax = "editions"
            self._file.syntax = "editions"
            self._file.edition = EDITIONS[value]  # type: ignore[assignment]

    def _file_element(self, child: Any, package: str) -> None:
        file = self._file
        match child.getRuleIndex():
            case Grammar.RULE_importDecl:
                self._import(child)
            case Grammar.RULE_optionDecl:
                self._option(child, file.options, f"{package}.dummy" if package else "dummy")
            case Grammar.RULE_messageDecl:
                self._message(child, file.message_type.add(), package)
            case Grammar.RULE_enumDecl:
                self._enum(child, file.enum_type.add(), package)
            case Grammar.RULE_extensionDecl:
                self._extend(child, file.extension.add, file.message_type.add, package)
            case Grammar.RULE_serviceDecl:
                self._service(child, package)

    def _import(self, tree: Any) -> None:
        name = _string(tree.importedFileName().stringLiteral())
        file = self._file
        if name in self._imports:
            self._source.reject(tree, f"the file {name!r} is imported a second time.")
        self._imports.add(name)
        if tree.start.start in self._source.option_imports:
            file.option_dependency.append(name)
            return
        if tree.PUBLIC():
            file.public_dependency.append(len(file.dependency))
        if tree.WEAK():
            file.weak_dependency.append(len(file.dependency))
        file.dependency.append(name)

    def _count(self) -> None:
        self._elements += 1
        if self._elements > TYPES_MAX:
            raise InvalidSchema(
                f"The schema has more than {TYPES_MAX} types, fields and constants. Split it, and"
                " refer to the parts."
            )

    def _message(self, tree: Any, message: DescriptorProto, scope: str) -> None:
        self._count()
        message.name = tree.messageName().getText()
        self._visibility(tree, message)
        self._message_elements(tree, message, joined(scope, message.name))

    def _visibility(self, tree: Any, declared: DescriptorProto | EnumDescriptorProto) -> None:
        word = self._source.visibilities.get(tree.start.start)
        if word is None:
            return
        if self._file.edition < EDITIONS["2024"]:
            self._source.reject(tree, f"`{word}` needs edition 2024.")
        declared.visibility = VISIBILITIES[word]

    def _message_elements(self, tree: Any, message: DescriptorProto, full: str) -> None:
        for child in _children(tree.messageElement()):
            match child.getRuleIndex():
                case Grammar.RULE_messageFieldDecl:
                    self._field(child, message.field.add(), full)
                case Grammar.RULE_mapFieldDecl:
                    self._map(child, message, full)
                case Grammar.RULE_groupDecl:
                    self._group(child, message.field.add(), message.nested_type.add, full)
                case Grammar.RULE_oneofDecl:
                    self._oneof(child, message, full)
                case Grammar.RULE_messageDecl:
                    self._message(child, message.nested_type.add(), full)
                case Grammar.RULE_enumDecl:
                    self._enum(child, message.enum_type.add(), full)
                case Grammar.RULE_extensionDecl:
                    self._extend(child, message.extension.add, message.nested_type.add, full)
                case Grammar.RULE_optionDecl:
                    self._option(child, message.options, full)
                case _:
                    self._ranges(child, message, full)
        self._add_synthetic_oneofs(message)

    def _add_synthetic_oneofs(self, message: DescriptorProto) -> None:
        """Give each `optional` field of proto3 a oneof of its own, after the declared ones."""
        optional = [field for field in message.field if field.proto3_optional]
        if not optional:
            return
        names = {field.name for field in message.field}
        names.update(oneof.name for oneof in message.oneof_decl)
        for field in optional:
            name = field.name if field.name.startswith("_") else f"_{field.name}"
            while name in names:
                name = f"X{name}"
            names.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)

    def _field(self, tree: Any, field: FieldDescriptorProto, scope: str) -> None:
        """Read a field that may have a label, in a message or an extension."""
        labelled = tree.fieldDeclWithCardinality()
        if labelled:
            self._label(labelled.fieldCardinality(), field, scope)
            self._typed(labelled, field, labelled.fieldDeclTypeName().getText(), scope)
            return
        self._unlabelled(tree, field)
        kind = (
            tree.messageFieldDeclTypeName()
            if _is(tree, "messageFieldDecl")
            else tree.extensionFieldDeclTypeName()
        )
        self._typed(tree, field, kind.getText(), scope)

    def _unlabelled(self, tree: Any, field: FieldDescriptorProto) -> None:
        if self._syntax == "proto2":
            self._source.reject(
                tree, "a field of proto2 needs a label: optional, required or repeated."
            )
        field.label = FieldDescriptorProto.LABEL_OPTIONAL

    def _label(self, tree: Any, field: FieldDescriptorProto, scope: str) -> None:
        word = tree.getText()
        allowed = {
            "proto2": ("optional", "required", "repeated"),
            "proto3": ("optional", "repeated"),
            "editions": ("repeated",),
        }[self._syntax]
        if word not in allowed:
            self._source.reject(tree, f"the label `{word}` is not allowed in {self._syntax}.")
        field.label = LABELS[word]
        if word == "optional" and self._syntax == "proto3":
            field.proto3_optional = True

    def _typed(self, tree: Any, field: FieldDescriptorProto, kind: str, scope: str) -> None:
        self._count()
        field.name = tree.fieldName().getText()
        field.number = self._field_number(
            tree.fieldNumber(), INT32_MAX if field.HasField("extendee") else FIELD_NUMBER_MAX
        )
        _set_type(field, kind)
        self._field_options(tree, field, scope)

    def _field_number(self, tree: Any, greatest: int = FIELD_NUMBER_MAX) -> int:
        """Return a field number. Those of extensions of message sets may be greater."""
        number = int(tree.getText())
        if not 0 < number <= greatest:
            self._source.reject(tree, f"a field number must be from 1 to {FIELD_NUMBER_MAX}.")
        return number

    def _map(self, tree: Any, message: DescriptorProto, scope: str) -> None:
        kinds = tree.mapType()
        field = message.field.add(label=FieldDescriptorProto.LABEL_REPEATED)
        entry = message.nested_type.add(name=map_entry_name(tree.fieldName().getText()))
        entry.options.map_entry = True
        parts = (
            ("key", kinds.mapKeyType().getText()),
            ("value", kinds.typeName().getText()),
        )
        for number, (name, kind) in enumerate(parts, 1):
            part = entry.field.add(
                name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL
            )
            _set_type(part, kind)
        begin = len(self._options)
        self._typed(tree, field, entry.name, scope)
        for option in self._options[begin:]:
            if option.parts == _UTF8_OPTION:
                for part in entry.field:
                    part.options.SetInParent()
                    self._options.append(replace(option, target=part.options))

    def _group(
        self,
        tree: Any,
        field: FieldDescriptorProto,
        add_message: Callable[[], DescriptorProto],
        scope: str,
    ) -> None:
        if self._syntax != "proto2":
            self._source.reject(tree, f"groups are not allowed in {self._syntax}.")
        if _is(tree, "groupDecl"):
            if tree.fieldCardinality() is None:
                self._source.reject(tree, "a group needs a label: optional, required or repeated.")
            self._label(tree.fieldCardinality(), field, scope)
        else:
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
        self._count()
        message = add_message()
        self._count()
        message.name = tree.fieldName().getText()
        if not message.name[0].isupper():
            self._source.reject(tree, "the name of a group must begin with a capital letter.")
        field.name = message.name.lower()
        field.number = self._field_number(tree.fieldNumber())
        field.type = FieldDescriptorProto.TYPE_GROUP
        field.type_name = message.name
        self._field_options(tree, field, scope)
        self._message_elements(tree, message, joined(scope, message.name))

    def _oneof(self, tree: Any, message: DescriptorProto, scope: str) -> None:
        self._count()
        index = len(message.oneof_decl)
        oneof: OneofDescriptorProto = message.oneof_decl.add(name=tree.oneofName().getText())
        empty = True
        for child in _children(tree.oneofElement()):
            if _is(child, "optionDecl"):
                self._option(child, oneof.options, joined(scope, oneof.name))
                continue
            empty = False
            field = message.field.add(oneof_index=index, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if _is(child, "oneofFieldDecl"):
                self._typed(child, field, child.oneofFieldDeclTypeName().getText(), scope)
            else:
                self._group(child, field, message.nested_type.add, scope)
        if empty:
            self._source.reject(tree, f"the oneof {oneof.name} has no fields.")

    def _ranges(self, tree: Any, message: DescriptorProto, scope: str) -> None:
        match tree.getRuleIndex():
            case Grammar.RULE_extensionRangeDecl:
                if self._syntax == "proto3":
                    self._source.reject(tree, "extension ranges are not allowed in proto3.")
                for start, end in self._tag_ranges(tree.tagRanges()):
                    self._count()
                    extended = message.extension_range.add(start=start, end=end)
                    self._compact_options(tree, extended, scope)
            case Grammar.RULE_messageReservedDecl:
                if tree.names():
                    message.reserved_name.extend(self._reserved_names(tree))
                else:
                    for start, end in self._tag_ranges(tree.tagRanges()):
                        self._count()
                        message.reserved_range.add(start=start, end=end)

    def _reserved_names(self, tree: Any) -> Iterator[str]:
        for literal in tree.names().stringLiteral():
            self._count()
            yield _string(literal)

    def _tag_ranges(self, tree: Any) -> Iterator[tuple[int, int]]:
        """Yield ranges of field numbers, without their end."""
        for part in tree.tagRange():
            start = self._field_number(part.tagRangeStart().fieldNumber())
            end = start
            if part.tagRangeEnd():
                last = part.tagRangeEnd().fieldNumber()
                end = self._field_number(last) if last else FIELD_NUMBER_MAX
            if end < start:
                self._source.reject(part, f"the range {start} to {end} is empty.")
            yield start, end + 1

    def _enum(self, tree: Any, enum: EnumDescriptorProto, scope: str) -> None:
        self._count()
        enum.name = tree.enumName().getText()
        self._visibility(tree, enum)
        for child in _children(tree.enumElement()):
            match child.getRuleIndex():
                case Grammar.RULE_enumValueDecl:
                    self._count()
                    value = enum.value.add(name=child.enumValueName().getText())
                    value.number = self._enum_number(child.enumValueNumber())
                    self._compact_options(child, value, joined(scope, value.name))
                case Grammar.RULE_enumReservedDecl:
                    self._enum_reserved(child, enum)
                case Grammar.RULE_optionDecl:
                    self._option(child, enum.options, joined(scope, enum.name))
        if not enum.value:
            self._source.reject(tree, f"the enum {enum.name} has no constants.")

    def _enum_number(self, tree: Any) -> int:
        number = int(tree.getText())
        if not INT32_MIN <= number <= INT32_MAX:
            self._source.reject(tree, f"an enum's number must be from {INT32_MIN} to {INT32_MAX}.")
        return number

    def _enum_reserved(self, tree: Any, enum: EnumDescriptorProto) -> None:
        if tree.names():
            enum.reserved_name.extend(self._reserved_names(tree))
            return
        for part in tree.enumValueRanges().enumValueRange():
            self._count()
            start = self._enum_number(part.enumValueRangeStart().enumValueNumber())
            end = start
            if part.enumValueRangeEnd():
                last = part.enumValueRangeEnd().enumValueNumber()
                end = self._enum_number(last) if last else INT32_MAX
            if end < start:
                self._source.reject(part, f"the range {start} to {end} is empty.")
            enum.reserved_range.add(start=start, end=end)

    def _extend(
        self,
        tree: Any,
        add_field: Callable[[], FieldDescriptorProto],
        add_message: Callable[[], DescriptorProto],
        scope: str,
    ) -> None:
        extendee = tree.extendedMessage().getText()
        children = list(_children(tree.extensionElement()))
        if not children:
            self._source.reject(tree, f"the extension of {extendee} has no fields.")
        for child in children:
            field = add_field()
            field.extendee = extendee
            if _is(child, "extensionFieldDecl"):
                self._field(child, field, scope)
            else:
                self._group(child, field, add_message, scope)
            if field.label == FieldDescriptorProto.LABEL_REQUIRED:
                self._source.reject(child, "an extension cannot be required.")

    def _service(self, tree: Any, scope: str) -> None:
        self._count()
        service = self._file.service.add(name=tree.serviceName().getText())
        full = joined(scope, service.name)
        for child in _children(tree.serviceElement()):
            if _is(child, "optionDecl"):
                self._option(child, service.options, full)
            elif _is(child, "methodDecl"):
                self._count()
                method = service.method.add(name=child.methodName().getText())
                sent, received = child.inputType().messageType(), child.outputType().messageType()
                method.input_type = sent.methodDeclTypeName().getText()
                method.output_type = received.methodDeclTypeName().getText()
                if sent.STREAM():
                    method.client_streaming = True
                if received.STREAM():
                    method.server_streaming = True
                if child.L_BRACE():
                    method.options.SetInParent()
                for element in _children(child.methodElement()):
                    if _is(element, "optionDecl"):
                        self._option(element, method.options, joined(full, method.name))

    def _field_options(self, tree: Any, field: FieldDescriptorProto, scope: str) -> None:
        compact = tree.compactOptions()
        if not compact:
            return
        for option in compact.compactOption():
            name = option.optionName().getText()
            if name == "default":
                self._default(option, field)
            elif name == "json_name":
                value = option.optionValue().scalarValue()
                if not value or not value.stringLiteral():
                    self._source.reject(option, "json_name must be a string.")
                if field.HasField("json_name"):
                    self._source.reject(option, "json_name is set a second time.")
                field.json_name = _string(value.stringLiteral())
            else:
                self._option(option, field.options, joined(scope, field.name))

    def _default(self, option: Any, field: FieldDescriptorProto) -> None:
        """Store a default as written; the linker converts it to the field's type."""
        if self._syntax == "proto3":
            self._source.reject(option, "defaults are not allowed in proto3.")
        value = option.optionValue().scalarValue()
        if not value or field.label == FieldDescriptorProto.LABEL_REPEATED:
            self._source.reject(option, "only fields with one scalar value can have a default.")
        if field.HasField("default_value"):
            self._source.reject(option, "the default is set a second time.")
        field.default_value = self._source.spelling(value)

    def _compact_options(
        self,
        tree: Any,
        owner: DescriptorProto.ExtensionRange | EnumValueDescriptorProto,
        scope: str,
    ) -> None:
        compact = tree.compactOptions()
        if compact:
            for option in compact.compactOption():
                self._option(option, owner.options, scope)

    def _option(self, tree: Any, target: Message, scope: str) -> None:
        self._count()
        value = tree.optionValue()
        target.SetInParent()
        self._options.append(
            OptionUse(
                target=target,
                scope=scope,
                parts=tuple(_name_parts(tree.optionName())),
                value=self._source.spelling(value),
                line=self._source.line(tree),
            )
        )


def _set_type(field: FieldDescriptorProto, kind: str) -> None:
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type_name = kind


def _children(elements: Sequence[Any]) -> Iterator[Any]:
    for element in elements:
        yield element.getChild(0)


def _name_parts(name: Any) -> Iterator[tuple[str, bool]]:
    if name.identifier():
        yield name.identifier().getText(), False
    else:
        yield name.typeName().getText(), True
    for rest in name.optionName():
        yield from _name_parts(rest)


def _is(tree: Any, rule: str) -> bool:
    return bool(Grammar.ruleNames[tree.getRuleIndex()] == rule)


def _string(literal: Any) -> str:
    values = (unescaped(token.getText()) for token in literal.getChildren())
    try:
        return b"".join(values).decode()
    except UnicodeDecodeError as error:
        raise InvalidSchema(f"The string {literal.getText()[:40]} is not UTF-8.") from error
