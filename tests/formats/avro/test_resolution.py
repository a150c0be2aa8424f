"""Values of a writer's schema as a reader's: equal to those that fastavro resolves, and refused
with the place and the rule where a schema cannot read another.
"""

from __future__ import annotations

import io
import itertools
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats import avro_program
from penstock.formats.avro import NODES_MAX, column_of_schema, parse, parse_writer
from penstock.formats.avro_decode import run
from penstock.formats.avro_program import program
from penstock.formats.value_format import InvalidFormat
from penstock.formats.values import Values
from penstock.kernels.avro import NESTING_MAX
from tests.formats.avro.evolution import arrow_form, evolved, with_dicts
from tests.formats.avro.reference import encode, long, records, sized
from tests.formats.protobuf.messages import damaged


def resolved(
    writer: Any, reader: Any, content: list[bytes | None]
) -> tuple[list[Any], list[str | None]]:
    node = parse(reader)
    made = program(parse_writer(writer), node)
    values, errors = run(made, Values.of(pa.array(content, pa.binary())))
    values.validate(full=True)
    errors.validate(full=True)
    assert values.type == column_of_schema(node).type
    return values.to_pylist(), errors.to_pylist()


def record(*fields: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    """A record of fields, which are names and types, with defaults if they have any."""
    made = [
        {"name": name, "type": kind} | ({"default": default[0]} if default else {})
        for name, kind, *default in fields
    ]
    return {"type": "record", "name": "R", "fields": made} | more


def read_by_fastavro(writer: Any, reader: Any, content: bytes) -> Any:
    """The value, or None if fastavro refuses it."""
    try:
        return fastavro.schemaless_reader(io.BytesIO(content), writer, reader)
    except Exception:
        return None


def has_empty_list(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, list) and not value:
        return True
    return isinstance(value, dict | list | tuple) and any(map(has_empty_list, parts))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_evolved_schemas_read_what_fastavro_reads(data: Any) -> None:
    numbers = itertools.count()
    writer, values = data.draw(records(numbers))
    reader = data.draw(evolved(writer, numbers))
    if isinstance(reader, list):
        reader = next(part for part in reader if part != "null")
    drawn = data.draw(st.lists(values, min_size=1, max_size=4))
    content: list[bytes | None] = [encode(writer, value) for value in drawn]
    found, errors = resolved(writer, reader, content)
    for value, ours, error in zip(drawn, found, errors, strict=True):
        theirs = read_by_fastavro(writer, reader, encode(writer, value))
        assert (ours is None) == (error is not None)
        if theirs is None:
            # fastavro refuses a list by its type, even if no item has to be read.
            assert error is not None or has_empty_list(value)
        elif error is None:
            assert with_dicts(reader, ours) == arrow_form(reader, theirs)
        else:
            assert "has more digits" in error or "text is not UTF-8" in error


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_damage_never_raises_and_harms_no_other_value(data: Any) -> None:
    numbers = itertools.count()
    writer, values = data.draw(records(numbers))
    reader = data.draw(evolved(writer, numbers))
    if isinstance(reader, list):
        reader = next(part for part in reader if part != "null")
    good = encode(writer, data.draw(values))
    pieces = damaged(good, data.draw(st.integers(0, 10_000)), 20)
    mixed = [piece for each in pieces for piece in (good, each)]
    made = program(parse_writer(writer), parse(reader))
    found, errors = run(made, Values.of(pa.array([*mixed, good], pa.binary())))
    found.validate(full=True)
    places = pa.array(range(0, len(mixed) + 1, 2))
    alone, error = run(made, Values.of(pa.array([good] * len(places), pa.binary())))
    assert found.take(places).equals(alone)
    assert errors.take(places).equals(error)


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
INNER = {"type": "record", "name": "I", "fields": [
    {"name": "x", "type": "int"}, {"name": "y", "type": "string", "default": "why"},
]}  # fmt: skip
DEFAULTS = [
    ("null", None, None),
    ("boolean", True, True),
    ("int", -(2**31), -(2**31)),
    ("long", 2**63 - 1, 2**63 - 1),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", "NaN", float("nan")),
    ("double", 1e300, 1e300),
    ("double", "-Infinity", float("-inf")),
    ("bytes", "\u00ff\u0000a", b"\xff\x00a"),
    ("string", "\u00fc\U0001f600", "\u00fc\U0001f600"),
    (ENUM, "B", "B"),
    (FIXED, "\u00ff\u0001", b"\xff\x01"),
    (UUID, "\u0001" * 16, "01010101-0101-0101-0101-010101010101"),
    (MONEY, "\u00ff\u009c", Decimal("-1.00")),
    ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1000, SECOND),
    ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
    ({"type": "array", "items": {"type": "map", "values": MONEY}}, [{}, {"a": "\u0001"}],
     [[], [("a", Decimal("0.01"))]]),
    (INNER, {"x": 1}, {"x": 1, "y": "why"}),
    (["null", "string"], None, None),
    (["null", "string"], "s", "s"),
    (["int", "double"], 1.5, {"member0": None, "member1": 1.5}),
    (["float", "double"], 0.5, 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_fields_that_the_writer_lacks_have_their_default(
    kind: Any, default: Any, expected: Any
) -> None:
    reader = record(("before", "int"), ("new", kind, default), ("after", "string"))
    content: list[bytes | None] = [long(n) + sized(b"z") for n in range(3)]
    found, errors = resolved(record(("before", "int"), ("after", "string")), reader, content)
    assert errors == [None] * 3
    assert [row["before"] for row in found] == [0, 1, 2]
    for row in found:
        assert row["new"] == expected or repr(row["new"]) == repr(expected)


def test_defaults_need_no_room_that_lists_lack() -> None:
    """A default with many items is longer than the memory that a first estimate allocates."""
    kind = {"type": "array", "items": {"type": "record", "name": "I", "fields": [
        {"name": "t", "type": "string", "default": "t" * 600}]}}  # fmt: skip
    reader = record(("a", "int"), ("many", kind, [{}] * 50))
    found, errors = resolved(record(("a", "int")), reader, [long(1)] * 20)
    assert errors == [None] * 20
    assert found[19] == {"a": 1, "many": [{"t": "t" * 600}] * 50}


WRONG_DEFAULTS = [
    ("int", 2**31), ("int", "1"), ("boolean", 1), ("bytes", "\u0100"), ("string", 1), (ENUM, "C"),
    (FIXED, "a"), (MONEY, ""), (MONEY, "\u007f\u00ff"), ("float", "x"), (INNER, {}), (INNER, 1),
    ({"type": "array", "items": "int"}, {}), ({"type": "map", "values": "int"}, {"a": "b"}),
    (["null", "int"], "x"), ({"type": "long", "logicalType": "timestamp-millis"}, 2**62),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default"), WRONG_DEFAULTS)
def test_a_default_of_another_type_is_named(kind: Any, default: Any) -> None:
    reader = record(("a", "int"), ("new", kind, default))
    found, errors = resolved(record(("a", "int")), reader, [long(1)])
    assert found == [None]
    assert str(errors[0]).startswith("field new")
    assert str(errors[0]).endswith("(INVALID_DEFAULT)")


NODE = {"type": "record", "name": "Node", "fields": [
    {"name": "value", "type": "int"}, {"name": "next", "type": ["null", "Node"]},
    {"name": "all", "type": {"type": "array", "items": "Node"}},
    {"name": "by", "type": {"type": "map", "values": "Node"}},
]}  # fmt: skip


def chain(length: int) -> bytes:
    """Nodes that follow each other, the first ones also as items and entries."""
    inner = b""
    for number in range(length):
        behind = b"\2" + inner if inner else b"\0"
        extra = b"\0\0"
        if 0 < number < 3:
            leaf = long(9) + b"\0\0\0"
            extra = b"\2" + leaf + b"\0" + b"\3" + long(len(leaf) + 2) + sized(b"k") + leaf + b"\0"
        inner = long(number) + behind + extra
    return inner


def test_a_recursive_value_that_the_reader_lacks_is_skipped() -> None:
    writer = record(("before", "int"), ("node", NODE), ("after", "string"))
    reader = record(("after", "string"), ("before", "long"))
    tail = sized(b"z")
    content: list[bytes | None] = [long(1) + chain(n) + tail for n in (1, 2, 3, 300)]
    content += [long(1) + chain(NESTING_MAX + 5) + tail, long(1) + chain(3)[:-1] + tail]
    found, errors = resolved(writer, reader, content)
    assert found[:4] == [{"after": "z", "before": 1}] * 4
    assert found[4:] == [None, None]
    assert "nests deeper than 1024 levels" in str(errors[4])
    # Of a recursive type, the fields that the reader names are columns.
    reader = record(("node", NODE | {"fields": NODE["fields"][:1]}))
    assert resolved(writer, reader, content[:4])[0] == [
        {"node": {"value": number}} for number in (0, 1, 2, 299)
    ]


def test_every_type_can_be_skipped() -> None:
    kinds = [
        "null", "boolean", "int", "long", "float", "double", "bytes", "string", ENUM, FIXED, MONEY,
        UUID, {"type": "array", "items": ["null", "int"]}, {"type": "map", "values": "double"},
        INNER, ["string", "null"], {"type": "record", "name": "Empty", "fields": []},
    ]  # fmt: skip
    values = [
        None, True, 1, 2, 0.5, 0.5, b"b", "s", "A", b"ab", Decimal("0.01"),
        "01010101-0101-0101-0101-010101010101", [(0, None), (1, 5)], [("k", 0.5)],
        {"x": 1, "y": "y"}, (0, "s"), {},
    ]  # fmt: skip
    names = [f"f{number}" for number in range(len(kinds))]
    writer = record(*zip(names, kinds, strict=True), ("last", "int"))
    content = encode(writer, dict(zip(names, values, strict=True)) | {"last": 7})
    reader = record(("last", "int"))
    assert resolved(writer, reader, [content]) == ([{"last": 7}], [None])
    for size in range(len(content)):
        assert resolved(writer, reader, [content[:size]])[0] == [None]


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
DAY = {"type": "int", "logicalType": "date"}
TIME_MILLIS = {"type": "int", "logicalType": "time-millis"}
TIME_MICROS = {"type": "long", "logicalType": "time-micros"}
MEANINGS = [
    (MILLIS, MICROS, long(1000), SECOND),
    (MICROS, MILLIS, long(1_000_000), SECOND),
    ("long", MILLIS, long(1000), SECOND),
    ("int", MICROS, long(1_000_000), SECOND),
    (MILLIS, "long", long(1000), 1000),
    (TIME_MILLIS, TIME_MICROS, long(5), 5000),
    (TIME_MILLIS, "int", long(5), 5),
    ("bytes", MONEY, sized(b"\x64"), Decimal("1.00")),
    (MONEY, "bytes", sized(b"\x64"), b"\x64"),
    (MONEY | {"precision": 2}, MONEY, sized(b"\x63"), Decimal("0.99")),
    ({**UUID, "logicalType": "x"}, UUID, b"\1" * 16, "01010101-0101-0101-0101-010101010101"),
    (UUID, {**UUID, "logicalType": "x"}, b"\1" * 16, b"\1" * 16),
    (MILLIS, LOCAL, long(1), "LOGICAL_TYPE_MISMATCH"),
    (DAY, MICROS, long(1), "LOGICAL_TYPE_MISMATCH"),
    (MONEY, MONEY | {"scale": 1}, sized(b"\1"), "LOGICAL_TYPE_MISMATCH"),
    (MONEY, "string", sized(b"\1"), "LOGICAL_TYPE_MISMATCH"),
    (FIXED, FIXED | {"size": 3}, b"ab", "FIXED_SIZE_MISMATCH"),
    (FIXED, FIXED | {"name": "G"}, b"ab", "NAME_MISMATCH"),
    ("string", "int", sized(b"1"), "TYPE_MISMATCH"),
    (["null", "int"], "string", b"\2\2", "TYPE_MISMATCH"),
    ("string", ["null", "int"], sized(b"1"), "MISSING_UNION_BRANCH"),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "reader", "content", "expected"), MEANINGS)
def test_logical_types_keep_their_meaning(
    writer: Any, reader: Any, content: bytes, expected: Any
) -> None:
    found, errors = resolved(record(("a", writer)), record(("a", reader)), [content])
    if isinstance(expected, str) and expected.isupper():
        assert found == [None]
        assert str(errors[0]).startswith("field a: ")
        assert str(errors[0]).endswith(f"({expected})")
    else:
        assert (found, errors) == ([{"a": expected}], [None])


def test_the_branch_of_the_same_type_is_preferred() -> None:
    """A promotion is the second choice, in Avro's Java library too."""
    wide = ["null", "double", "long", "string", "bytes"]
    for writer, content, member, value in (
        ("int", long(3), "member0", 3.0),
        ("long", long(3), "member1", 3),
        ("bytes", sized(b"x"), "member3", b"x"),
        ("string", sized(b"x"), "member2", "x"),
        ("float", b"\0\0\0\x3f", "member0", 0.5),
    ):
        found, errors = resolved(record(("a", writer)), record(("a", wide)), [content])
        assert errors == [None]
        assert {name: part for name, part in found[0]["a"].items() if part is not None} == {
            member: value
        }


def test_a_field_with_two_sources_is_ambiguous() -> None:
    reader = record(("b", "int"))
    reader["fields"][0]["aliases"] = ["a"]
    writer = record(("a", "int"), ("b", "int"))
    found, errors = resolved(writer, reader, [long(1) + long(2)])
    assert found == [None]
    assert str(errors[0]).endswith("(AMBIGUOUS_FIELD_ALIAS)")
    assert resolved(record(("a", "int")), reader, [long(1)]) == ([{"b": 1}], [None])


def test_types_of_references_are_known() -> None:
    outer = record(("one", "I"), ("two", ["null", "I"], None))
    made = program(parse_writer(outer, [INNER, INNER]), parse(outer, [INNER]))
    content = long(1) + sized(b"y") + b"\0"
    values, errors = run(made, Values.of(pa.array([content], pa.binary())))
    assert values.to_pylist() == [{"one": {"x": 1, "y": "y"}, "two": None}]
    assert errors.to_pylist() == [None]


def test_large_schemas_are_refused_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    level: Any = "int"
    for number in range(20):  # each level uses the one below it twice
        level = record(
            ("a", level), ("b", f"R{number - 1}" if number else "int"), name=f"R{number}"
        )
    with pytest.raises(InvalidFormat, match=f"larger than {NODES_MAX} types and fields"):
        parse(level)
    with pytest.raises(InvalidFormat, match="larger than"):
        parse_writer(level)
    monkeypatch.setattr(avro_program, "STEPS_MAX", 5)
    plain = record(*[(f"f{number}", "int") for number in range(9)])
    with pytest.raises(InvalidFormat, match="needs more than 5 steps"):
        program(parse_writer(plain), parse(plain))
