"""What a format is told when its settings or its schema cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.formats import InvalidFormat, ValueFormat, decoder
from tests.spark.formats.protobuf.messages import PROTO


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"kind": "xml"}, "format", "must be one of"),
        ({"kind": "json"}, "schema", "needs a schema"),
        ({"kind": "json", "schema": "infer"}, "schema", "infer_json"),
        ({"kind": "json", "schema": "a nonsense b"}, "schema", "Spark's DDL"),
        ({"kind": "json", "schema": "a interval"}, "schema", "cannot be read from JSON"),
        ({"kind": "json", "schema": "a map<int, int>"}, "schema", "must be strings"),
        ({"kind": "json", "schema": "a int, a int"}, "schema", "comes twice"),
        ({"kind": "text", "schema": "a int"}, "schema", "is for json"),
        ({"kind": "avro"}, "schema_file", "needs a schema file"),
        ({"kind": "avro", "schema_file": Path("/none.avsc")}, "schema_file", "cannot be read"),
        ({"kind": "raw", "schema_file": Path("x")}, "schema_file", "has none"),
        ({"kind": "raw", "message": "A"}, "message", "is for protobuf"),
        ({"kind": "raw", "framing": "confluent"}, "framing", "has no framing"),
        ({"kind": "text", "unknown_fields": "reject"}, "unknown_fields", "is for JSON"),
    ],
)
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_settings_that_cannot_be(settings: Any, name: str, reason: str) -> None:
    with pytest.raises(InvalidFormat) as raised:
        decoder(ValueFormat(**settings))
    assert raised.value.name == name
    assert reason in raised.value.reason


def field(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("string", "must be of a record"),
        (field("text"), "names the type 'text'"),
        (field("R"), "within itself"),
        (field(["null", {"type": "array", "items": "R"}]), "within itself"),
        (field({"type": "array", "items": "null"}), "take no bytes"),
        (field({"type": "array"}), "has no 'items'"),
        (field([]), "without branches"),
        (field(["null", ["int"]]), "union within a union"),
        (field(["null", "null"]), "null twice"),
        (field({"type": "enum", "name": "E", "symbols": []}), "without a list of symbols"),
        (field({"type": "fixed", "name": "F", "size": -1}), "size -1"),
        (field({"type": "bytes", "logicalType": "decimal", "precision": 39}), "precision 39"),
        (field({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}), "scale 3"),
        (field({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}),
         "a second time"),
        ({"type": "record", "name": "R", "fields": []}, "without fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "has no type"),
        ({"type": "record", "fields": []}, "has no name"),
        (5, "is not a schema"),
    ],
)  # fmt: skip
def test_avro_schemas_that_cannot_be(tmp_path: Path, document: Any, reason: str) -> None:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidFormat) as raised:
        decoder(ValueFormat(kind="avro", schema_file=path))
    assert reason in raised.value.reason


def test_avro_schemas_too_deep_or_not_json(tmp_path: Path) -> None:
    path = tmp_path / "schema.avsc"
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    path.write_text(json.dumps(field(deep)))
    with pytest.raises(InvalidFormat, match="nests deeper than 32"):
        decoder(ValueFormat(kind="avro", schema_file=path))
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidFormat, match="is not JSON"):
        decoder(ValueFormat(kind="avro", schema_file=path))


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ('syntax = "proto3"; message A { A a = 1; }', None, "within itself"),
        ('syntax = "proto3"; message A { }', None, "has no fields"),
        ('syntax = "proto2"; message A { optional group G = 1 { optional int32 x = 1; } }',
         "A", "is a group"),
        ("nonsense", None, "does not compile"),
        (PROTO, None, "must be said"),
        (PROTO, "shop.Gone", "is not in schema.proto"),
        (PROTO, "google.protobuf.Timestamp", "is one value"),
    ],
)  # fmt: skip
def test_protobuf_schemas_that_cannot_be(
    tmp_path: Path, text: str, message: str | None, reason: str
) -> None:
    path = tmp_path / "schema.proto"
    path.write_text(text)
    with pytest.raises(InvalidFormat) as raised:
        decoder(ValueFormat(kind="protobuf", schema_file=path, message=message))
    assert reason in raised.value.reason


def test_a_compiled_descriptor_set(tmp_path: Path) -> None:
    from grpc_tools import protoc

    (tmp_path / "s.proto").write_text('syntax = "proto3"; package p; message A { int32 x = 1; }')
    path = tmp_path / "s.binpb"
    assert protoc.main(["", f"-I{tmp_path}", f"--descriptor_set_out={path}", "s.proto"]) == 0
    made = decoder(ValueFormat(kind="protobuf", schema_file=path))
    assert made.schema.simpleString() == "struct<x:int>"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(InvalidFormat, match="not a compiled descriptor set"):
        decoder(ValueFormat(kind="protobuf", schema_file=path))


def test_without_the_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.proto"
    path.write_text('syntax = "proto3"; message A { int32 x = 1; }')
    # None in the table of modules is how Python says that there is no such module.
    monkeypatch.setitem(sys.modules, "grpc_tools.protoc", None)
    with pytest.raises(InvalidFormat, match=r"penstock\[pipelines\]"):
        decoder(ValueFormat(kind="protobuf", schema_file=path))
