"""The specification's tables say what the schema, the limits and the vectors say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from penstock.host import errors
from penstock.host.port import ChunkFormat
from penstock.host.server.connection import ANSWER_STALL_MS, FRAME_BYTES_PER_MS_MIN, FRAME_GRACE_MS
from penstock.host.server_machine import RANGES_PER_FRAME_MAX
from penstock.wire.frames import HEADER_BYTES_MAX, FrameType, Header
from tests.wire.frames.vectors import REFUSED

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "host-protocol.md").read_text("utf-8")
NAMES = {
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_ENUM: "enum",
}


def section(number: int) -> str:
    return TEXT.split(f"\n## {number}. ")[1].split("\n## ")[0]


def classes(number: int) -> list[str]:
    return re.findall(r"^\| `([a-z_]+)` \|", section(number), re.MULTILINE)


def type_of(field: Any) -> str:
    name = NAMES[field.type]
    if field.is_repeated:
        return f"repeated {name}" + (", packed" if field.is_packed else "")
    return f"optional {name}" if field.has_presence else name


def test_the_table_of_fields_is_the_schema() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([\w ,]+) \| (.+) \|$", section(3), re.MULTILINE)
    found = [(int(number), name, kind) for number, name, kind, _ in rows]
    expected = [(each.number, each.name, type_of(each)) for each in Header.DESCRIPTOR.fields]
    assert found == sorted(expected)
    known = set(FrameType.keys()) | {"all", "with", "PAYLOAD_IN_RING"}
    for *_, used in rows:
        assert set(re.split(r"[ ,]+", used)) <= known, used


def test_types_and_formats_have_their_numbers() -> None:
    text = re.sub(r"\s+", " ", section(3))
    sentence = text.split("Types: ")[1].split(". Formats: ")
    types = dict(part.split(" ") for part in sentence[0].split(", "))
    assert {name: int(number) for name, number in types.items()} == {
        name: number for name, number in FrameType.items() if number
    }
    formats = dict(part.split(" ") for part in sentence[1].split(".")[0].split(", "))
    assert {name: int(number) for name, number in formats.items()} == {
        each.name: each.value for each in ChunkFormat
    }


def test_every_class_of_refusal_is_described_and_has_vectors() -> None:
    assert sorted(classes(2)) == sorted({each["class"] for each in REFUSED["malformed"]})
    assert sorted(classes(10)) == sorted({each["class"] for each in REFUSED["violations"]})


def test_the_limits_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section(11), re.MULTILINE))
    plain = {name: text.replace(",", "") for name, text in rows.items()}
    assert plain["header"] == f"{HEADER_BYTES_MAX} bytes"
    assert plain["chunks in a DATA_BATCH"] == str(errors.CHUNKS_PER_FRAME_MAX)
    assert plain["topics in a HELLO"] == str(errors.TOPICS_PER_HELLO_MAX)
    assert plain["pairs in an ACCEPTED"] == str(RANGES_PER_FRAME_MAX)
    assert plain["`reason`"] == f"{errors.REASON_CHARS_MAX} characters"
    assert plain["events in a frame"] == "2³¹ - 1"
    assert errors.EVENTS_PER_FRAME_MAX == errors.PARTITION_MAX == errors.LOG_SEQUENCES - 1
    assert errors.EVENTS_PER_FRAME_MAX == 2**31 - 1
    assert plain["sequences"] == "0 to 2⁶³ - 2"
    assert errors.SEQUENCE_MAX == 2**63 - 1


def test_the_times_are_those_of_the_code() -> None:
    silence = re.sub(r"\s+", " ", section(7))
    assert f"after {ANSWER_STALL_MS / 1000:.0f} s without progress" in silence
    assert f"within {FRAME_GRACE_MS / 1000:.0f} s" in silence
    assert f"for each {FRAME_BYTES_PER_MS_MIN} bytes" in silence
