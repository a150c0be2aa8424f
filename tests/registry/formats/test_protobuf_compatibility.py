"""Compatibility of Protobuf schemas: each rule, buf's findings, decoded data, and edits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import pytest
from compat.conftest import missing
from compat.parts import PartMissing, buf
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.registry.formats.protobuf import ProtobufSchema, parse_protobuf
from penstock.registry.formats.schema import PROBLEMS_MAX, Dependency
from tests.registry.formats.protobuf_buf import (
    DIFFERENCES,
    Comparer,
    buf_pair,
    generated_pair,
    read_recorded,
    run_buf,
)

P2: Final = 'syntax = "proto2"; package shop; '
P3: Final = 'syntax = "proto3"; package shop; '
ROUNDS_MAX: Final = 6
"""Most edits until a schema is compatible."""


def rules(reader: ProtobufSchema, writer: ProtobufSchema) -> list[str]:
    return sorted(problem.rule for problem in reader.check_reads(writer))


def message(fields: str) -> str:
    return f"{P3}message M {{ {fields} }} message A {{}} message B {{}} enum E {{ ZERO = 0; }}"


def message2(fields: str) -> str:
    return f"{P2}message M {{ {fields} }}"


COMPATIBLE = [
    (message("int32 a = 1;"), message("int32 a = 1; string b = 2;")),
    (message("int32 a = 1;"), message("int64 renamed = 1;")),
    (message("int32 a = 1;"), message("E a = 1;")),
    (message("bool a = 1;"), message("uint64 a = 1;")),
    (message("sint32 a = 1;"), message("sint64 a = 1;")),
    (message("fixed32 a = 1;"), message("sfixed32 a = 1;")),
    (message("fixed64 a = 1;"), message("sfixed64 a = 1;")),
    (message("string a = 1;"), message("bytes a = 1;")),
    (message("string a = 1;"), message("repeated string a = 1;")),
    (message("A a = 1;"), message("repeated A a = 1;")),
    (message("int32 a = 1;"), message("optional int32 a = 1;")),
    (message("int32 a = 1;"), message("oneof o { int32 a = 1; string b = 2; }")),
    (message("oneof o { int32 a = 1; }"), message("oneof p { int32 a = 1; }")),
    (message("map<int32, string> a = 1;"), message("map<uint64, bytes> a = 1;")),
    (message("map<int32, string> a = 1;"), message("")),
    (message("reserved 5; int32 a = 1;"), message("int32 a = 1;")),
    (message2("optional int32 a = 1 [default = 5];"), message2("optional int32 a = 1;")),
    (message2("optional group G = 1 {}"), message2("")),
    (
        P3 + "enum E { ZERO = 0; ONE = 1; }",
        P3 + "enum E { ZERO = 0; TWO = 2; } enum F { NONE = 0; }",
    ),
    (
        P3 + "message A {} message B {} service S { rpc X (A) returns (B); }",
        P3 + "message B {} message A {} service S { rpc X (B) returns (A); }",
    ),
    (P2 + "message M { optional int32 a = 1; }", P3 + "message M { optional int32 a = 1; }"),
]
INCOMPATIBLE = [
    # Schema, other schema, problems in both directions.
    (message("int32 a = 1;"), message("string a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    (message("int32 a = 1;"), message("sint32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    (message("float a = 1;"), message("fixed32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    (message("double a = 1;"), message("float a = 1;"), ["FIELD_SCALAR_KIND_CHANGED"]),
    (message("A a = 1;"), message("bytes a = 1;"), ["FIELD_KIND_CHANGED"]),
    (message("map<int32, A> a = 1;"), message("repeated A a = 1;"), ["FIELD_KIND_CHANGED"]),
    (message("A a = 1;"), message("B a = 1;"), ["FIELD_NAMED_TYPE_CHANGED"]),
    (
        message("map<int32, A> a = 1;"),
        message("map<int32, B> a = 1;"),
        ["FIELD_NAMED_TYPE_CHANGED"],
    ),
    (
        message("map<int32, int32> a = 1;"),
        message("map<string, A> a = 1;"),
        ["FIELD_KIND_CHANGED", "FIELD_SCALAR_KIND_CHANGED"],
    ),
    (message("int32 a = 1;"), message("repeated int32 a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED"]),
    (message("E a = 1;"), message("repeated E a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED"]),
    (
        message("int32 a = 1;"),
        message("repeated string a = 1;"),
        ["FIELD_NUMERIC_LABEL_CHANGED", "FIELD_SCALAR_KIND_CHANGED"],
    ),
    (
        P2 + "message M { optional group A = 1 {} }",
        P2 + "message M { optional A a = 1; message A {} }",
        ["FIELD_KIND_CHANGED"],
    ),
]
DIRECTED = [
    # Reader, writer, problems of the reader, problems of the writer as the reader.
    (P3 + "message A {}", P3 + "message A {} message B {}", ["MESSAGE_REMOVED"], []),
    (message(""), message("message N {}"), ["MESSAGE_REMOVED"], []),
    (message2("required int32 a = 1;"), message2(""), ["REQUIRED_FIELD_ADDED"],
     ["REQUIRED_FIELD_REMOVED"]),
    (message2("required int32 a = 1;"), message2("optional int32 a = 1;"),
     ["REQUIRED_FIELD_ADDED"], []),
    (
        'edition = "2023"; package shop; message M {'
        " int32 a = 1 [features.field_presence = LEGACY_REQUIRED]; }",
        message2("optional int32 a = 1;"), ["REQUIRED_FIELD_ADDED"], [],
    ),
    (message("oneof o { int32 a = 1; }"), message("oneof o { int32 a = 1; int32 b = 2; }"),
     ["ONEOF_FIELD_REMOVED"], []),
    (message("int32 b = 2; oneof o { int32 a = 1; }"),
     message("oneof o { int32 a = 1; int32 b = 2; }"),
     ["ONEOF_FIELD_REMOVED"], ["FIELD_MOVED_TO_EXISTING_ONEOF"]),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("int32 a = 1; int32 b = 2;"),
     ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"], []),
    (message("oneof o { int32 a = 1; int32 b = 2; }"),
     message("oneof p { int32 a = 1; } int32 b = 2;"),
     ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"], []),
    (message("oneof o { int32 a = 1; int32 b = 2; }"),
     message("optional int32 a = 1; optional int32 b = 2;"),
     ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"], []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "other"), COMPATIBLE)
def test_compatible_changes(text: str, other: str) -> None:
    schemas = parse_protobuf(text, []), parse_protobuf(other, [])
    assert rules(*schemas) == []
    assert rules(schemas[1], schemas[0]) == []


@pytest.mark.parametrize(("text", "other", "expected"), INCOMPATIBLE)
def test_incompatible_changes(text: str, other: str, expected: Sequence[str]) -> None:
    schemas = parse_protobuf(text, []), parse_protobuf(other, [])
    assert rules(*schemas) == expected
    assert rules(schemas[1], schemas[0]) == expected


@pytest.mark.parametrize(("reader", "writer", "forward", "backward"), DIRECTED)
def test_changes_that_one_side_cannot_read(
    reader: str, writer: str, forward: Sequence[str], backward: Sequence[str]
) -> None:
    schemas = parse_protobuf(reader, []), parse_protobuf(writer, [])
    assert rules(*schemas) == forward
    assert rules(schemas[1], schemas[0]) == backward


def test_leaving_a_oneof_as_a_whole_is_compatible() -> None:
    reader = parse_protobuf(message("int32 a = 1; int32 b = 2;"), [])
    writer = parse_protobuf(message("oneof o { int32 a = 1; int32 b = 2; }"), [])
    assert rules(reader, writer) == []


def test_a_changed_package_is_reported_once() -> None:
    text = "message A { B b = 1; } message B { A a = 1; }"
    reader = parse_protobuf(f'syntax = "proto3"; package one; {text}', [])
    writer = parse_protobuf(f'syntax = "proto3"; package two; {text}', [])
    assert rules(reader, writer) == ["PACKAGE_CHANGED"]


def test_problems_have_a_path_and_both_sides() -> None:
    reader = parse_protobuf(P3 + "message Order { message Line { int32 id = 1; } }", [])
    writer = parse_protobuf(P3 + "message Order { message Line { string ident = 1; } }", [])
    (problem,) = reader.check_reads(writer)
    assert problem.path == "shop.Order.Line.id"
    assert problem.message == (
        "The reader has shop.Order.Line.id (number 1) as int32 (encoded as varint), the writer has"
        " shop.Order.Line.ident as string (encoded as bytes)."
    )


def test_imported_types_are_compared() -> None:
    text = P3 + 'import "money.proto"; message Order { base.Money total = 1; }'
    versions = [
        parse_protobuf(text, [Dependency(name="money.proto", text=money)])
        for money in (
            'syntax = "proto3"; package base; message Money { int64 units = 1; }',
            'syntax = "proto3"; package base; message Money { string units = 1; }',
        )
    ]
    (problem,) = versions[0].check_reads(versions[1])
    assert problem.rule == "FIELD_SCALAR_KIND_CHANGED"
    assert problem.path == "base.Money.units"
    assert versions[0].edited(versions[1], [problem], reads=True) is None


def test_removed_messages_of_imports_are_not_edited() -> None:
    text = P3 + 'import "base.proto"; message M { base.Outer a = 1; } message Inner {}'
    base = 'syntax = "proto3"; package base; message Outer {'
    writer, reader = (
        parse_protobuf(text, [Dependency(name="base.proto", text=f"{base} {inner} }}")])
        for inner in ("message Inner {}", "")
    )
    (problem,) = reader.check_reads(writer)
    assert (problem.rule, problem.path) == ("MESSAGE_REMOVED", "base.Outer.Inner")
    assert writer.edited(reader, [problem], reads=False) is None


def test_extensions_are_compared() -> None:
    text = P2 + "message M { extensions 5 to 9; } extend M { optional %s a = 5; }"
    reader, writer = (parse_protobuf(text % kind, []) for kind in ("int32", "string"))
    assert rules(reader, writer) == ["FIELD_SCALAR_KIND_CHANGED"]


def test_long_chains_of_types_are_compared() -> None:
    texts = [
        P3
        + "".join(f"message M{n} {{ M{n + 1} next = 1; }}" for n in range(2_000))
        + f"message M2000 {{ {kind} last = 1; }}"
        for kind in ("int32", "string")
    ]
    reader, writer = (parse_protobuf(text, []) for text in texts)
    assert rules(reader, writer) == ["FIELD_SCALAR_KIND_CHANGED"]


def test_the_number_of_problems_is_limited() -> None:
    reader = parse_protobuf(P3 + "message M {}", [])
    writer = parse_protobuf(P3 + "".join(f"message M{n} {{}}" for n in range(300)), [])
    assert len(reader.check_reads(writer)) == PROBLEMS_MAX
    assert converged(reader, writer, reads=True) is not None


@pytest.fixture(scope="module")
def differences() -> Sequence[tuple[int, str]]:
    """Return the differences from the recorded findings of buf, with the seeds of the pairs."""
    found: list[tuple[int, str]] = []
    for seed, recorded in read_recorded().items():
        pair = buf_pair(seed, recorded.attempt)
        assert pair.digest() == recorded.digest, "the generator has changed: record again"
        found += [(seed, name) for name in Comparer(pair, recorded.findings).differences()]
    return found


def test_only_known_differences_from_buf(differences: Sequence[tuple[int, str]]) -> None:
    """The reasons are in `DIFFERENCES`."""
    assert [found for found in differences if found[1] not in DIFFERENCES] == []


def test_every_known_difference_occurs(differences: Sequence[tuple[int, str]]) -> None:
    assert {name for _, name in differences} == set(DIFFERENCES)


@pytest.mark.interop
def test_recorded_findings_are_those_of_buf() -> None:
    try:
        program = str(buf())
    except PartMissing as error:
        missing(error)
    recorded = read_recorded()
    pairs = {seed: buf_pair(seed, pair.attempt) for seed, pair in recorded.items()}
    assert run_buf(program, pairs) == {seed: pair.findings for seed, pair in recorded.items()}


class Filler:
    """Writer of random messages, in which each value can be read with any compatible type."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def fill(self, target: Any, depth: int = 0) -> None:
        filled_oneofs: set[str] = set()
        for field in target.DESCRIPTOR.fields:
            oneof = field.containing_oneof
            if oneof is not None and oneof.full_name in filled_oneofs:
                continue
            if not field.is_required and self._random.random() < 0.3:
                continue
            if field.message_type is not None and depth > 3 and not field.is_required:
                continue
            if oneof is not None:
                filled_oneofs.add(oneof.full_name)
            self._set(target, field, depth)

    def _set(self, target: Any, field: FieldDescriptor, depth: int) -> None:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            entries = getattr(target, field.name)
            key, value = kind.fields
            if value.message_type is not None:
                self.fill(entries[self._value(key)], depth + 1)
            else:
                entries[self._value(key)] = self._value(value)
        elif kind is not None:
            value = getattr(target, field.name)
            part = value.add() if field.is_repeated else value
            part.SetInParent()
            self.fill(part, depth + 1)
        elif field.is_repeated:
            getattr(target, field.name).extend([self._value(field)] * 2)
        else:
            setattr(target, field.name, self._value(field))

    def _value(self, field: FieldDescriptor) -> Any:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING:
                return "text" if field.type == FieldDescriptor.TYPE_STRING else b"text"
            case FieldDescriptor.CPPTYPE_BOOL:
                return True
            case FieldDescriptor.CPPTYPE_ENUM:
                return 0
            case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
                return 1.5
        return 1


def requires_itself(kind: Descriptor, above: tuple[str, ...] = ()) -> bool:
    """Return whether no message of a type can be complete."""
    if kind.full_name in above:
        return True
    return any(
        field.message_type is not None
        and requires_itself(field.message_type, (*above, kind.full_name))
        for field in kind.fields
        if field.is_required
    )


def check_read(read: Message, written: Message) -> None:
    """Check that a decoded message has each field that both sides know."""
    reads = {field.number: value for field, value in read.ListFields()}
    known = {field.number: field for field in read.DESCRIPTOR.fields}
    for field, value in written.ListFields():
        if field.number not in known or value in (0, b"", ""):
            continue
        if known[field.number].cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            continue
        assert field.number in reads, f"{field.full_name} is lost"
        other = reads[field.number]
        if isinstance(value, Message) and isinstance(other, Message):
            check_read(other, value)


@pytest.mark.parametrize("start", range(0, 150, 30))
def test_accepted_data_are_decoded(start: int) -> None:
    checked = 0
    for seed in range(start, start + 30):
        pair = generated_pair(seed)
        for reader, writer in ((pair.new, pair.old), (pair.old, pair.new)):
            if rules(reader, writer):
                continue
            messages = writer.linked().message_types_by_name
            readers = reader.linked().message_types_by_name
            for name, kind in messages.items():
                if requires_itself(kind):
                    continue
                written = GetMessageClass(kind)()
                Filler(seed).fill(written)
                read = GetMessageClass(readers[name])()
                read.ParseFromString(written.SerializeToString())
                check_read(read, written)
                checked += 1
    assert checked > 20


def converged(
    schema: ProtobufSchema, other: ProtobufSchema, *, reads: bool
) -> ProtobufSchema | None:
    """Edit a schema until it is compatible; return None if that fails."""
    for _ in range(ROUNDS_MAX):
        problems = schema.check_reads(other) if reads else other.check_reads(schema)
        if not problems:
            return schema
        edited = schema.edited(other, problems, reads=reads)
        if edited is None:
            return None
        schema = edited
    return None


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("start", range(0, 120, 40))
def test_edits_lead_to_a_compatible_schema(start: int, reads: bool) -> None:
    failed = []
    for seed in range(start, start + 40):
        pair = generated_pair(seed)
        if converged(pair.new, pair.old, reads=reads) is None:
            failed.append((seed, pair.changes))
    assert not failed


EDITS = [
    # Schema, other schema, whether the schema reads, body of the edited message M.
    (message("string a = 1;"), message("int32 a = 1;"), True, "reserved 1; string a = 2;"),
    (message("string a = 1;"), message("int32 a = 1;"), False, "reserved 1; string a = 2;"),
    (
        message("repeated int32 a = 1; reserved 7;"),
        message("int32 a = 1; int32 b = 5;"),
        True,
        "reserved 7, 1; repeated int32 a = 8;",
    ),
    (message2("optional string a = 1;"), message2("required int32 a = 1;"), True,
     "required int32 a = 1;"),
    (message2("required string a = 1;"), message2("optional int32 a = 1;"), False,
     "optional int32 a = 1;"),
    (message2("required int32 a = 1;"), message2(""), True, "optional int32 a = 1;"),
    (message2(""), message2("required int32 a = 1;"), False, "required int32 a = 1;"),
    (message2("reserved 1 to 3;"), message2("required int32 a = 2;"), True,
     "reserved 1, 3; required int32 a = 2;"),
    (message2("required int32 a = 1;"), message2(""), False, "optional int32 a = 1;"),
    (message(""), message("message N { E e = 1; enum E { Z = 0; } }"), True,
     "message N { enum E { Z = 0; } E e = 1; }"),
    (message("message N {} N n = 1; int32 a = 2; map<int32, N> b = 3;"), message(""), False,
     "int32 a = 2;"),
    (message("oneof o { int32 a = 1; }"), message("oneof o { int32 a = 1; int32 b = 2; }"), True,
     "oneof o { int32 a = 1; int32 b = 2; }"),
    (message("oneof o { int32 a = 1; } int32 b = 2;"),
     message("oneof o { int32 a = 1; int32 b = 2; }"), True,
     "oneof o { int32 a = 1; int32 b = 2; }"),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("oneof o { int32 a = 1; }"), False,
     "oneof o { int32 a = 1; } int32 b = 2;"),
    (message("oneof o { int32 a = 1; int32 b = 2; }"),
     message("int32 a = 1; optional int32 b = 2;"), True,
     "oneof o { int32 a = 1; } optional int32 b = 2;"),
    (message("oneof o { int32 a = 1; int32 b = 2; }"),
     message("oneof o { int32 a = 1; } int32 b = 2;"), True,
     "oneof o { int32 a = 1; } int32 b = 2;"),
    (message("int32 a = 1; int32 b = 2;"), message("oneof o { int32 a = 1; int32 b = 2; }"), False,
     "oneof o { int32 a = 1; int32 b = 2; }"),
    (message("map<int32, A> a = 1;"), message("map<int32, B> a = 1;"), True,
     "reserved 1; map<int32, A> a = 2;"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "other", "reads", "body"), EDITS)
def test_edits_are_small(text: str, other: str, reads: bool, body: str) -> None:
    schemas = parse_protobuf(text, []), parse_protobuf(other, [])
    edited = converged(*schemas, reads=reads)
    assert edited is not None
    head = text.split("message M")[0]
    expected = parse_protobuf(f"{head}message M {{ {body} }}{tail(text)}", [])
    assert edited.identity == expected.identity


def tail(text: str) -> str:
    """Return what follows the message M."""
    end = text.find(" message A {}")
    return text[end:] if end >= 0 else ""


def test_an_edit_restores_types_and_imports() -> None:
    other = P3 + (
        'import "google/type/money.proto"; message M { A a = 1; } message A { B b = 1; }'
        " message B { Kind kind = 1; google.type.Money total = 2; } enum Kind { NONE = 0; }"
    )
    edited = converged(
        parse_protobuf(P3 + "message M {}", []), parse_protobuf(other, []), reads=True
    )
    assert edited is not None
    for part in ('import "google/type/money.proto";', "Kind kind = 1;", "enum Kind {"):
        assert part in edited.text


def test_an_edit_takes_the_other_package() -> None:
    schema = parse_protobuf('syntax = "proto3"; package b; message M { M m = 1; }', [])
    other = parse_protobuf('syntax = "proto3"; message M { M m = 1; }', [])
    for reads in (True, False):
        edited = converged(schema, other, reads=reads)
        assert edited is not None
        assert edited.identity == other.identity
        edited = converged(other, schema, reads=reads)
        assert edited is not None
        assert edited.identity == schema.identity


def test_edits_of_editions_use_features() -> None:
    head = 'edition = "2023"; package shop; message M {'
    required = "int32 a = 1 [features.field_presence = LEGACY_REQUIRED];"
    schema = parse_protobuf(f"{head} {required} }}", [])
    other = parse_protobuf(f"{head} int32 a = 1; }}", [])
    relaxed = converged(schema, other, reads=True)
    assert relaxed is not None
    assert "int32 a = 1 [features.field_presence = EXPLICIT];" in relaxed.text
    stricter = converged(other, schema, reads=False)
    assert stricter is not None
    assert required in stricter.text
