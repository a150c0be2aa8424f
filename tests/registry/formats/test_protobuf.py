"""Protobuf schemas: descriptors against protoc, both forms, the normal form, and hostile texts."""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google.type
import grpc_tools
import pytest
from google.protobuf import struct_pb2, text_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.type import money_pb2
from grpc_tools import protoc

from penstock.registry.formats.protobuf import ProtobufSchema, parse_protobuf
from penstock.registry.formats.protobuf_imports import COMPILED_IMPORTS
from penstock.registry.formats.schema import Dependency, InvalidSchema
from tests.registry.formats.protobuf_samples import Sample

TYPES = Path(next(iter(google.type.__path__)))
BUILTIN = Path(next(iter(grpc_tools.__path__))) / "_proto"
PROTO3 = 'syntax = "proto3";'
SECONDS_MAX = 1.0


def dependency(name: str, text: str) -> Dependency:
    return Dependency(name=name, text=text)


class Compiler:
    """protoc, which is the oracle of all descriptors."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def compile(self, text: str, others: Sequence[Dependency] = ()) -> FileDescriptorProto:
        for other in (*others, dependency("schema.proto", text)):
            path = self._directory / other.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(other.text)
        output = self._directory / "output"
        roots = [f"-I{root}" for root in (self._directory, TYPES.parent.parent, BUILTIN)]
        command = ["protoc", *roots, f"--descriptor_set_out={output}", "schema.proto"]
        assert protoc.main(command) == 0, text
        return FileDescriptorSet.FromString(output.read_bytes()).file[0]


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[Compiler]:
    """Return a compiler whose warnings are not shown."""
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield Compiler(tmp_path)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def without_empty_options(message: Any) -> Any:
    """Remove options messages without options, which a printed text cannot express."""
    for field, value in message.ListFields():
        for part in value if field.is_repeated else (value,):
            if isinstance(part, Message):
                without_empty_options(part)
                if field.name in ("options", "features") and not part.ByteSize():
                    message.ClearField(field.name)
    return message


@pytest.mark.parametrize("seed", range(60))
def test_descriptors_equal_those_of_protoc(seed: int, compiler: Compiler) -> None:
    text = Sample(seed).text()
    assert parse_protobuf(text, []).file == compiler.compile(text)


@pytest.mark.parametrize("path", sorted(TYPES.glob("*.proto")), ids=lambda path: str(path.name))
def test_published_files_equal_those_of_protoc(path: Path, compiler: Compiler) -> None:
    text = path.read_text()
    assert parse_protobuf(text, []).file == compiler.compile(text)


def test_references_equal_those_of_protoc(compiler: Compiler) -> None:
    others = [
        dependency("shop/base.proto", PROTO3 + "package shop; message Money { int64 units = 1; }"),
        dependency(
            "shop/all.proto",
            PROTO3 + 'import public "shop/base.proto"; package shop; enum Unit { NONE = 0; }',
        ),
    ]
    text = PROTO3 + (
        'import "shop/all.proto"; package shop.orders; message Order { Money total = 1;'
        " shop.Unit unit = 2; map<string, .shop.Money> parts = 3; }"
    )
    schema = parse_protobuf(text, others)
    assert schema.file == compiler.compile(text, others)
    assert [file.name for file in schema.files] == [
        "shop/base.proto",
        "shop/all.proto",
        "schema.proto",
    ]


def test_descriptors_build_a_pool() -> None:
    text = (
        PROTO3 + 'import "google/protobuf/struct.proto"; message M { google.protobuf.Value v = 1; }'
    )
    pool = DescriptorPool()
    for file in parse_protobuf(text, []).files:
        pool.AddSerializedFile(file.SerializeToString())
    kind = pool.FindMessageTypeByName("M").fields[0].message_type
    assert kind is not None
    assert kind.full_name == struct_pb2.Value.DESCRIPTOR.full_name


@pytest.mark.parametrize("seed", range(100, 160))
def test_both_forms_have_one_identity(seed: int) -> None:
    schema = parse_protobuf(Sample(seed).text(), [])
    descriptor = parse_protobuf(schema.formatted("serialized"), [])
    assert descriptor.identity == schema.identity
    printed = parse_protobuf(descriptor.text, [])
    assert printed.identity == schema.identity
    expected = FileDescriptorProto()
    expected.CopyFrom(schema.file)
    assert without_empty_options(printed.file) == without_empty_options(expected)


@pytest.mark.parametrize("module", [timestamp_pb2, struct_pb2, money_pb2])
def test_descriptors_of_python_clients_have_the_identity_of_their_source(module: Any) -> None:
    name = module.DESCRIPTOR.name
    root = BUILTIN if name.startswith("google/protobuf/") else TYPES.parent.parent
    sent = base64.standard_b64encode(module.DESCRIPTOR.serialized_pb).decode()
    source = parse_protobuf((root / name).read_text(), [])
    assert parse_protobuf(sent, []).identity == source.identity


def test_formatting_does_not_change_the_identity() -> None:
    text = (
        PROTO3 + "package shop; message Order { Line line = 0x1; message Line { int32 id = 1; } }"
    )
    other = (
        "// Orders.\nsyntax = 'pro' \"to3\";\n/* ; */ package shop;\nmessage Order {\n"
        "  .shop.Order.Line line = 1;;\n  message Line { int32 id = /* id */ 01; }\n}\n"
    )
    schemas = [parse_protobuf(source, []) for source in (text, other)]
    assert schemas[0].identity == schemas[1].identity
    assert [schema.text for schema in schemas] == [text, other]


@pytest.mark.parametrize(
    "other",
    [
        "message Order { Line line = 2; message Line { int32 id = 1; } }",
        "message Order { Line lines = 1; message Line { int32 id = 1; } }",
        "message Order { optional Line line = 1; message Line { int32 id = 1; } }",
        "message Order { Line line = 1 [deprecated = true]; message Line { int32 id = 1; } }",
        "message Order { Line line = 1; message Line { int32 id = 1; } } message More {}",
        "message Order { reserved 5; Line line = 1; message Line { int32 id = 1; } }",
    ],
)
def test_other_schemas_have_another_identity(other: str) -> None:
    text = "message Order { Line line = 1; message Line { int32 id = 1; } }"
    schemas = [parse_protobuf(PROTO3 + source, []) for source in (text, other)]
    assert schemas[0].identity != schemas[1].identity


def test_nested_messages_keep_their_index() -> None:
    """Clients refer to a message by its index, and maps and groups count."""
    text = (
        'syntax = "proto2"; message M { message A {} map<int32, int32> b = 1; message C {}'
        " optional group D = 2 {} oneof e { group F = 3 {} } message G {} }"
    )
    schema = parse_protobuf(text, [])
    expected = ["A", "BEntry", "C", "D", "F", "G"]
    for form in (schema, parse_protobuf(schema.formatted("serialized"), []), schema.normalized()):
        nested = form.file.message_type[0].nested_type
        assert [message.name for message in nested] == expected


def test_order_without_meaning_has_one_normal_form() -> None:
    text = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/any.proto";
option java_package = "a";
option java_multiple_files = true;
message Order {
  reserved 8, 5 to 7;
  reserved "b", "a";
  string id = 1;
  map<string, int32> x = 2;
  map<string, int32> y = 3;
  oneof first { int32 f = 10; }
  oneof second { int32 g = 11; google.protobuf.Any h = 12; }
  optional google.protobuf.Timestamp t = 4;
}
enum B { B_NONE = 0; B_ONE = 1; B_TWO = 2; }
enum A { A_NONE = 0; }
service S { rpc X (Order) returns (Order); rpc W (Order) returns (Order); }
"""
    other = """
syntax = "proto3";
import public "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";
package shop;
option java_multiple_files = true;
option java_package = "a";
service S { rpc W (shop.Order) returns (Order); rpc X (Order) returns (.shop.Order); }
enum A { A_NONE = 0; }
enum B { B_NONE = 0; B_TWO = 2; B_ONE = 1; }
message Order {
  oneof second { .google.protobuf.Any h = 12; int32 g = 11; }
  map<string, int32> y = 3;
  oneof first { int32 f = 10; }
  optional google.protobuf.Timestamp t = 4;
  map<string, int32> x = 2;
  string id = 1;
  reserved "a";
  reserved 5 to 7, 8;
  reserved "b";
}
"""
    schemas = [parse_protobuf(source, []) for source in (text, other)]
    assert schemas[0].identity != schemas[1].identity
    normal = [schema.normalized() for schema in schemas]
    assert normal[0].text == normal[1].text
    assert normal[0].identity == normal[1].identity
    assert ".google.protobuf.Timestamp t = 4;" in normal[0].text


@pytest.mark.parametrize("seed", range(200, 240))
def test_the_normal_form_is_stable(seed: int) -> None:
    normal = parse_protobuf(Sample(seed).text(), []).normalized()
    assert normal.normalized().text == normal.text == normal.identity


def test_formats() -> None:
    text = (
        'syntax = "proto2"; import "confluent/meta.proto"; message M { extensions 5;'
        ' optional int32 a = 1 [(confluent.field_meta).doc = "id", deprecated = true]; }'
        " extend M { optional int32 b = 5; }"
    )
    schema = parse_protobuf(text, [])
    assert schema.formatted("") == text
    file = FileDescriptorProto.FromString(base64.b64decode(schema.formatted("serialized")))
    assert file == schema.file
    plain = schema.formatted("ignore_extensions")
    assert parse_protobuf(plain, []).formatted("ignore_extensions") == plain
    assert "optional int32 a = 1 [deprecated = true];" in plain
    assert "ext" not in plain
    with pytest.raises(InvalidSchema, match=r"resolved.*serialized, ignore_extensions"):
        schema.formatted("resolved")


def test_custom_options_are_set_as_protoc_sets_them(compiler: Compiler) -> None:
    options = dependency(
        "my/options.proto",
        'syntax = "proto2"; package my; import "google/protobuf/descriptor.proto";'
        " message Rule { optional string name = 1; repeated int32 sizes = 2; extensions 9; }"
        " extend Rule { optional Rule inner = 9; }"
        " extend google.protobuf.FieldOptions { optional Rule rule = 50000; }",
    )
    text = PROTO3 + (
        'import "my/options.proto"; package shop; message Order { string id = 1 [(my.rule) = {'
        ' name: "a" "b" sizes: [1, 0x2] [my.inner] < name: \'c\' > }];'
        ' string x = 2 [(my.rule).(my.inner).name = "d"]; }'
    )
    schema = parse_protobuf(text, [options])
    assert schema.file == compiler.compile(text, [options])
    again = parse_protobuf(schema.formatted("serialized"), [options])
    assert again.identity == schema.identity
    assert 'name: "ab"' in again.text


def test_descriptors_keep_options_that_a_message_of_theirs_declares() -> None:
    text = (
        'syntax = "proto2"; import "google/protobuf/descriptor.proto"; message Holder {'
        " extend google.protobuf.FieldOptions { optional string note = 50001; } }"
        ' message M { optional int32 a = 1 [(Holder.note) = "x"]; }'
    )
    schema = parse_protobuf(text, [])
    again = parse_protobuf(schema.formatted("serialized"), [])
    assert again.identity == schema.identity
    assert '(Holder.note) = "x"' in again.text


def test_the_utf8_option_of_a_map_applies_to_its_entry(compiler: Compiler) -> None:
    others = ("deprecated = true", "retention = RETENTION_RUNTIME", "lazy = false", "weak = false",
              "debug_redact = true", "unverified_lazy = false", "jstype = JS_NORMAL",
              "targets = TARGET_TYPE_FIELD", "targets = TARGET_TYPE_FILE")  # fmt: skip
    text = (
        'edition = "2023"; message M { map<string, string> a = 1'
        f" [features.utf8_validation = NONE, {', '.join(others)}]; }}"
    )
    assert parse_protobuf(text, []).file == compiler.compile(text)


@pytest.mark.parametrize("value", [r'"a\" "', r'"\" \""', r'" \" " "b"', r'"\\" "b"', r'"\1" "2"'])
def test_quotes_in_defaults_are_read_as_protoc_reads_them(value: str, compiler: Compiler) -> None:
    text = (
        f'syntax = "proto2"; message M {{ optional string a = 1 [default = {value}];'
        f" optional bytes b = 2 [default = {value}]; }}"
    )
    schema = parse_protobuf(text, [])
    assert schema.file == compiler.compile(text)
    assert parse_protobuf(schema.identity, []).file == schema.file


def test_custom_options_without_a_declaration_stay() -> None:
    text = PROTO3 + (
        'option (gen.file) = { a: 1 b: "x" }; message M { int32 a = 1 [(gen.x).y = -5,'
        ' (gen.z) = 1.5, (gen.i) = IDENT, (gen.s) = "a\\tb"]; }'
    )
    schema = parse_protobuf(text, [])
    again = parse_protobuf(schema.formatted("serialized"), [])
    assert again.identity == schema.identity
    for part in ("(gen.x).y = -5", "(gen.z) = 1.5", "(gen.i) = IDENT", '(gen.s) = "a\\tb"'):
        assert part in again.text


def test_known_imports_need_no_reference() -> None:
    for name in (*COMPILED_IMPORTS, "confluent/meta.proto", "confluent/types/decimal.proto"):
        schema = parse_protobuf(f'{PROTO3} import "{name}"; message M {{}}', [])
        assert name in [file.name for file in schema.files]


def test_copies_of_known_imports_are_ignored() -> None:
    name = "google/protobuf/timestamp.proto"
    text = f'{PROTO3} import "{name}"; message M {{ google.protobuf.Timestamp t = 1; }}'
    copy = dependency(name, PROTO3 + "package google.protobuf; message Timestamp {}")
    schema = parse_protobuf(text, [copy])
    assert schema.files[0].message_type[0].field[0].name == "seconds"


def test_references_may_be_descriptors() -> None:
    base = parse_protobuf(PROTO3 + "package shop; message Money { int64 units = 1; }", [])
    text = PROTO3 + 'import "money.proto"; message Order { shop.Money total = 1; }'
    for form in ("", "serialized"):
        schema = parse_protobuf(text, [dependency("money.proto", base.formatted(form))])
        assert schema.files[0].message_type[0].name == "Money"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("message M {", "Line 1, column 12: unexpected the end of the text"),
        (PROTO3 + "\nmessage M {\n int32 a 1; }", "Line 3, column 10: unexpected 1"),
        ('syntax = "proto4"; message M {}', "proto4"),
        ('edition = "2022"; message M {}', "2022.*2023, 2024"),
        (PROTO3 + "message M { required int32 a = 1; }", "required.*not allowed in proto3"),
        ("message M { int32 a = 1; }", "needs a label"),
        (PROTO3 + "message M { int32 a = 0; }", "from 1 to 536870911"),
        (PROTO3 + "message M { int32 a = 536870912; }", "from 1 to 536870911"),
        (PROTO3 + "message M { int32 a = 19500; }", "19000 to 19999"),
        (PROTO3 + "message M { int32 a = 08; }", "malformed number 08"),
        (PROTO3 + "message M { int32 a = 1; int32 b = 1; }", "number 1 for the field a and"),
        (PROTO3 + "message M { int32 a = 1; string a = 2; }", "M.a is defined twice"),
        (PROTO3 + "message M { reserved 1 to 3; int32 a = 2; }", "number 2 for a reserved range"),
        (PROTO3 + 'message M { reserved "a"; int32 a = 2; }', "M.a has a reserved name"),
        (PROTO3 + "message M { int32 a_b = 1; int32 aB = 2; }", "same JSON name aB"),
        (PROTO3 + "message M { Foo a = 1; }", "M.a refers to Foo, which is not defined"),
        (PROTO3 + "message M { oneof o {} }", "oneof o has no fields"),
        (PROTO3 + "enum E {}", "enum E has no constants"),
        (PROTO3 + "enum E { A = 1; }", "first value must be zero"),
        (PROTO3 + "enum E { A = 0; B = 0; }", "allow_alias"),
        (PROTO3 + "enum E { A = 0; } enum F { A = 0; }", "A is defined twice"),
        (PROTO3 + "enum E { A = 2147483648; }", "from -2147483648 to 2147483647"),
        (PROTO3 + 'import "a.proto"; message M {}', "'a.proto' does not exist.*reference"),
        (PROTO3 + 'import "schema.proto"; message M {}', "'schema.proto' does not exist"),
        (PROTO3 + "option nonsense = 1; message M {}", 'no field named "nonsense"'),
        (PROTO3 + "option java_package = 1; message M {}", "java_package is invalid"),
        (PROTO3 + 'option java_package = "\\xff"; message M {}', "java_package is invalid"),
        (PROTO3 + "message M { option deprecated = true; option deprecated = true; }", "second"),
        (PROTO3 + "message M { option map_entry = true; }", "map_entry cannot be set"),
        ('syntax = "proto2"; message M { optional int32 a = 1 [default = 5000000000]; }', "fit"),
        ('syntax = "proto2"; message M { optional bool a = 1 [default = 1]; }', "not fit"),
        (PROTO3 + "message M { int32 a = 1 [default = 1]; }", "not allowed in proto3"),
        (PROTO3 + "message M { extensions 5; }", "not allowed in proto3"),
        ('syntax = "proto2"; message M { extensions 5; } extend M { optional int32 a = 6; }', "6"),
        (PROTO3 + 'option java_package = "\\z"; message M {}', "escape .z in a string is unknown"),
        (PROTO3 + 'option java_package = "\\ud800"; message M {}', "not a Unicode character"),
        (PROTO3 + "message M\u00e9 {}", "unexpected character"),
        (PROTO3 + "message M {\0}", "unexpected character '.x00'"),
        (PROTO3 + 'message M {} option java_package = "\ud800";', "surrogate"),
    ],
)
def test_invalid_schemas_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=f"(?s){reason}"):
        parse_protobuf(text, [])


def test_types_of_files_that_are_not_imported_are_refused() -> None:
    base = dependency("base.proto", PROTO3 + "message Base {}")
    middle = dependency("middle.proto", PROTO3 + 'import "base.proto"; message Middle {}')
    text = PROTO3 + 'import "middle.proto"; message M { Base a = 1; }'
    with pytest.raises(InvalidSchema, match=r"M\.a refers to Base"):
        parse_protobuf(text, [base, middle])


def test_cyclic_imports_are_refused() -> None:
    first = dependency("a.proto", PROTO3 + 'import "b.proto"; message A {}')
    second = dependency("b.proto", PROTO3 + 'import "a.proto"; message B {}')
    with pytest.raises(InvalidSchema, match="does not exist"):
        parse_protobuf(PROTO3 + 'import "a.proto"; message M {}', [first, second])


def descriptor_of(fields: int) -> str:
    file = FileDescriptorProto(name="x", syntax="proto3")
    message = file.message_type.add(name="M")
    for number in range(1, fields + 1):
        message.field.add(name=f"f{number}", number=number, type=5, label=1)
    return base64.b64encode(file.SerializeToString()).decode()


def nested_descriptor(depth: int) -> str:
    """Return a descriptor with nested messages, deeper than the library writes them."""
    name = b"\x0a\x01M"
    inner = name
    for _ in range(depth):
        inner = name + embedded(b"\x1a", inner)
        if len(inner) > 100_000:
            break
    file = FileDescriptorProto(name="x", syntax="proto3").SerializeToString()
    return base64.b64encode(file + embedded(b"\x22", inner)).decode()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ('field { name: "a" oneof_index: 1 }', r"oneof of M\.a is not declared"),
        ('field { name: "a" oneof_index: -1 }', r"oneof of M\.a is not declared"),
        (
            'field { name: "a" type_name: "AEntry" }'
            ' nested_type { name: "AEntry" options { map_entry: true } }',
            r"map M\.a does not have one key and one value",
        ),
        ('field { name: "a" type: TYPE_GROUP type_name: "M" }', r"group M\.a has no message"),
        ("options { uninterpreted_option {} }", "option .* has no value"),
    ],
)
def test_malformed_descriptors_are_refused(fields: str, reason: str) -> None:
    text = f'message_type {{ name: "M" oneof_decl {{ name: "o" }} {fields} }}'
    file = text_format.Parse(text, FileDescriptorProto(name="x"))
    with pytest.raises(InvalidSchema, match=reason):
        parse_protobuf(base64.b64encode(file.SerializePartialToString()).decode(), [])


def embedded(tag: bytes, content: bytes) -> bytes:
    """Return the encoding of a message field."""
    size = len(content)
    head = bytearray(tag)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + content


def fields(count: int) -> str:
    return "".join(f"int32 f{number} = {number};" for number in range(20_000, 20_000 + count))


RANGES = ",".join(str(number) for number in range(1, 10_000, 2))
TOTAL = "its references have more than 100000 tokens"
HOSTILE = {
    "nested messages": (PROTO3 + "message M {" * 10_000 + "}" * 10_000, "deeper than 64 levels"),
    "braces": ("{" * (1 << 20), TOTAL),
    "large": ("a" * ((1 << 20) + 1), "has 1048577 bytes"),
    "fields": (f"{PROTO3} message M {{ {fields(40_000)} }}", TOTAL),
    "constants": (PROTO3 + "enum E {" + "".join(f"A{n}={n};" for n in range(60_000)) + "}", TOTAL),
    "statements": (PROTO3 + ";" * 1_000_000, TOTAL),
    "some statements": (PROTO3 + ";" * 20_001, "more than 20000 statements"),
    "some constants": (
        PROTO3 + "enum E {" + "".join(f"A{n}={n};" for n in range(10_001)) + "}",
        "more than 40000 tokens",
    ),
    "some dots": (PROTO3 + "message M { " + "a." * 101 + "a x = 1; }", "more than 100 dots"),
    "short open comment": (PROTO3 + "/*", "a comment is not closed"),
    "decimal digits": (
        PROTO3 + "message M { int32 a = " + "9" * 1_000_000 + "; }",
        "a number has 1000000 characters",
    ),
    "hexadecimal digits": (
        PROTO3 + "message M { int32 a = 0x" + "f" * 1_000_000 + "; }",
        "a number has 1000002 characters",
    ),
    "exponents": (
        PROTO3 + "message M { int32 a = 1" + "e+1" * 300_000 + "; }",
        "a number has 900001 characters",
    ),
    "open string": (PROTO3 + 'option java_package = "' + "a" * 1_000_000, "a string is not closed"),
    "open strings": ('"\n' * 500_000, TOTAL),
    "open comment": (PROTO3 + "/*" + "*" * 1_000_000, TOTAL),
    "open comments": ("/*" * 500_000, TOTAL),
    "comments": ("/**/" * 250_000 + "!", "unexpected character '!'"),
    "escapes": (PROTO3 + 'option java_package = "' + "\\" * 1_000_001 + '";', TOTAL),
    "strings": (PROTO3 + "option java_package = " + '"a" ' * 250_000 + ";", TOTAL),
    "long name": (PROTO3 + "message " + "a" * 1_000_000 + " {}", "a name has 1000000 characters"),
    "dotted type": (PROTO3 + "message M { " + "a." * 500_000 + "a x = 1; }", TOTAL),
    "dotted option": (PROTO3 + "option " + "a." * 500_000 + "a = 1;", TOTAL),
    "extension name": (PROTO3 + "option " + "(a)." * 250_000 + "a = 1;", TOTAL),
    "literal": (PROTO3 + "option (a) = " + "{a:" * 100_000 + "1" + "}" * 100_000 + ";", TOTAL),
    "imports": (
        PROTO3 + "".join(f'import "{number}.proto";' for number in range(10_000)),
        "imports more than 500 files",
    ),
    "fields of a descriptor": (descriptor_of(12_000), "more than 40000 tokens"),
    "nested descriptor": (nested_descriptor(90), "M is nested deeper than 64 levels"),
    "deep descriptor": (nested_descriptor(5_000), "malformed number"),
    "base64": (base64.b64encode(bytes(range(256)) * 3_000).decode(), "more than 40000 tokens"),
}


@pytest.mark.parametrize(("text", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused_quickly(text: str, reason: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidSchema, match=reason):
        parse_protobuf(text, [])
    assert time.process_time() - started < SECONDS_MAX


def test_references_share_the_limits() -> None:
    others = [
        dependency(f"{letter}.proto", f"{PROTO3} message {letter} {{ {fields(3_500)} }}")
        for letter in "ABCDEFG"
    ]
    started = time.process_time()
    with pytest.raises(InvalidSchema, match=TOTAL):
        parse_protobuf(PROTO3 + "message M {}", others)
    assert time.process_time() - started < SECONDS_MAX


def test_references_share_the_limit_of_elements() -> None:
    others = [
        dependency(f"{letter}.proto", f"{PROTO3} message {letter} {{ reserved {RANGES}; }}")
        for letter in "ABCDE"
    ]
    with pytest.raises(InvalidSchema, match="its references have more than 20000 types"):
        parse_protobuf(PROTO3 + "message M {}", others)


def test_large_schemas_are_accepted() -> None:
    text = PROTO3 + "".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(2_500))
    schema = parse_protobuf(text + "message M2500 {}", [])
    assert len(schema.file.message_type) == 2_501
    nested = "".join(f"message M{n} {{" for n in range(60)) + "}" * 60
    assert parse_protobuf(PROTO3 + nested, []).normalized()


@pytest.mark.parametrize("seed", range(8))
def test_mutated_texts_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        text = mutated(Sample(rng.randrange(1 << 20)).text(), rng)
        check_parses_or_is_refused(text)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_descriptors_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        schema = parse_protobuf(Sample(rng.randrange(1 << 20)).text(), [])
        serialized = bytearray(base64.b64decode(schema.formatted("serialized")))
        for _ in range(rng.randint(1, 4)):
            serialized[rng.randrange(len(serialized))] = rng.randrange(256)
        check_parses_or_is_refused(base64.b64encode(serialized).decode())


def check_parses_or_is_refused(text: str) -> None:
    try:
        schema = parse_protobuf(text, [])
    except InvalidSchema:
        return
    assert parse_protobuf(schema.text, []).identity == schema.identity
    assert parse_protobuf(schema.formatted("serialized"), []).identity == schema.identity
    assert isinstance(schema.normalized(), ProtobufSchema)


def mutated(text: str, rng: random.Random) -> str:
    characters = list(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(characters))
        match rng.randrange(4):
            case 0:
                del characters[place : place + rng.randint(1, 20)]
            case 1:
                characters.insert(place, rng.choice("{}[]()<>;=.,\"'/*\\\0\n09xé"))
            case 2:
                characters[place:place] = characters[place - 20 : place]
            case _:
                characters[place] = rng.choice("{}[]()<>;=.,-a1")
    return "".join(characters)
