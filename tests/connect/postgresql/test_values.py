"""Values of PostgreSQL's types; expected are the numbers and texts that PostgreSQL computes itself.

Each test casts generated texts to a type, converts the type's texts, and compares the values with
the results of an expression.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.connect.postgresql.catalog import Catalog
from penstock.connect.postgresql.connection import Session, quoted
from penstock.connect.postgresql.pgoutput import Column
from penstock.connect.postgresql.values import PgType, ValueRules, array_elements, converter
from tests.postgres import PostgresServer

quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def session(postgres: PostgresServer) -> Iterator[Session]:
    with postgres.database() as name:
        opened = Session(postgres.url(name))
        opened.rows("CREATE EXTENSION hstore")
        yield opened
        opened.close()


def both(
    session: Session, kind: PgType, cast: str, expected: str, given: Sequence[Any], **rules: Any
) -> tuple[list[Any], list[Any]]:
    """Return the converted values of `given` cast to a type, and the results of an expression.

    Args:
        cast: type in SQL; `expected` is an expression of the value `v`.
    """
    rows = session.rows(
        f"SELECT v::text, ({expected})::text FROM (SELECT number, t::{cast} AS v"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS given(t, number)) AS cast_ ORDER BY number",
        [[*given, None]],
    )
    texts = pa.array([text for text, _ in rows], pa.large_string())
    found = converter(kind, ValueRules(**rules))(texts).to_pylist()
    assert found.pop() is None
    return found, [text for _, text in rows][:-1]


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=1, max_size=40)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def whole(value: bytes) -> int:
    number = int.from_bytes(value, signed=True)
    assert len(value) == (number + (number < 0)).bit_length() // 8 + 1, "the shortest form"
    return number


# Numbers


@quick
@given(st.data(), st.sampled_from([(5, -3), (9, 0), (18, 18), (12, 2), (38, 10), (30, 30), (3, 5)]))
def test_numerics_are_unscaled_bytes(
    session: Session, data: st.DataObject, shape: tuple[int, int]
) -> None:
    precision, scale = shape
    limit = 10**precision - 1
    numbers = data.draw(lists(st.integers(-limit, limit)))
    given = [f"{number}e{-scale}" for number in numbers]
    kind = PgType(id=1700, name="numeric", modifier=numeric(precision, scale))
    found, texts = both(session, kind, f"numeric({precision}, {scale})", "v::text", given)
    assert [whole(value) for value in found] == numbers
    assert both(session, kind, f"numeric({precision}, {scale})", "v", given, decimals="string") == (
        texts, texts
    )  # fmt: skip


@quick
@given(lists(st.decimals(allow_nan=False, allow_infinity=False, places=None)))
def test_numerics_without_scale_have_their_own(session: Session, numbers: list[Any]) -> None:
    given = [str(number) for number in numbers if -1000 < number.adjusted() < 1000]
    kind = PgType(id=1700, name="numeric")
    expected = "trunc(v * 10::numeric ^ min_scale(v)) || ' ' || min_scale(v)"
    found, texts = both(session, kind, "numeric", expected, given)
    assert [f"{whole(v['value'])} {v['scale']}" for v in found] == texts
    doubles, texts = both(session, kind, "numeric", "v::float8", [
        text for text in given if float(text) == 0 or 1e-300 < abs(float(text)) < 1e300
    ], decimals="double")  # fmt: skip
    assert doubles == [float(text) for text in texts]


def test_numbers_that_are_not_finite_are_null_or_text(session: Session) -> None:
    given = ["NaN", "Infinity", "-Infinity"]
    for modifier in (-1, numeric(12, 2), numeric(5, -3)):
        kind = PgType(id=1700, name="numeric", modifier=modifier)
        assert both(session, kind, "numeric", "v", given)[0] == [None] * 3
        assert both(session, kind, "numeric", "v", given, decimals="string")[0] == given


def test_numbers_may_have_thousands_of_digits(session: Session) -> None:
    given = ["9" * 10_000, "-" + "9" * 10_000 + ".5"]
    found, _ = both(session, PgType(id=1700, name="numeric"), "numeric", "v", given)
    assert whole(found[0]["value"]) == 10**10_000 - 1
    assert (whole(found[1]["value"]), found[1]["scale"]) == (-(10**10_001 - 5), 1)


@quick
@given(lists(st.integers(-(2**63), 2**63 - 1)))
def test_money_has_two_digits(session: Session, cents: list[int]) -> None:
    given = [f"{'-' * (n < 0)}{abs(n) // 100}.{abs(n) % 100:02}" for n in cents]
    found, _ = both(session, PgType(id=790, name="money"), "money", "v", given)
    assert [whole(value) for value in found] == cents


# Dates and times

SECONDS = st.integers(-210_866_803_200, 9_224_318_015_999)
"""PostgreSQL's timestamps: from 4713 BC to 294276, as seconds since 1970."""
MICROS = st.builds(lambda second, micro: (second, micro), SECONDS, st.integers(0, 999_999))


def moments(session: Session, points: Sequence[tuple[int, int]]) -> list[str]:
    """Return the texts of timestamps without zone."""
    query = (
        "SELECT (timestamp '2000-01-01' + (s - 946684800) * interval '1 second'"
        " + u * interval '1 microsecond')::text"
        " FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS p(s, u, n) ORDER BY n"
    )
    rows = session.rows(query, [[s for s, _ in points], [u for _, u in points]])
    return [text for (text,) in rows]


@quick
@given(lists(MICROS), st.integers(0, 6))
def test_timestamps_count_from_1970(
    session: Session, points: list[tuple[int, int]], precision: int
) -> None:
    given = [text for text in moments(session, points) if "29427" not in text]
    unit = 1_000 if precision <= 3 else 1_000_000
    kind = PgType(id=1114, name="timestamp", modifier=precision)
    cast, expected = f"timestamp({precision})", f"floor(extract(epoch FROM v) * {unit})"
    found, texts = both(session, kind, cast, expected, given)
    assert found == [int(text) for text in texts]


@quick
@given(lists(MICROS), st.sampled_from([-1, *range(7)]))
def test_timestamps_with_zone_are_texts_in_utc(
    session: Session, points: list[tuple[int, int]], precision: int
) -> None:
    given = [text for text in moments(session, points) if "29427" not in text]
    kind = PgType(id=1184, name="timestamptz", modifier=precision)
    cast = "timestamptz" if precision < 0 else f"timestamptz({precision})"
    found, texts = both(session, kind, cast, "floor(extract(epoch FROM v) * 1000000)", given)
    digits = 6 if precision < 0 else precision
    for text, expected in zip(found, texts, strict=True):
        assert np.datetime64(text.removesuffix("Z"), "us").astype(np.int64) == int(expected)
        assert len(text.removesuffix("Z").partition(".")[2]) == digits


@quick
@given(lists(MICROS))
def test_dates_are_days_since_1970(session: Session, points: list[tuple[int, int]]) -> None:
    kind = PgType(id=1082, name="date")
    given = moments(session, points)
    found, texts = both(session, kind, "date", "v - date '1970-01-01'", given)
    assert found == [int(text) for text in texts]


def test_infinite_dates_are_the_ends_of_their_range(session: Session) -> None:
    given = ["infinity", "-infinity"]
    found, _ = both(session, PgType(id=1082, name="date"), "date", "v", given)
    assert found == [2**31 - 1, -(2**31)]
    zoned, _ = both(session, PgType(id=1184, name="timestamptz"), "timestamptz", "v", given)
    assert zoned == given


@quick
@given(lists(st.integers(0, 86_400_000_000)), st.integers(0, 6))
def test_times_count_from_midnight(session: Session, counts: list[int], precision: int) -> None:
    given = [_clock(count) for count in counts]
    unit = 1_000 if precision <= 3 else 1_000_000
    kind = PgType(id=1083, name="time", modifier=precision)
    expected = f"floor(extract(epoch FROM v) * {unit})"
    found, texts = both(session, kind, f"time({precision})", expected, given)
    assert found == [int(text) for text in texts]


@quick
@given(lists(st.tuples(st.integers(0, 86_399_999_999), st.integers(-57_540, 57_540))))
def test_times_with_zone_are_texts_in_utc(session: Session, parts: list[tuple[int, int]]) -> None:
    given = [
        f"{_clock(count)}{'-' if zone < 0 else '+'}{_clock(abs(zone) * 1_000_000)[:8]}"
        for count, zone in parts
    ]
    kind = PgType(id=1266, name="timetz")
    expected = "(v AT TIME ZONE 'UTC')::time::text || 'Z'"
    found, texts = both(session, kind, "timetz", expected, given)
    assert found == texts


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


@quick
@given(lists(st.tuples(
    st.integers(-1200, 1200), st.integers(-1000, 1000), st.integers(-(10**12), 10**12)
)))  # fmt: skip
def test_intervals_are_microseconds(session: Session, parts: list[tuple[int, int, int]]) -> None:
    given = [f"{m} mons {d} days {u} microseconds" for m, d, u in parts]
    expected = (
        "trunc(((extract(year FROM v) * 12 + extract(month FROM v)) * 30.4375"
        " + extract(day FROM v)) * 86400000000) + extract(hour FROM v) * 3600000000"
        " + extract(minute FROM v) * 60000000"
        " + extract(microseconds FROM v)"
    )
    found, texts = both(session, PgType(id=1186, name="interval"), "interval", expected, given)
    assert found == [int(float(text)) for text in texts]


# Bytes, bits, and values with parts


@quick
@given(lists(st.binary(max_size=100)))
def test_bytes_are_bytes(session: Session, values: list[bytes]) -> None:
    given = ["\\x" + value.hex() for value in values]
    kind = PgType(id=17, name="bytea")
    found, texts = both(session, kind, "bytea", "encode(v, 'base64')", given)
    assert found == [base64.b64decode(text) for text in texts] == values


@quick
@given(lists(st.text("01", max_size=63)))
def test_bits_are_little_endian(session: Session, given: list[str]) -> None:
    kind = PgType(id=1562, name="varbit")
    expected = "lpad(v::text, 64, '0')::bit(64)::bigint"
    found, texts = both(session, kind, "varbit", expected, given)
    assert [int.from_bytes(value, "little") for value in found] == [int(text) for text in texts]
    assert not any(value.endswith(b"\0") for value in found)


@quick
@given(lists(st.lists(st.none() | TEXTS, max_size=8)))
def test_arrays_are_lists(session: Session, arrays: list[list[str | None]]) -> None:
    rows = session.rows(
        "SELECT a::text FROM json_array_elements(%s::json) WITH ORDINALITY AS j(j, n)"
        " CROSS JOIN LATERAL (SELECT array_agg(t ORDER BY i) AS a FROM"
        " json_array_elements_text(j) WITH ORDINALITY AS e(t, i)) AS made ORDER BY n",
        [json.dumps([array for array in arrays if array])],
    )
    texts = pa.array([text for (text,) in rows], pa.large_string())
    kind = PgType(id=1009, name="_text", element=PgType(id=25, name="text"))
    assert converter(kind, ValueRules())(texts).to_pylist() == [array for array in arrays if array]


@pytest.mark.parametrize(
    ("text", "elements"),
    [("{}", []), ("[2:3]={7,8}", ["7", "8"]), ("{{1,2},{3,NULL}}", ["1", "2", "3", None]),
     ('{"NULL",NULL,""}', ["NULL", None, ""])],
)  # fmt: skip
def test_elements_of_arrays_texts(text: str, elements: list[str | None]) -> None:
    assert array_elements(text) == elements


SAMPLES = {
    "aclitem": ("=r/penstock",), "bit": ("0", "1"), "bool": ("t", "f"),
    "box": ("(2,2),(1,1)", "(1e+30,0),(-1,-2)"), "bpchar": ("a", " ,;"), "bytea": ("\\x00", "\\x"),
    "char": ("a", ","), "cid": ("1", "2"), "cidr": ("10.0.0.0/8", "::/0"), "circle": ("<(1,2),3>",),
    "date": ("2020-01-02", "infinity"), "float4": ("1.5", "NaN"), "float8": ("-1e300", "Infinity"),
    "gtsvector": (), "inet": ("10.0.0.1", "::1/64"), "int2": ("1", "-2"), "int2vector": ("1 2", ""),
    "int4": ("1", "-2"), "int8": ("1", "-2"), "interval": ("1 year 2 days", "-1:02:03.5"),
    "json": ('{"a": [1, "x;y"]}', "null"), "jsonb": ('{"a": [1, "}{"]}', '"NULL"'),
    "jsonpath": ('$."a,b"[*]', "$"), "line": ("{1,2,3}",), "lseg": ("[(1,2),(3,4)]",),
    "macaddr": ("08:00:2b:01:02:03",), "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "money": ("1234.50", "-1"), "name": ("a,b", "NULL"), "numeric": ("1.50", "NaN"),
    "oid": ("1", "4294967295"), "oidvector": ("1 2", ""), "path": ("[(1,2),(3,4)]", "((1,2))"),
    "pg_lsn": ("0/1", "A/FF"), "pg_snapshot": ("10:20:10,14",), "point": ("(1,2)", "(-1e+30,0)"),
    "polygon": ("((1,2),(3,4))",), "refcursor": ("a;b",), "regclass": ("pg_class",),
    "regcollation": ('"C"',), "regconfig": ("english",), "regdictionary": ("simple",),
    "regnamespace": ("public",), "regoper": ("||/",),
    "regoperator": ("+(integer,integer)",),
    "regproc": ("now",), "regprocedure": ("now()", "lower(text)"), "regrole": ("penstock",),
    "regtype": ("integer", "character varying"), "text": ('a"b\\', "", "NULL", "{;,}", " "),
    "tid": ("(0,1)",), "time": ("01:02:03.5",), "timestamp": ("2020-01-02 03:04:05", "-infinity"),
    "timestamptz": ("2020-01-02 03:04:05+00",), "timetz": ("01:02:03+02",),
    "tsquery": ("'a' & 'b;c'",), "tsvector": ("'a':1,2A 'b,c'",),
    "txid_snapshot": ("10:20:10,14",), "uuid": ("6d8b6b0a-33b5-4c36-9b73-8f4d1d1b1b11",),
    "varbit": ("", "0101"), "varchar": ("a,b", "x;y"), "xid": ("1",), "xid8": ("1",),
    "xml": ("<a>1</a>", "<b c=\"d\"/>"),
}  # fmt: skip
"""Texts of values, for each base type of PostgreSQL that has an array type."""


def test_arrays_of_all_types_have_the_elements_that_unnest_returns(session: Session) -> None:
    names = {
        name: (type_id, array_id)
        for name, type_id, array_id in session.rows(
            "SELECT typname, oid::bigint, typarray::bigint FROM pg_type WHERE typarray <> 0"
            " AND typtype = 'b' AND typnamespace = 'pg_catalog'::regnamespace"
        )
    }
    assert set(names) <= set(SAMPLES), "PostgreSQL has types without samples"
    catalog, delimiters = Catalog(session), {}
    for name, (type_id, array_id) in names.items():
        items = [*SAMPLES[name], None, *SAMPLES[name][:1]]
        if name == "gtsvector":  # has no input
            continue
        cast = f"pg_catalog.{quoted(name)}"
        [(array,)] = session.rows(f"SELECT (%s::text[])::{cast}[]::text", [items])
        written = "CASE WHEN e IS NOT NULL THEN format('%%s', e) END"  # a cast of bool differs
        elements = session.rows(f"SELECT {written} FROM unnest(%s::{cast}[]) AS e", [array])
        kind, item = (
            catalog.type_of(Column(name="v", type_id=found, modifier=-1, identity=False))
            for found in (array_id, type_id)
        )
        assert kind is not None
        assert item is not None
        [found] = converter(kind, ValueRules())(pa.array([array], pa.large_string())).to_pylist()
        texts = pa.array([text for (text,) in elements], pa.large_string())
        assert repr(found) == repr(converter(item, ValueRules())(texts).to_pylist()), name
        assert len(found) == len(items), name
        delimiters[name] = item.delimiter
    assert {name for name, delimiter in delimiters.items() if delimiter != ","} == {"box"}


@quick
@given(lists(st.dictionaries(TEXTS, st.none() | TEXTS, max_size=4)))
def test_hstores_are_objects(session: Session, maps: list[dict[str, str | None]]) -> None:
    rows = session.rows(
        "SELECT h::text, hstore_to_json(h)::text FROM json_array_elements(%s::json) WITH ORDINALITY"
        " AS j(j, n) CROSS JOIN LATERAL (SELECT coalesce(hstore(array_agg(key), array_agg(value)),"
        " '') AS h FROM json_each_text(j)) AS made ORDER BY n",
        [json.dumps(maps)],
    )
    texts = pa.array([text for text, _ in rows], pa.large_string())
    found = converter(PgType(id=1, name="hstore"), ValueRules())(texts).to_pylist()
    assert [json.loads(text) for text in found] == [json.loads(text) for _, text in rows]


FLOATS: list[tuple[str, Callable[[Any], Any]]] = [("float4", np.float32), ("float8", np.float64)]


@quick
@given(lists(st.floats(width=32)), st.sampled_from(FLOATS))
def test_floats_are_exact(
    session: Session, numbers: list[float], kind: tuple[str, Callable[[Any], Any]]
) -> None:
    name, number = kind
    given = [repr(value) for value in numbers]
    found, texts = both(session, PgType(id=700, name=name), name, "v", given)
    expected = np.array([number(text) for text in texts])
    assert np.array([number(value) for value in found]).tobytes() == expected.tobytes()
