"""Columns become the records that Arrow itself shows, for every type and form.

The oracle is PyArrow: `to_pylist` for values, `floor_temporal` for times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.columns import choose, chunks, normalise, open_stream, pick
from penstock.client.errors import InvalidArgument
from penstock.records.columnar import decode_batches, encode_batches, read_input
from tests.formats.drawn import EXAMPLES

NOW_MS = 7
UNITS = ("s", "ms", "us", "ns")
TEXTS = (
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
    pa.binary_view(),
)  # fmt: skip


def written(data: Any, rows: int = 1_000, /, **columns: str) -> Any:
    """Return the records of a table, as `Client.write_arrow` writes them."""
    stream = open_stream(data)
    roles = {role: role for role in ("key", "value", "timestamp", "headers")}
    names = choose(stream.schema, **{**roles, "partition": None, **columns})  # type: ignore[arg-type]
    made = []
    for chunk in chunks(pick(stream, names), rows, 1 << 20):
        part = normalise(chunk, names)
        made += encode_batches(read_input(part, NOW_MS), now_ms=NOW_MS)
    return decode_batches(b"".join(bytes(batch.data) for batch in made))


def shaped(column: Any, form: str) -> Any:
    """Return the same values as a dictionary, as runs, or unchanged."""
    if form == "dictionary":
        return column.dictionary_encode()
    return pc.run_end_encode(column) if form == "runs" else column


def as_bytes(values: Any) -> list[Any]:
    return [value.encode() if isinstance(value, str) else value for value in values.to_pylist()]


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.none() | st.text("aü\0", max_size=30), min_size=1, max_size=12),
    st.sampled_from(TEXTS), st.sampled_from(["plain", "dictionary", "runs"]),
    st.integers(0, 5), st.integers(1, 5),
)  # fmt: skip
def test_texts_of_every_type_and_form(
    values: list[str | None], kind: Any, form: str, start: int, rows: int
) -> None:
    viewed = kind in (pa.string_view(), pa.binary_view())
    form = "plain" if viewed else form
    column = pa.array(values, pa.string()).cast(kind)
    column = shaped(column, form).slice(min(start, len(values)))
    table = pa.table({"value": column, "key": column})
    found = written(pa.concat_tables([table, table]), rows)
    expected = as_bytes(column) * 2
    assert found.column("value").to_pylist() == expected
    assert found.column("key").to_pylist() == expected


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.none() | st.integers(-(2**52), 2**52) | st.integers(-3_000, 3_000), min_size=1),
    st.sampled_from(UNITS), st.sampled_from([None, "UTC", "America/St_Johns"]),
    st.sampled_from(["plain", "dictionary", "runs"]), st.integers(0, 3),
)  # fmt: skip
def test_times_are_cut_to_the_millisecond_that_they_are_in(
    values: list[int | None], unit: str, zone: str | None, form: str, start: int
) -> None:
    times = pa.array(values, pa.timestamp(unit, zone)).slice(min(start, len(values) - 1))
    plain = times.cast(pa.timestamp(unit))
    floor = pc.floor_temporal(plain, unit="millisecond").cast(pa.timestamp("ms"))
    expected = floor.cast(pa.int64()).fill_null(NOW_MS).to_pylist()
    times = shaped(times, form)
    table = pa.table({"value": pa.array([b"x"] * len(times)), "at": times})
    assert written(table, timestamp="at").column("timestamp").to_pylist() == expected


@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        ("timestamp", pa.array([2**60], pa.timestamp("s")), "'timestamp' has seconds whose"),
        ("timestamp", pa.array([2**64 - 1], pa.uint64()), "has milliseconds that do not fit"),
        ("timestamp", pa.array([1], pa.date32()), "'timestamp' has type date32"),
        ("timestamp", pa.array([1.0]), "'timestamp' has type double"),
        ("key", pa.array([1.0]).cast(pa.float16()), "'key' has type halffloat"),
        ("value", pa.array([1]).dictionary_encode(), "'value' has type int64"),
        ("partition", pa.array([2**40]), "'partition' has a value that is no partition number"),
        ("partition", pa.array([None], pa.int32()), "1 nulls"),
        ("headers", pa.array([[{"key": b"\xff", "value": b""}]]), "'headers'.*Invalid UTF8"),
        ("headers", pa.array([["a"]]), "'headers' has type list<item: string>"),
    ],
)  # fmt: skip
def test_columns_that_records_cannot_have_are_named(name: str, column: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        written(pa.table({"value": pa.array([b"x"]), name: column}), **{name: name})


def test_two_columns_of_one_name_are_refused() -> None:
    column = pa.array([b"x"])
    with pytest.raises(InvalidArgument, match="several columns 'value'"):
        written(pa.Table.from_arrays([column, column], ["value", "value"]))


def test_nothing_but_nulls() -> None:
    nothing = pa.nulls(2)
    table = pa.table({"value": nothing, "key": nothing, "timestamp": nothing, "headers": nothing})
    row: dict[str, Any] = {"timestamp": NOW_MS, "key": None, "value": None, "headers": []}
    assert written(table).to_pylist() == [{"offset": 0, **row}, {"offset": 1, **row}]


def test_a_slice_beyond_two_gibibytes() -> None:
    room = np.zeros((2 << 30) + 100, np.uint8)  # memory that nobody touches is not taken
    room[-4:] = 65
    ends = np.array([0, len(room) - 4, len(room) - 2, len(room)], np.int64)
    column = pa.Array.from_buffers(
        pa.large_string(), 3, [None, pa.py_buffer(ends), pa.py_buffer(room)]
    )
    found = written(pa.table({"value": column.slice(1)}))
    assert found.column("value").to_pylist() == [b"AA", b"AA"]
