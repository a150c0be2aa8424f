"""Values read by the types of the batch before equal those whose types are inferred."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connect.decoding import json_column
from penstock.connect.errors import RowsRejected
from penstock.connect.known_types import KnownTypes

USUAL = ('{"a":1,"b":0.5,"c":"x","d":[{"e":true}],"f":{"g":2}}', '{"a":null,"c":"é\\n"}')
_NUMBERS = st.sampled_from((
    "0", "-0", "5", "-7", "1.5", "-0.0", "0.1", "2.0", "1e2", "1E-7", "9007199254740993", "1e400",
    "9223372036854775807", "9223372036854775808", "0.14285714285714285", "0.30000000000000004",
    "0.10000000000000000555", "123456789012345678.5", "1234567890.123456",
))  # fmt: skip
_LEAVES = st.one_of(
    _NUMBERS, _NUMBERS, st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(("null", "true", '""', '"text"', '"é"', '"null"', '"1.5"', '"2026-01-01"')),
)  # fmt: skip


def _objects(names: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.dictionaries(st.sampled_from(names), values, max_size=3)
    return fields.map(
        lambda found: "{" + ",".join(f'"{name}":{text}' for name, text in found.items()) + "}"
    )


_VALUES = st.one_of(
    _LEAVES, st.lists(_LEAVES, max_size=2).map(lambda items: f"[{','.join(items)}]"),
    _objects("xy", _LEAVES), st.lists(_objects("xy", _LEAVES), max_size=2).map(
        lambda items: f"[{','.join(items)}]"),
)  # fmt: skip
_BATCHES = st.lists(_objects("abc", _VALUES), min_size=1, max_size=3)


def _column(texts: Any) -> Any:
    return pa.array([text.encode() for text in texts])


def _learned(*texts: str) -> KnownTypes:
    known = KnownTypes()
    known.learn(json_column(_column(texts)).type)
    return known


def _sorted(column: Any) -> Any:
    """Return values with the fields of all structs in the order of their names."""
    if pa.types.is_struct(column.type):
        names = sorted(field.name for field in column.type)
        parts = [_sorted(column.field(name)) for name in names]
        return pa.StructArray.from_arrays(parts, names, mask=column.is_null())
    if pa.types.is_list(column.type):
        items = _sorted(column.values)
        return pa.ListArray.from_arrays(column.offsets, items, mask=column.is_null())
    return column


@given(before=_BATCHES, after=_BATCHES)
def test_the_result_is_that_of_inferring(before: list[str], after: list[str]) -> None:
    try:
        known = _learned(*before)
    except RowsRejected:
        return
    for texts in (after, before):
        found = known.read(_column(texts))
        if found is not None:
            found.validate(full=True)
            expected = _sorted(json_column(_column(texts)))
            assert _sorted(found).type == expected.type
            assert repr(_sorted(found).to_pylist()) == repr(expected.to_pylist())  # -0.0 is not 0.0


def test_usual_batches_are_read() -> None:
    texts = _column([*USUAL, json.dumps({"a": 3, "b": 1 / 7, "c": "null"})])
    found = _learned(*USUAL).read(texts)
    assert found is not None
    assert found.equals(json_column(texts))


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1.5}', '{"a":"1"}', '{"b":"0.5"}', '{"b":1e-7}', '{"b":0.10000000000000000555}',
        '{"c":1}', '{"h":1}', '{"f":{"h":1}}', '{"d":{}}', "[]", "null", "1", "{", "",
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_left_to_the_caller(text: str) -> None:
    known = _learned(*USUAL)
    assert known.read(_column([*USUAL, text])) is None
    assert known.read(_column(USUAL)) is not None


@pytest.mark.parametrize(
    "texts",
    [
        ('{"a":1,"b":1,"c":"x","d":[{"e":true}],"f":{"g":2}}',),
        ('{"b":0.5,"c":"x","d":[{"e":true}],"f":{"g":2}}',),
        ('{"a":1,"b":0.5,"c":"x","d":[],"f":{"g":2}}',),
        ('{"a":1,"b":0.5,"c":"x","d":[{"e":true}],"f":{}}',),
    ],
)
def test_a_batch_that_does_not_need_the_types_is_left_to_the_caller(texts: Any) -> None:
    assert _learned(*USUAL).read(_column(texts)) is None


@pytest.mark.parametrize("text", ["{}", "5", '"x"', "[1]", '{"a":null}', '{"a":{}}', '{"a":[]}'])
def test_types_that_are_not_certain_are_not_used(text: str) -> None:
    assert _learned(text).read(_column([text])) is None
