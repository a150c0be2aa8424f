"""Decoder of JSON values: exact numbers, and rows whose values have no place in a batch.

The oracle is Python's `json` with decimals.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connect.decoding import json_column
from penstock.connect.errors import RowsRejected

DIGITS = st.integers(1, 40).flatmap(
    lambda size: st.tuples(st.sampled_from("123456789"), st.text("0123456789", max_size=size - 1))
)
WHOLE = st.tuples(st.sampled_from(["", "-"]), DIGITS.map("".join) | st.just("0")).map("".join)
FRACTION = st.text("0123456789", min_size=1, max_size=40)
DECIMALS = st.tuples(WHOLE, FRACTION).map(".".join)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
EXPONENTS = st.tuples(
    WHOLE | DECIMALS, st.sampled_from(["e", "E", "e+", "E-"]), st.integers(0, 60).map(str)
).map("".join)
NUMBERS = WHOLE | DECIMALS | DOUBLES | EXPONENTS | st.just("null")
HALF = 38


def accepted(texts: list[str]) -> tuple[list[Any], dict[int, str]]:
    """Return the values of the accepted texts, and the reasons of the others by index."""
    rows, rejected = list(range(len(texts))), dict[int, str]()
    while rows:
        try:
            column = json_column(pa.array([texts[row].encode() for row in rows], pa.binary()))
        except RowsRejected as error:
            rejected |= {rows[at]: why for at, why in zip(error.rows, error.reasons, strict=True)}
            rows = [row for row in rows if row not in rejected]
        else:
            return column.to_pylist(), rejected
    return [], rejected


def plain(value: Any) -> Any:
    """Return a value with its numbers as decimals, and without null fields."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return Decimal(repr(value))
    return Decimal(value) if isinstance(value, int) else value


def oracle(text: str) -> Any:
    return plain(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def has_place(text: str) -> bool:
    """Return whether a number has up to 38 digits before and after the point."""
    number = Decimal(text)
    scale = -int(number.normalize().as_tuple().exponent)
    return number == 0 or (number.adjusted() < HALF and scale <= HALF)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_numbers_are_exact_or_rejected(texts: list[str]) -> None:
    found, rejected = accepted(texts)
    kept = [text for row, text in enumerate(texts) if row not in rejected]
    assert [plain(value) for value in found] == [oracle(text) for text in kept]
    for row, reason in rejected.items():
        assert not has_place(texts[row])
        assert f"the number {texts[row][:60]}" in reason


@given(
    st.lists(
        st.tuples(NUMBERS, st.lists(NUMBERS, max_size=3), NUMBERS).map(
            lambda row: (
                f'{{"a":{row[0]},"b":[{",".join(row[1])}],'
                f'"c":{{"d":{row[2]},"e":"12345678901234567890.5"}}}}'
            )
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_numbers_in_objects_and_lists_are_exact_or_rejected(texts: list[str]) -> None:
    found, rejected = accepted(texts)
    kept = [text for row, text in enumerate(texts) if row not in rejected]
    assert [plain(value) for value in found] == [oracle(text) for text in kept]
    assert all(reason.startswith("field ") for reason in rejected.values())


@pytest.mark.parametrize(
    "first", ["[null,1]", "[null,null,1.5]", "[]", "[null,null]", '[null,"x"]']
)
def test_nulls_at_the_begin_of_a_list_are_kept(first: str) -> None:
    for texts in ([first, "[null]"], ["[]", first], [f"[[null,null],{first}]", "[[]]"]):
        assert accepted(texts) == ([oracle(text) for text in texts], {})


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "9223372036854775807"], pa.int64()),
        (["0.1", "0.30000000000000004", "1e300", "2"], pa.float64()),
        (["9223372036854775808", "-1"], pa.decimal128(19, 0)),
        (["1.5", "9007199254740993"], pa.decimal128(17, 1)),
        (["0.1234567890123456789"], pa.decimal128(19, 19)),
        (["1" * 60, "0.5"], pa.decimal256(61, 1)),
    ],
)
def test_types_of_numbers(texts: list[str], kind: pa.DataType) -> None:
    assert json_column(pa.array([text.encode() for text in texts])).type == kind


@pytest.mark.parametrize(
    ("texts", "reasons"),
    [
        (
            ["1.5", '"NaN"', "2.5", "null"],
            {1: 'the value: "NaN" is a text, but most rows of the batch have a number'},
        ),
        (
            ['{"a":"x"}', '{"a":{"b":1}}', '{"a":"y"}'],
            {1: 'field a: {"b":1} is an object, but most rows of the batch have a text'},
        ),
        (
            ['{"a":[{"b":1}]}', '{"a":[{"b":2},{"b":true}]}', '{"a":[]}', '{"a":[{"b":3}]}'],
            {1: "field a[].b: true is a boolean, but most rows of the batch have a number"},
        ),
        (["0.5", "1e400"], {1: "the value: the number 1e400 is too large"}),
        (['{"a":1,"a":2}', '{"a":3}'], {0: "is not JSON: a name comes twice"}),
        (['1,"w":2', "3"], {0: "is not JSON: Extra data: line 1 column 2 (char 1)"}),
    ],
)
def test_only_the_rows_of_another_kind_are_rejected(
    texts: list[str], reasons: dict[int, str]
) -> None:
    found, rejected = accepted(texts)
    assert rejected == reasons
    kept = [text for row, text in enumerate(texts) if row not in rejected]
    assert [plain(value) for value in found] == [oracle(text) for text in kept]
