"""Rows of all common types, from a table by a source and a sink to another table.

The database compares the tables: PostgreSQL by the text forms of whole rows, SQLite by its values
and their storage classes.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.testing import Broker
from tests.connect.postgresql.bed import Database, database, run_once
from tests.connect.sql.bed import Sqlite, of_records, read_once, sink, source
from tests.postgres import PostgresServer

POSTGRES_TYPES = (
    "boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric(20, 5)",
    "numeric", "numeric(60, 10)", "text", "varchar(20)", "char(5)", "bytea", "date", "timestamp",
    "timestamptz", "time", "timetz", "interval", "uuid", "json", "jsonb", "integer[]", "text[]",
    "numeric[]", "timestamptz[]", "boolean[]", "bytea[]", "inet", "int4range", "bit(3)", "xml",
    "money", "mood",
)  # fmt: skip
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)
MOMENTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 30))
INTEGERS = {16: st.integers(-(2**15), 2**15 - 1), 32: st.integers(-(2**31), 2**31 - 1),
            64: st.integers(-(2**63), 2**63 - 1)}  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXT.filter(str.isprintable)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
).map(json.dumps)


def or_text(values: st.SearchStrategy[Any], *texts: str) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values.map(str), *map(st.just, texts))


def decimals(digits: int, places: int) -> st.SearchStrategy[Any]:
    whole = st.integers(-(10**digits) + 1, 10**digits - 1)
    return st.one_of(st.none(), whole.map(lambda number: f"{number}e-{places}"))


VALUES: tuple[st.SearchStrategy[Any], ...] = (
    st.one_of(st.none(), st.booleans()),
    *(or_text(INTEGERS[bits]) for bits in (16, 32, 64)),
    or_text(st.floats(width=32), "NaN", "Infinity", "-0"),
    or_text(st.floats(), "NaN", "-Infinity", "-0", "5e-324"),
    decimals(20, 5), or_text(decimals(40, 20).filter(bool), "NaN", "Infinity", "1e100", "0.00"),
    decimals(60, 10),
    st.one_of(st.none(), TEXT), st.one_of(st.none(), TEXT),
    st.one_of(st.none(), st.text("ab", max_size=5)),
    st.one_of(st.none(), st.binary(max_size=9)),
    or_text(st.dates(), "infinity", "-infinity"),
    or_text(MOMENTS, "infinity", "-infinity"),
    or_text(MOMENTS.map(lambda at: f"{at}+00"), "infinity"),
    or_text(st.times(), "24:00:00"), or_text(st.times().map(lambda at: f"{at}+05:30")),
    or_text(st.integers(-9999, 9999).map(lambda days: f"{days} days 01:02:03.000004"), "1 mon"),
    or_text(st.uuids()), st.one_of(st.none(), JSON), st.one_of(st.none(), JSON),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), INTEGERS[32]), max_size=3)),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXT), max_size=3)),
    st.one_of(st.none(), st.lists(decimals(9, 4), max_size=3)),
    or_text(st.sampled_from(["{}", '{"2026-01-01 00:00:00.5+02",NULL}'])),
    st.one_of(st.none(), st.lists(st.booleans(), max_size=3)),
    or_text(st.sampled_from(["{}", '{"\\\\x00ff",NULL,"\\\\x"}'])),
    or_text(st.ip_addresses()), or_text(st.sampled_from(["[1,5)", "empty", "(,)"])),
    or_text(st.sampled_from(["101", "000"])), or_text(st.sampled_from(["<a>é</a>"])),
    or_text(st.sampled_from(["$1,234.50", "-$0.01"])), or_text(st.sampled_from(["a", "b c"])),
)  # fmt: skip
COLUMNS = ", ".join(f"c{at} {kind}" for at, kind in enumerate(POSTGRES_TYPES))
DEFINITION = f"(id integer PRIMARY KEY, {COLUMNS})"


@settings(max_examples=12, phases=(Phase.generate,))
@given(rows=st.lists(st.tuples(*VALUES), min_size=1, max_size=8))
def test_every_type_of_postgresql_survives(
    postgres: PostgresServer, rows: list[tuple[Any, ...]]
) -> None:
    url = postgres.schema().replace("search_path=", "options=-csearch_path%3D")
    with database(url) as shop:
        shop("CREATE TYPE mood AS ENUM ('a', 'b c')")
        shop(f"CREATE TABLE before {DEFINITION}; CREATE TABLE after {DEFINITION}")
        marks = ", ".join(f"%s::{kind}" for kind in POSTGRES_TYPES)
        for number, row in enumerate(rows):
            shop(f"INSERT INTO before VALUES ({number}, {marks})", *row)
        records, _ = read_once(source(url, tables=("before",), batch_rows=3))
        for mode in ("insert", "upsert"):
            writer = sink(url, table="after", mode=mode)
            writer.offsets()
            writer.write(of_records(records))
            writer.close()
            shop("DELETE FROM penstock_offsets")
            different = shop(
                "SELECT b::text, a::text FROM before b FULL JOIN after a USING (id)"
                " WHERE b::text IS DISTINCT FROM a::text"
            )
            assert different == []


SQLITE_VALUES = (
    st.one_of(st.none(), INTEGERS[64]),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.one_of(st.none(), TEXT),
    st.one_of(st.none(), st.binary(max_size=9)),
    or_text(MOMENTS.map(lambda at: at.isoformat(" ", "microseconds"))),
    or_text(st.dates()),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), JSON),
    st.one_of(st.none(), st.integers(-(10**9), 10**9).map(lambda number: number / 4)),
)
SQLITE_TYPES = (
    "bigint", "double", "text", "blob", "timestamp", "date", "boolean", "json", "numeric(12, 2)",
)  # fmt: skip


@settings(max_examples=25, phases=(Phase.generate,))
@given(rows=st.lists(st.tuples(*SQLITE_VALUES), min_size=1, max_size=8))
def test_every_type_of_sqlite_survives(tmp_path_factory: Any, rows: list[tuple[Any, ...]]) -> None:
    shop = Sqlite(tmp_path_factory.mktemp("shop") / "shop.db")
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(SQLITE_TYPES))
    for name in ("before", "after"):
        shop(f"CREATE TABLE {name} (id integer PRIMARY KEY, {columns})")
    marks = ", ".join("?" for _ in SQLITE_TYPES)
    for number, row in enumerate(rows):
        shop(f"INSERT INTO before VALUES ({number}, {marks})", *row)
    records, _ = read_once(source(shop.url, tables=("before",), batch_rows=3))
    writer = sink(shop.url, table="after", mode="upsert")
    writer.offsets()
    writer.write(of_records(records))
    writer.close()
    types = ", ".join(f"typeof(c{at})" for at in range(len(SQLITE_TYPES)))
    before, after = (shop(f"SELECT *, {types} FROM {name}") for name in ("before", "after"))
    assert before == after
    shop.close()


def test_rows_pass_a_topic_of_json(log: Broker, shop: Database, tmp_path: Path) -> None:
    """Transfer a table through the log into PostgreSQL, SQLite and a created table."""
    kinds = {
        "id": "bigint PRIMARY KEY", "name": "text", "price": "numeric(12, 2)", "ratio": "float8",
        "flag": "boolean", "photo": "bytea", "day": "date", "at": "timestamptz", "tags": "text[]",
        "more": "jsonb",
    }  # fmt: skip
    definition = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    shop(f"CREATE TABLE goods ({definition}); CREATE TABLE copy ({definition})")
    shop("""
        INSERT INTO goods SELECT i, 'name ' || i || '"é', i * 1.25, i / 7.0, i % 2 = 0,
            decode(repeat('00ff', i % 5), 'hex'), date '2026-01-01' + i,
            timestamptz '2026-01-01 10:00:00.123456+02' + i * interval '1 hour',
            ARRAY['a', NULL, i::text], jsonb_build_object('n', i) FROM generate_series(1, 500) i
    """)
    shop("INSERT INTO goods (id) VALUES (501)")
    name = shop("SELECT current_schema()")[0][0]
    lite = tmp_path / "copy.db"
    with sqlite3.connect(lite) as made:
        made.execute(
            "CREATE TABLE copy (id integer PRIMARY KEY, name text, price numeric(12, 2),"
            " ratio double, flag boolean, photo blob, day date, at timestamp, tags json, more json)"
        )
    made.close()
    files = {
        "source": f'[source]\nconnector = "sql"\nurl = "{shop.url}"\ntables = ["goods"]\n'
        f'topic = "{name}.{{table}}"\nmode = "incrementing"\nincrementing_column = "id"\n'
        "batch_rows = 200\n",
        "copy": f'[sink]\nconnector = "sql"\nurl = "{shop.url}"\ntopics = ["{name}.goods"]\n'
        'table = "copy"\nmode = "upsert"\n',
        "created": f'[sink]\nconnector = "sql"\nurl = "{shop.url}"\ntopics = ["{name}.goods"]\n'
        'table = "made_{name}"\nmode = "upsert"\ncreate_table = true\nadd_columns = true\n',
        "lite": f'[sink]\nconnector = "sql"\nurl = "sqlite:///{lite}"\n'
        f'topics = ["{name}.goods"]\ntable = "copy"\nmode = "upsert"\n',
    }
    for role, text in files.items():
        file = tmp_path / f"{role}.toml"
        file.write_text(f'name = "{name}-{role}"\n{text}')
        for _ in range(2):  # the second run continues, and transfers nothing
            run_once(file, log.bootstrap)
    assert shop("TABLE copy EXCEPT TABLE goods") == []
    assert shop("SELECT count(*) FROM copy") == [(501,)]
    joined = "FROM goods g JOIN made_goods m ON g.id = m.id"
    same = (
        "g.name = m.name AND g.price = m.price::numeric AND g.ratio = m.ratio AND g.flag = m.flag"
    )
    assert shop(f"SELECT count(*) {joined} AND {same} AND g.tags = m.tags") == [(500,)]
    with sqlite3.connect(lite) as opened:
        found = opened.execute("SELECT id, name, price, photo, day, at FROM copy").fetchall()
    opened.close()
    wanted = shop(
        "SELECT id, name, price::float8, photo, day::text, to_char(at AT TIME ZONE 'UTC',"
        " 'YYYY-MM-DD HH24:MI:SS.US') FROM goods"
    )
    plain = [(*row[:3], None if row[3] is None else bytes(row[3]), *row[4:]) for row in wanted]
    assert found == plain
