"""Change events: values of every form against Python's own conversions, and what is rejected."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats import InvalidFormat
from penstock.formats.json.debezium import CHANGE, MARKER, DebeziumReader, base64_bytes, checked
from penstock.formats.json.json_schema import Field, Items, Leaf, Named, Record, Shape
from penstock.formats.json.plain import Conversion

PRECISE = Context(prec=60)
DECIMAL = pa.decimal128(38, 4)
TIMESTAMP = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNSCALED = st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-300, 300)


def reader(shape: pa.DataType | Shape, **more: Any) -> DebeziumReader:
    shape = Leaf(data_type=shape) if isinstance(shape, pa.DataType) else shape
    record = Record(fields=(Field(name="a", shape=shape),))
    return DebeziumReader(record=checked(record), conversion=Conversion(), **more)


def event(value: Any, **more: Any) -> bytes:
    given = {"op": "u", "before": None, "after": {"a": value}, "source": {"lsn": 3}, "ts_ms": 5}
    return json.dumps(given | more).encode()


def read(read_by: DebeziumReader, values: list[Any]) -> list[Any]:
    """Return the values of the column, all of which must be valid."""
    rows, errors = read_by.read(pa.array(list(map(event, values)), pa.binary()))
    assert errors.null_count == len(values), errors.drop_null()
    rows.validate(full=True)
    found: list[Any] = pc.struct_field(rows, [0]).to_pylist()
    return found


def error(read_by: DebeziumReader, value: bytes) -> str | None:
    rows, errors = read_by.read(pa.array([value], pa.binary()))
    assert rows[0].is_valid != errors[0].is_valid
    text: str | None = errors[0].as_py()
    return text


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, signed=True)).decode()


@given(st.lists(st.none() | UNSCALED))
@settings(deadline=None, max_examples=25)
def test_decimals_of_unscaled_bytes(numbers: list[int | None]) -> None:
    values = [None if number is None else unscaled(number) for number in numbers]
    expected = [
        None if number is None else Decimal(number).scaleb(-4, PRECISE) for number in numbers
    ]
    assert read(reader(DECIMAL), values) == expected


@given(st.lists(st.tuples(st.integers(-(10**30), 10**30), st.integers(0, 4))))
@settings(deadline=None, max_examples=25)
def test_decimals_of_any_scale_and_of_digits(numbers: list[tuple[int, int]]) -> None:
    exact = [Decimal(number).scaleb(-scale, PRECISE) for number, scale in numbers]
    objects = [{"scale": scale, "value": unscaled(number)} for number, scale in numbers]
    assert read(reader(DECIMAL), objects) == exact
    assert (
        read(reader(DECIMAL, base64_decimals=False), [f"{number:f}" for number in exact]) == exact
    )
    arrays = [[unscaled(number), None] for number, _ in numbers]
    assert read(reader(Items(item=Leaf(data_type=DECIMAL))), arrays) == [
        [Decimal(number).scaleb(-4, PRECISE), None] for number, _ in numbers
    ]


@given(
    st.lists(st.binary(max_size=40)), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode])
)
@settings(deadline=None, max_examples=25)
def test_bytes(values: list[bytes], encode: Any) -> None:
    assert read(reader(pa.binary()), [encode(value).decode() for value in values]) == values


@given(st.lists(st.none() | st.text(alphabet="AQgw+/=-_ é", max_size=9)))
def test_texts_that_are_not_base64(texts: list[str | None]) -> None:
    def decoded(text: str | None) -> bytes | None:
        try:
            plain = (text or "!").translate(str.maketrans("-_", "+/"))
            return base64.b64decode(plain, validate=True) if len(plain) % 4 == 0 else None
        except ValueError:
            return None

    expected = [b"" if text == "" else decoded(text) for text in texts]
    assert base64_bytes(pa.array(texts, pa.string())).to_pylist() == expected


@given(st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))))
@settings(deadline=None, max_examples=25)
def test_times_of_numbers_and_of_texts(moments: list[datetime]) -> None:
    exact = [moment.replace(tzinfo=UTC) for moment in moments]
    micros = [(moment - EPOCH) // timedelta(microseconds=1) for moment in exact]
    assert read(reader(TIMESTAMP), micros) == exact
    assert read(reader(TIMESTAMP), [moment.isoformat() for moment in exact]) == exact
    assert read(reader(TIMESTAMP, milliseconds=("a",)), [micro // 1000 for micro in micros]) == [
        moment.replace(microsecond=moment.microsecond // 1000 * 1000) for moment in exact
    ]
    days = [(moment - EPOCH).days for moment in exact]
    dates = [moment.date() for moment in exact]
    assert read(reader(pa.date32()), days) == dates
    assert read(reader(pa.date32()), [day.isoformat() for day in dates]) == dates


@given(st.lists(st.floats()))
@settings(deadline=None, max_examples=25)
def test_doubles(numbers: list[float]) -> None:
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    values = [words.get(str(number), number) for number in numbers]
    assert list(map(repr, read(reader(pa.float64()), values))) == list(map(repr, numbers))


@pytest.mark.parametrize(
    ("shape", "value", "said"),
    [
        (pa.decimal128(5, 2), unscaled(100_000), "is not decimal(5,2)"),
        (pa.decimal128(5, 2), "12.34", "'12.34' is not decimal(5,2)"),
        (pa.decimal128(5, 2), {"scale": 3, "value": unscaled(1)}, "more digits after the point"),
        (pa.decimal128(5, 2), {"value": "AQ=="}, "is not decimal(5,2)"),
        (pa.decimal128(5, 2), unscaled(10**60), "is not decimal(5,2)"),
        (pa.date32(), 2**31, "is not date"),
        (TIMESTAMP, 2**63, "is not timestamp"),
        (TIMESTAMP, 1.5, "is not timestamp"),
        (pa.binary(), "A===", "is not binary"),
        (pa.binary(), 7, "is not binary"),
        (pa.int64(), "x", "is not bigint"),
        (pa.float64(), "nan", "is not double"),
        (Items(item=Leaf(data_type=pa.date32())), [1, "x"], "field a[]: 'x' is not date"),
    ],
)
def test_values_that_do_not_fit_are_rejected(shape: Any, value: Any, said: str) -> None:
    found = error(reader(shape), event(value))
    assert found is not None
    assert found.startswith("field a")
    assert said in found


def test_milliseconds_that_do_not_fit_and_infinite_times() -> None:
    infinite = 9_223_372_036_825_200_000
    coarse = reader(TIMESTAMP, milliseconds=("a",))
    rows, errors = coarse.read(pa.array([event(infinite), event(infinite - 1)], pa.binary()))
    assert rows.field("a").cast(pa.int64()).to_pylist() == [infinite, None]
    assert "is not timestamp" in errors[1].as_py()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"op": "m"}, "field op: 'm' is not one of c, d, r, t and u"),
        ({"op": None}, "field op: null"),
        ({"after": None}, "field after: null"),
        ({"op": "d"}, "field before: null, but a delete needs the key"),
        ({"ts_ms": None}, "field ts_ms: missing"),
        ({"after": 7}, "not a JSON object"),
    ],
)
def test_events_without_a_change_are_rejected(more: dict[str, Any], said: str) -> None:
    assert error(reader(pa.int64()), event(1, **more)) == said


def test_the_change_has_the_names_of_unchanged_columns() -> None:
    text = reader(pa.string())
    values = [
        event(None, unchanged=["a", "gone"]), event(MARKER), event("x", unchanged=None), None,
        event(None, op="d", before={"a": "k"}), event(None, op="t", after=None),
        event(1, source={"lsn": 8, "ts_ms": 2}),
    ]  # fmt: skip
    rows, errors = text.read(pa.array(values, pa.binary()))
    assert rows.field("a").to_pylist()[:6] == [None, None, "x", None, "k", None]
    changes = [row and row[CHANGE] for row in rows.to_pylist()]
    assert [change and change["op"] for change in changes] == ["u", "u", "u", None, "d", "t", None]
    assert [change["unchanged"] or [] for change in changes[:3]] == [["a"], ["a"], []]
    assert changes[0]["at"] == EPOCH + timedelta(milliseconds=5)
    assert errors[6].as_py() == "field a: 1 is not string"
    for shape in (DECIMAL, pa.binary(), Items(item=Leaf(data_type=pa.string()))):
        value = [MARKER] if isinstance(shape, Items) else MARKER
        rows, _ = reader(shape).read(pa.array([event(value)], pa.binary()))
        assert rows[0].as_py()["a"] is None
        assert rows[0].as_py()[CHANGE]["unchanged"] == ["a"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (Field(name="_Change", shape=Leaf(data_type=pa.int64())), "Rename it"),
        (Field(name="a", shape=Leaf(data_type=pa.int64()), required=True), "must be nullable"),
        (Field(name="a", shape=Leaf()), "Declare it as string"),
        (Field(name="a", shape=Named(value=Leaf(data_type=pa.binary()))), "Declare it as string"),
    ],
)
def test_rows_that_change_events_do_not_allow(field: Field, said: str) -> None:
    with pytest.raises(InvalidFormat, match=said):
        checked(Record(fields=(field,)))


def test_no_values_and_dates_as_python_knows_them() -> None:
    rows, errors = reader(pa.date32()).read(pa.array([], pa.binary()))
    assert (len(rows), len(errors)) == (0, 0)
    assert read(reader(pa.date32()), [0, None]) == [date(1970, 1, 1), None]
