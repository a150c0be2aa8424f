"""Columns of any type of Arrow are encoded with the values that Arrow itself shows, or refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.columnar import decode_batches
from penstock.records.columnar.encode import encode_batches
from penstock.records.errors import InvalidRecord
from tests.formats.drawn import EXAMPLES

TEXTS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
    pa.binary_view(), pa.binary(3), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.binary()),
]  # fmt: skip
PAIRS = [
    pa.struct([("key", pa.string()), ("value", pa.binary())]),
    pa.struct([("value", pa.large_string()), ("key", pa.large_string())]),
]
LISTS = [pa.list_, pa.large_list]
NUMBERS = [
    pa.int8(), pa.uint64(), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"),
    pa.duration("us"), pa.timestamp("ns"), pa.float64(), pa.decimal128(5, 2), pa.decimal256(60, 2),
]  # fmt: skip
OTHERS = [
    pa.array([True]), pa.array([1]).dictionary_encode(), pa.array([1.0]).cast(pa.float16()),
    *(pa.array([1], kind) for kind in NUMBERS), pa.array([[1]]), pa.array([{"a": 1}]),
]  # fmt: skip


NUMBER = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**6), 10**6)


def stored(name: str, column: Any) -> list[Any]:
    """Encode a column, beside values if it is none, and read it again."""
    columns = {"value": pa.array([b"x"] * len(column))} | {name: column}
    made = encode_batches(pa.table(columns), now_ms=7)
    content = b"".join(bytes(batch.data) for batch in made)
    found: list[Any] = decode_batches(content).column(name).to_pylist() if made else []
    return found


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.none() | st.text("aüz\0", min_size=3, max_size=3) | st.just("abc"), max_size=9),
    st.sampled_from(TEXTS), st.integers(0, 9), st.booleans(),
)  # fmt: skip
def test_texts_and_bytes_of_every_type(
    values: list[str | None], kind: Any, start: int, chunked: bool
) -> None:
    if kind == pa.binary(3):
        values = [value and value.replace("ü", "u") for value in values]
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    column = pa.array([value and value.encode() for value in values], pa.binary()).cast(
        pa.string() if inner in (pa.string_view(), pa.binary_view()) else inner
    )
    column = column.dictionary_encode() if inner is not kind else column.cast(kind)
    column = column.slice(min(start, len(column)))
    if chunked:
        column = pa.chunked_array([column, column], column.type)
    expected = [as_bytes(value) for value in column.to_pylist()]
    assert stored("value", column) == expected
    assert stored("key", column) == expected


@settings(max_examples=EXAMPLES)
@given(
    st.lists(NUMBER, min_size=1, max_size=9),
    st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from([None, "UTC", "Europe/Berlin"]),
)  # fmt: skip
def test_times_are_cut_to_the_millisecond_they_are_in(
    values: list[int | None], unit: str, zone: str | None
) -> None:
    column = pa.array(values, pa.timestamp(unit, zone))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    expected = [7 if value is None else value * 1000 // per_second for value in values]
    if any(not -(2**63) <= value < 2**63 for value in expected):
        with pytest.raises(InvalidRecord, match="'timestamp' has seconds whose milliseconds"):
            stored("timestamp", column)
    elif max(expected) - min(expected) < 2**40:
        assert stored("timestamp", column) == expected


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.text()}),
            max_size=3,
        ),
        max_size=6,
    ),
    st.sampled_from(PAIRS), st.sampled_from(LISTS), st.integers(0, 6),
)  # fmt: skip
def test_headers_of_every_type(values: list[Any], pair: Any, listed: Any, start: int) -> None:
    column = pa.array(values, pa.list_(pair)).cast(listed(pair)).slice(min(start, len(values)))
    expected = [
        [{"key": header["key"], "value": as_bytes(header["value"])} for header in row or []]
        for row in column.to_pylist()
    ]
    assert stored("headers", column) == expected


@pytest.mark.parametrize("column", OTHERS, ids=lambda column: str(column.type))
def test_other_types_are_refused(column: Any) -> None:
    for name in ("value", "key"):
        with pytest.raises(InvalidRecord, match=f"column '{name}' has type"):
            stored(name, column)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.string()), ("val", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("x", pa.int8())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.int8())])),
        pa.list_(pa.string()),
        pa.list_view(PAIRS[0]),
        pa.map_(pa.int8(), pa.binary()),
        pa.string(),
    ],
    ids=str,
)
def test_headers_that_would_lose_something_are_refused(kind: Any) -> None:
    value: Any = [{"key": "a"}]
    if pa.types.is_map(kind):
        value = [(1, b"x")]
    elif not pa.types.is_nested(kind) or kind == pa.list_(pa.string()):
        value = "a" if kind == pa.string() else ["a"]
    with pytest.raises(InvalidRecord, match="must be a list of structs with the fields"):
        stored("headers", pa.array([value], kind))


def test_times_that_no_millisecond_holds_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="milliseconds that do not fit"):
        stored("timestamp", pa.array([2**64 - 1], pa.uint64()))
