"""Readers: errors of unusable schema files, and values with and without framing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.formats import InvalidFormat, ValueFormat
from penstock.formats.readers import avro_reader, protobuf_reader
from tests.formats.avro.reference import long
from tests.formats.protobuf.messages import PROTO

HEAD = b"\x00\x00\x00\x00\x09"
IMPORTS_ALL = """
import importlib, pkgutil, sys
import penstock.formats as room
for module in pkgutil.walk_packages(room.__path__, "penstock.formats."):
    importlib.import_module(module.name)
found = [name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")]
sys.exit(", ".join(found[:5]) or 0)
"""


def test_the_room_does_not_load_spark() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_ALL], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def field(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("string", "must be a record"),
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
        (5, "must be a schema"),
    ],
)  # fmt: skip
def test_avro_schemas_that_cannot_be(tmp_path: Path, document: Any, reason: str) -> None:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidFormat) as raised:
        avro_reader(ValueFormat(kind="avro", schema_file=path))
    assert reason in raised.value.reason


def test_avro_schemas_too_deep_or_not_json(tmp_path: Path) -> None:
    path = tmp_path / "schema.avsc"
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    path.write_text(json.dumps(field(deep)))
    with pytest.raises(InvalidFormat, match="nests deeper than 32"):
        avro_reader(ValueFormat(kind="avro", schema_file=path))
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidFormat, match="is not JSON"):
        avro_reader(ValueFormat(kind="avro", schema_file=path))


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ('syntax = "proto3"; message A { A a = 1; }', None, "within itself"),
        ('syntax = "proto3"; message A { }', None, "has no fields"),
        ('syntax = "proto2"; message A { optional group G = 1 { optional int32 x = 1; } }',
         "A", "is a group"),
        ("nonsense", None, "does not compile"),
        (PROTO, None, "is required"),
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
        protobuf_reader(ValueFormat(kind="protobuf", schema_file=path, message=message))
    assert reason in raised.value.reason


def test_a_compiled_descriptor_set(tmp_path: Path) -> None:
    from grpc_tools import protoc

    (tmp_path / "s.proto").write_text('syntax = "proto3"; package p; message A { int32 x = 1; }')
    path = tmp_path / "s.binpb"
    assert protoc.main(["", f"-I{tmp_path}", f"--descriptor_set_out={path}", "s.proto"]) == 0
    made = protobuf_reader(ValueFormat(kind="protobuf", schema_file=path))
    assert str(made.arrow_type()) == "struct<x: int32>"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(InvalidFormat, match="not a compiled descriptor set"):
        protobuf_reader(ValueFormat(kind="protobuf", schema_file=path))


def test_without_the_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.proto"
    path.write_text('syntax = "proto3"; message A { int32 x = 1; }')
    # None in the table of modules is how Python says that there is no such module.
    monkeypatch.setitem(sys.modules, "grpc_tools.protoc", None)
    with pytest.raises(InvalidFormat, match=r"penstock\[pipelines\]"):
        protobuf_reader(ValueFormat(kind="protobuf", schema_file=path))


def test_framed_values(tmp_path: Path) -> None:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(field("long")))
    framed = avro_reader(ValueFormat(kind="avro", schema_file=path, framing="confluent"))
    content = [HEAD + long(7), b"\x01" + HEAD[1:] + long(7), HEAD[:4], None, HEAD]
    found, errors = framed.read(pa.array(content, pa.binary()))
    assert found.type == framed.arrow_type()
    assert found.to_pylist() == [{"a": 7}, None, None, None, None]
    assert errors.to_pylist() == [
        None, "does not start with the magic byte 0 of the confluent framing",
        "shorter than the 5 bytes of the confluent framing", None, "field a: ends too early",
    ]  # fmt: skip


def test_framed_values_with_another_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(field("long")))
    chosen = ValueFormat(kind="avro", schema_file=path, framing="confluent", ids=(3, 7))
    content = [b"\0\0\0\0" + bytes([number]) + long(1) for number in (3, 5, 7, 5, 9)]
    found, errors = avro_reader(chosen).read(pa.array([*content, None, b"\0"], pa.binary()))
    assert found.to_pylist() == [{"a": 1}, None, {"a": 1}, None, None, None, None]
    foreign = 'but values with schema id 3, 7 are read. Use format = "registry"'
    texts = errors.to_pylist()
    assert [texts[row] for row in (0, 2, 5)] == [None] * 3
    assert all(foreign in texts[row] for row in (1, 3, 4))
    assert texts[1].startswith("has schema id 5, ")
    assert texts[4].startswith("has schema id 9, ")
    assert texts[6] == "shorter than the 5 bytes of the confluent framing"


@pytest.mark.parametrize(("indexes", "right"), [(long(0), "A"), (long(1) + long(1), "B"),
                                                (long(2) + long(1) + long(0), "B.C")])  # fmt: skip
def test_framed_messages_say_which_they_are(tmp_path: Path, indexes: bytes, right: str) -> None:
    path = tmp_path / "schema.proto"
    path.write_text(
        'syntax = "proto3"; message A { int32 x = 1; }'
        "message B { int32 x = 1; message C { int32 x = 1; } }"
    )
    values = pa.array([HEAD + indexes + b"\x08\x05"], pa.binary())
    for name in ("A", "B", "B.C"):
        settings = ValueFormat(
            kind="protobuf", schema_file=path, message=name, framing="confluent"
        )  # fmt: skip
        found, errors = protobuf_reader(settings).read(values)
        other = "message indexes: the value is of another message"
        assert found.to_pylist() == [{"x": 5} if name == right else None]
        assert errors.to_pylist() == [None if name == right else other]
