"""Source of tables and queries: modes, order, types and failures, against real databases."""

from __future__ import annotations

import psycopg2
import pytest

from penstock.base.errors import InvalidSetting
from penstock.connect.errors import ConnectorFailed, SourceUnavailable
from tests.connect.postgresql.bed import Database, database
from tests.connect.sql.bed import Sqlite, next_rows, read_once, source, values
from tests.postgres import PostgresServer

Either = Database | Sqlite


def table(shop: Either, rows: int) -> None:
    shop("CREATE TABLE orders (id integer PRIMARY KEY, total integer)")
    for number in range(1, rows + 1):
        shop("INSERT INTO orders VALUES (%s, %s)", number, number * 10)


def ids(records: object) -> list[int]:
    return [value["id"] for value in values(records)]  # type: ignore[arg-type]


def test_incrementing_continues_from_its_position(either: Either) -> None:
    table(either, 7)
    settings = {
        "tables": ("orders",), "mode": "incrementing", "incrementing_column": "id",
        "batch_rows": 3,
    }  # fmt: skip
    records, positions = read_once(source(either.url, **settings))
    assert ids(records) == [1, 2, 3, 4, 5, 6, 7]
    assert [item.count for item in records] == [3, 3, 1]
    assert {item.topic for item in records} == {"shop.orders"}
    assert records[0].rows.column("key").to_pylist() == [{"id": 1}, {"id": 2}, {"id": 3}]

    assert read_once(source(either.url, **settings), positions) == ([], positions)
    either("INSERT INTO orders VALUES (8, 80)")
    assert ids(read_once(source(either.url, **settings), positions)[0]) == [8]


@pytest.mark.parametrize("primary", [True, False], ids=["primary key", "no primary key"])
def test_rows_with_equal_timestamps_are_read_once(either: Either, primary: bool) -> None:
    key = "PRIMARY KEY" if primary else ""
    either(f"CREATE TABLE orders (id integer {key}, changed timestamp)")
    moments = ["2026-01-01 10:00:00.000001"] * 5 + ["2026-01-01 10:00:01"] * 2
    moments += ["2026-01-02 00:00:00.5"]
    for number, moment in enumerate(moments):
        either("INSERT INTO orders VALUES (%s, %s)", number, moment)
    settings = {
        "tables": ("orders",), "mode": "timestamp", "timestamp_column": "changed", "batch_rows": 2
    }  # fmt: skip
    records, positions = read_once(source(either.url, **settings))
    assert sorted(ids(records)) == list(range(8))
    if primary:
        assert max(item.count for item in records) == 2

    either("UPDATE orders SET changed = '2026-01-03 00:00:00' WHERE id = 0")
    either("INSERT INTO orders VALUES (8, NULL)")
    assert ids(read_once(source(either.url, **settings), positions)[0]) == [0]


def test_both_columns_order_rows_with_equal_timestamps(either: Either) -> None:
    either("CREATE TABLE orders (id integer, changed timestamp)")
    for number in (3, 1, 2):
        either("INSERT INTO orders VALUES (%s, '2026-01-01 10:00:00')", number)
    settings = {
        "tables": ("orders",), "mode": "timestamp+incrementing", "timestamp_column": "changed",
        "incrementing_column": "id", "batch_rows": 1,
    }  # fmt: skip
    records, positions = read_once(source(either.url, **settings))
    assert ids(records) == [1, 2, 3]
    either("INSERT INTO orders VALUES (4, '2026-01-01 10:00:00')")
    assert ids(read_once(source(either.url, **settings), positions)[0]) == [4]


def test_a_delay_keeps_new_rows_back(either: Either) -> None:
    now = "now()" if isinstance(either, Database) else "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    kind = "timestamptz" if isinstance(either, Database) else "timestamp"
    either(f"CREATE TABLE orders (id integer PRIMARY KEY, changed {kind})")
    either("INSERT INTO orders VALUES (1, '2026-01-01 10:00:00')")
    either(f"INSERT INTO orders VALUES (2, {now})")
    settings = {"tables": ("orders",), "mode": "timestamp", "timestamp_column": "changed"}
    delayed, positions = read_once(source(either.url, delay_seconds=3600.0, **settings))
    assert ids(delayed) == [1]
    assert ids(read_once(source(either.url, **settings), positions)[0]) == [2]


def test_bulk_reads_all_rows_each_time(either: Either) -> None:
    table(either, 5)
    settings = {"tables": ("orders",), "batch_rows": 2}
    records, positions = read_once(source(either.url, **settings))
    assert ids(records) == [1, 2, 3, 4, 5]
    assert positions == {"orders": None}
    halfway = {"orders": {"mode": "bulk", "after": [3]}}
    assert ids(read_once(source(either.url, **settings), halfway)[0]) == [4, 5]


def test_bulk_without_a_primary_key_reads_from_a_cursor(either: Either) -> None:
    either("CREATE TABLE lines (id integer, note text)")
    for number in range(5):
        either("INSERT INTO lines VALUES (%s, %s)", number, "" if number else None)
    records, _ = read_once(source(either.url, tables=("lines",), batch_rows=2))
    assert [item.count for item in records] == [2, 2, 1]
    assert values(records)[:2] == [{"id": 0, "note": None}, {"id": 1, "note": ""}]
    assert "key" not in records[0].rows.column_names


def test_a_query_has_the_key_that_is_set(either: Either) -> None:
    table(either, 3)
    query = "SELECT id, total + 1 AS more FROM orders WHERE total <> 20 -- 'a:b'\n;"
    settings = {"query": query, "keys": ("id",), "topic": "shop.{table}"}
    settings |= {"mode": "incrementing", "incrementing_column": "id"}
    records, positions = read_once(source(either.url, **settings))
    assert values(records) == [{"id": 1, "more": 11}, {"id": 3, "more": 31}]
    assert records[0].topic == "shop.query"
    assert records[0].rows.column("key").to_pylist() == [{"id": 1}, {"id": 3}]
    assert positions == {"query": {"mode": "incrementing", "after": [3]}}


def test_tables_are_found_by_wildcards(either: Either) -> None:
    for name in ("order_a", "order_b", "other"):
        either(f"CREATE TABLE {name} (id integer PRIMARY KEY)")
        either(f"INSERT INTO {name} VALUES (1)")
    reader = source(either.url, tables=("order_*",), topic="{schema}.{table}")
    batches = reader.read({})
    schema = either("SELECT current_schema()")[0][0] if isinstance(either, Database) else "main"
    assert next_rows(batches).records[0].topic == f"{schema}.order_a"
    assert next_rows(batches).records[0].topic == f"{schema}.order_b"
    either("CREATE TABLE order_c (id integer PRIMARY KEY)")
    either("INSERT INTO order_c VALUES (1)")
    found = {next_rows(batches).records[0].topic for _ in range(3)}
    assert found == {f"{schema}.order_{letter}" for letter in "abc"}
    reader.close()


def test_incrementing_waits_for_open_transactions(shop: Database) -> None:
    shop("CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
    reader = source(shop.url, tables=("orders",), mode="incrementing", incrementing_column="id")
    with psycopg2.connect(shop.url) as slow, slow.cursor() as cursor:
        cursor.execute("INSERT INTO orders (note) VALUES ('slow')")
        shop("INSERT INTO orders (note) VALUES ('fast')")
        batches = reader.read({})
        assert [next(batches).count for _ in range(10)] == [0] * 10
        assert reader.facts()["waits_for_transactions"] == 1
        slow.commit()
        assert values(list(next_rows(batches).records)) == [
            {"id": 1, "note": "slow"}, {"id": 2, "note": "fast"},
        ]  # fmt: skip
    slow.close()
    reader.close()


def test_timestamps_wait_for_open_transactions(shop: Database) -> None:
    shop("CREATE TABLE orders (id integer PRIMARY KEY, changed timestamptz DEFAULT now())")
    settings = {"tables": ("orders",), "mode": "timestamp", "timestamp_column": "changed"}
    with psycopg2.connect(shop.url) as slow, slow.cursor() as cursor:
        cursor.execute("SELECT now()")
        shop("INSERT INTO orders VALUES (2)")
        records, positions = read_once(source(shop.url, **settings))
        assert ids(records) == []
        cursor.execute("INSERT INTO orders VALUES (1)")
        slow.commit()
    slow.close()
    assert ids(read_once(source(shop.url, **settings), positions)[0]) == [1, 2]


def test_times_without_zone_are_in_the_zone_that_is_set(shop: Database) -> None:
    shop("CREATE TABLE orders (id integer PRIMARY KEY, changed timestamp)")
    shop("INSERT INTO orders VALUES (1, now() AT TIME ZONE 'Asia/Tokyo')")
    settings = {"tables": ("orders",), "mode": "timestamp", "timestamp_column": "changed"}
    assert ids(read_once(source(shop.url, **settings))[0]) == []
    assert ids(read_once(source(shop.url, timezone="Asia/Tokyo", **settings))[0]) == [1]


def test_columns_with_other_values_than_their_type_fail(either: Either) -> None:
    if isinstance(either, Database):
        either("CREATE TABLE orders (total numeric(10, 2))")
        either("INSERT INTO orders VALUES ('NaN')")
    else:
        either("CREATE TABLE orders (total timestamp)")
        either("INSERT INTO orders VALUES ('yesterday')")
    with pytest.raises(ConnectorFailed, match=r"column total .* is not .* cast the column there"):
        read_once(source(either.url, tables=("orders",)))


def test_a_changed_mode_is_an_error(either: Either) -> None:
    table(either, 1)
    position = {"orders": {"mode": "timestamp", "after": ["2026-01-01"]}}
    reader = source(either.url, tables=("orders",), mode="incrementing", incrementing_column="id")
    with pytest.raises(ConnectorFailed, match="orders was read in mode 'timestamp'"):
        read_once(reader, position)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tables": ("nothing",)}, "tables: no table has such a name"),
        (
            {"tables": ("orders",), "mode": "incrementing", "incrementing_column": "no"},
            "orders has no column no; it has ['id', 'total']",
        ),
        ({"tables": ("orders",), "keys": ("other",)}, "orders has no column other"),
        ({"tables": ("orders",), "topic": "a b"}, "topic name 'a b'"),
        ({"query": "SELECT no FROM orders"}, "the database rejects the request: "),
    ],
)
def test_problems_are_found_before_a_run(either: Either, settings: object, problem: str) -> None:
    table(either, 0)
    [found] = source(either.url, **settings).problems()  # type: ignore[arg-type]
    assert problem in found
    assert source(either.url, tables=("orders",)).problems() == []
    plan = source(either.url, tables=("orders",)).plan()
    assert plan == ["read table orders into topic shop.orders"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set exactly one of tables and query"),
        ({"tables": ("a",), "query": "SELECT 1"}, "set exactly one of tables and query"),
        ({"tables": ("a",), "mode": "incrementing"}, "is required for mode 'incrementing'"),
        ({"tables": ("a",), "timestamp_column": "t"}, "is not used by mode 'bulk'"),
    ],
)
def test_settings_that_contradict_are_refused(settings: object, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        source("sqlite://", **settings)  # type: ignore[arg-type]


def test_a_lost_connection_is_retried_and_a_wrong_name_is_not(
    postgres: PostgresServer, shop: Database
) -> None:
    table(shop, 2)
    reader = source(shop.url, tables=("orders",), batch_rows=1)
    batches = reader.read({})
    next_rows(batches)
    with database(postgres.url("postgres")) as admin:
        admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'penstock-connect'"
        )
    with pytest.raises(SourceUnavailable, match="does not respond"):
        list(batches)
    reader.close()
    secret = f"postgresql://penstock:s3cret%20pass@127.0.0.1:{postgres.port}/absent"
    [problem] = source(secret, tables=("orders",)).problems()
    assert 'database "absent" does not exist' in problem
    assert "s3cret" not in problem
    unreachable = "postgresql://penstock:s3cret@127.0.0.1:1/absent"
    with pytest.raises(SourceUnavailable) as caught:
        read_once(source(unreachable, tables=("orders",)))
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConnectorFailed, match="url: ") as invalid:
        source("postgres//penstock:s3cret@host", tables=("orders",))
    assert "s3cret" not in str(invalid.value)
