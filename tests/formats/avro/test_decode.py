"""Every value that the reference writes is read; what is damaged is said, and harms no other."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidError
from penstock.formats import leaves
from penstock.formats.avro import column_of_schema, parse
from penstock.formats.avro_decode import decode
from penstock.formats.values import Values
from tests.formats.avro.reference import encode, expected, long, records, sized
from tests.formats.protobuf.messages import damaged


def decoded(schema: Any, content: list[bytes | None]) -> tuple[list[Any], list[str | None]]:
    node = parse(schema)
    values, errors = decode(node, Values.of(pa.array(content, pa.binary())))
    values.validate(full=True)
    errors.validate(full=True)
    assert values.type == column_of_schema(node).type
    return values.to_pylist(), errors.to_pylist()


def record(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(data: Any) -> None:
    schema, values = data.draw(records(itertools.count()))
    given_values = data.draw(st.lists(values, max_size=6))
    how = data.draw(st.integers(1, 4))
    found, errors = decoded(schema, [encode(schema, value, how) for value in given_values])
    assert errors == [None] * len(given_values)
    assert found == [expected(schema, value) for value in given_values]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_cut_anywhere_a_value_is_an_error_and_its_neighbours_are_whole(data: Any) -> None:
    schema, values = data.draw(records(itertools.count()))
    first, cut, last = (encode(schema, data.draw(values)) for _ in range(3))
    (whole, behind), _ = decoded(schema, [first, last])
    content: list[bytes | None] = []
    for size in range(len(cut)):
        content += [first, cut[:size], last]
    content += [first, cut + b"\x00", last]
    found, errors = decoded(schema, content)
    assert found[0::3] == [whole] * (len(cut) + 1)
    assert found[2::3] == [behind] * (len(cut) + 1)
    assert all(errors[1::3])
    assert not any(errors[0::3] + errors[2::3])
    assert not any(found[1::3])


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_damage_never_raises_and_stays_where_it_is(data: Any) -> None:
    schema, values = data.draw(records(itertools.count()))
    good = encode(schema, data.draw(values))
    (whole,), _ = decoded(schema, [good])
    content = encode(schema, data.draw(values))
    pieces = damaged(content, data.draw(st.integers(0, 10_000)), 30)
    mixed = [piece for each in pieces for piece in (good, each)]
    node = parse(schema)
    found, errors = decode(node, Values.of(pa.array([*mixed, good], pa.binary())))
    found.validate(full=True)
    said = errors.to_pylist()
    assert found.take(pa.array(range(0, len(found), 2))).to_pylist() == [whole] * (len(pieces) + 1)
    assert not any(said[0::2])
    for number, each in enumerate(pieces):
        # As text: damage makes dates that Python's own type cannot hold.
        alone, reason = decode(node, Values.of(pa.array([each], pa.binary())))
        assert alone.to_string() == found.slice(2 * number + 1, 1).to_string()
        assert reason.to_pylist() == [said[2 * number + 1]]
        assert alone[0].is_valid == (not said[2 * number + 1])


def test_nothing_and_no_values() -> None:
    schema = record(a="string", b={"type": "array", "items": "string"})
    assert decoded(schema, []) == ([], [])
    assert decoded(schema, [None, None]) == ([None, None], [None, None])
    found, errors = decoded(schema, [None, sized(b"x") + b"\x00", b""])
    assert found == [None, {"a": "x", "b": []}, None]
    assert errors == [None, None, "field a: ends too early"]


def test_a_slice_of_an_array_is_read_from_its_offset() -> None:
    values = pa.array([b"\x02", b"\x04", None, b"\x06"], pa.binary())[1:]
    found, errors = decode(parse(record(a="long")), Values.of(values))
    assert found.to_pylist() == [{"a": 2}, None, {"a": 3}]
    assert errors.null_count == 3


@pytest.mark.parametrize(
    ("schema", "content", "error"),
    [
        ("boolean", b"\x02", "field a: is not a boolean"),
        ("int", long(2**31), "field a: does not fit an int"),
        ("long", b"\xff" * 10, "field a: a number of more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "field a: a number of more than 64 bits"),
        ("string", long(-1), "field a: a length below zero"),
        ("string", long(2**62), "field a: ends too early"),
        ("string", sized(b"\xc3"), "field a: text is not UTF-8"),
        ("string", sized(b"\xed\xa0\x80"), "field a: text is not UTF-8"),
        (["null", "int"], long(2), "field a: no such branch of the union"),
        (["null", "int"], long(-1), "field a: no such branch of the union"),
        ({"type": "enum", "name": "E", "symbols": ["X"]}, long(1), "field a: no such symbol"),
        ({"type": "array", "items": "string"}, long(2**61) + b"\x00", "field a: ends too early"),
        ({"type": "array", "items": "long"}, long(-(2**63)), "field a: ends too early"),
        ({"type": "array", "items": "long"}, long(-1) + long(99), "field a: ends too early"),
        (
            {"type": "array", "items": "string"},
            long(1) + sized(b"\xff") + long(0),
            "field a[]: text is not UTF-8",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            sized(b"\x64"),
            "field a: has more digits than decimal(2,0)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            sized(b"\x01" + b"\x00" * 16),
            "field a: has more digits than decimal(2,0)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            sized(b""),
            "field a: is a decimal without bytes",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            long(2**62),
            "field a: does not fit a timestamp",
        ),
        ("int", long(1) + b"\x00", "bytes follow the value"),
    ],
)
def test_errors_say_the_field_and_the_reason(schema: Any, content: bytes, error: str) -> None:
    found, errors = decoded(record(a=schema), [content])
    assert (found, errors) == ([None], [error])


def test_columns_grow_as_long_as_there_is_more() -> None:
    """Few values with many items and long texts, each more than was guessed, and one that fails."""
    schema = record(
        a={"type": "array", "items": "string"},
        b={"type": "array", "items": {"type": "fixed", "name": "U", "size": 16,
                                      "logicalType": "uuid"}},
        c={"type": "map", "values": {"type": "array", "items": "long"}},
        d="string",
    )  # fmt: skip
    given_values = [
        {
            "a": [f"{n} " * n for n in range(100 * size)],
            "b": [str(uuid.UUID(int=n)) for n in range(100 * size)],
            "c": [(str(n), list(range(n))) for n in range(30 * size)],
            "d": "x" * 10_000 * size,
        }
        for size in (1, 3, 0, 2)
    ]
    content = [encode(schema, value, 50) for value in given_values]
    found, errors = decoded(schema, [*content[:2], content[1][:-1], *content[2:]])
    assert errors == [None, None, "field d: ends too early", None, None]
    assert [found[0], found[1], *found[3:]] == [expected(schema, value) for value in given_values]


def test_more_text_than_arrow_can_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "BATCH_BYTES_MAX", 2_500)
    schema = record(a={"type": "array", "items": {"type": "fixed", "name": "U", "size": 16,
                                                  "logicalType": "uuid"}})  # fmt: skip
    items = [str(uuid.UUID(int=n)) for n in range(100)]
    with pytest.raises(InvalidError, match="more than 2500 bytes of one column"):
        decoded(schema, [encode(schema, {"a": items})])
