"""Sink of tables: inserts, upserts, deletes, rejected rows, offsets, against real databases."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidSetting
from penstock.connect.errors import ConnectorFailed, RowsRejected, SinkUnavailable
from penstock.connect.plugins import Records, SinkBatch
from penstock.connect.sql.databases import Database as Target
from penstock.connect.sql.databases import TableName
from penstock.connect.sql.target import Target as TargetTable
from penstock.connect.sql.target import from_base64
from tests.connect.postgresql.bed import Database, database
from tests.connect.sql.bed import Sqlite, batch, sink
from tests.postgres import PostgresServer

Either = Database | Sqlite
ORDERS = "CREATE TABLE orders (id integer PRIMARY KEY, name text, total integer CHECK (total > 0))"


def rows(shop: Either) -> list[tuple[Any, ...]]:
    return shop("SELECT * FROM orders ORDER BY 1")


def test_inserted_rows_and_offsets_are_one_transaction(either: Either) -> None:
    either(ORDERS)
    writer = sink(either.url)
    assert writer.offsets() == {}
    first = batch([{"id": 1, "name": "a"}, {"id": 2, "name": ""}])
    writer.write(first)
    assert rows(either) == [(1, "a", None), (2, "", None)]
    assert writer.offsets() == {("shop.orders", 0): 2}

    writer.write(first)  # a retry whose first attempt was committed
    overlapping = batch([{"id": 2, "name": "again"}, {"id": 3, "name": "c"}], first=1)
    writer.write(overlapping)
    assert rows(either) == [(1, "a", None), (2, "", None), (3, "c", None)]
    writer.write(batch([], first=9))
    writer.close()
    assert sink(either.url).offsets() == {("shop.orders", 0): 9}


def test_the_newest_record_of_a_key_is_kept(either: Either) -> None:
    either(ORDERS)
    writer = sink(either.url, mode="upsert", delete=True)
    writer.offsets()
    keys = [{"id": number} for number in (1, 2, 1, 3, 3)]
    values = [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}, None]
    writer.write(batch(values, keys))
    assert rows(either) == [(1, "c", None), (2, "b", None)]
    again = batch([None, {"name": None, "total": 5}], [{"id": 1}, {"id": 2}], first=5)
    writer.write(again)
    assert rows(either) == [(2, None, 5)]
    writer.write(batch([{"name": None}], [{"id": 2}], first=7))
    assert rows(either) == [(2, None, 5)]
    writer.close()


def test_a_key_that_is_no_object_is_the_column_that_is_set(either: Either) -> None:
    either(ORDERS)
    writer = sink(either.url, mode="upsert", keys=("id",))
    writer.offsets()
    writer.write(batch([{"name": "a"}, {"name": "b"}], [b"7", b"8"]))
    assert rows(either) == [(7, "a", None), (8, "b", None)]
    writer.close()


def test_all_rejected_rows_are_found_and_the_others_are_written(either: Either) -> None:
    either(ORDERS)
    either("INSERT INTO orders VALUES (50, 'there', 1)")
    writer = sink(either.url)
    writer.offsets()
    values = [{"id": number, "name": "n", "total": 1} for number in range(100)]
    values[3]["total"] = -1
    values[77]["id"] = 78
    with pytest.raises(RowsRejected) as caught:
        writer.write(batch(values))
    assert caught.value.rows == (3, 50, 78)
    assert "CHECK" in caught.value.reasons[0].upper()
    assert len(rows(either)) == 1
    assert writer.offsets() == {}
    kept = [value for number, value in enumerate(values) if number not in caught.value.rows]
    writer.write(batch(kept))
    assert len(rows(either)) == 98
    writer.close()


def test_an_earlier_row_of_the_key_is_kept_if_the_newest_is_rejected(either: Either) -> None:
    either(ORDERS)
    writer = sink(either.url, mode="upsert", keys=("id",))
    writer.offsets()
    values = [{"id": 1, "total": 5}, {"id": 1, "total": -5}, {"id": 2, "total": 6}]
    with pytest.raises(RowsRejected) as caught:
        writer.write(batch(values))
    assert caught.value.rows == (1,)
    writer.write(batch([values[0], values[2]]))
    assert rows(either) == [(1, None, 5), (2, None, 6)]
    writer.close()


@pytest.mark.parametrize(
    ("given", "options", "rejected", "reason"),
    [
        ([{"id": 1}, None], {}, (1,), "set delete = true"),
        ([1, 2], {}, (0, 1), "not an object"),
        ([{"id": 1}, {"id": None}], {"mode": "upsert", "keys": ("id",)}, (1,), "column id"),
        ([{"id": 1}], {"mode": "upsert"}, (0,), "the record's key is not an object"),
        ([{"id": 1, "x": None}, {"id": 2, "x": 1}], {}, (1,), "has no column x"),
        ([{"id": 1, "total": "many"}], {}, (0,), "many"),
        (
            [{"after": {"id": 1}, "op": "c"}, {"after": None, "op": "t"}],
            {"mode": "upsert", "keys": ("id",), "envelope": True}, (1,), "not an envelope",
        ),
    ],
)  # fmt: skip
def test_rows_without_a_place_are_rejected(
    shop: Database, given: list[Any], options: dict[str, Any], rejected: object, reason: str
) -> None:
    shop(ORDERS)
    writer = sink(shop.url, **options)
    writer.offsets()
    with pytest.raises(RowsRejected) as caught:
        writer.write(batch(given))
    assert caught.value.rows == rejected
    assert reason in caught.value.reasons[-1]
    assert rows(shop) == []
    writer.close()


def test_tables_and_columns_are_created_from_the_values(either: Either) -> None:
    writer = sink(either.url, mode="upsert", create_table=True, add_columns=True)
    assert writer.problems() == ()
    assert writer.plan()[0] == "create table penstock_offsets"
    writer.offsets()
    writer.write(batch([{"name": "a", "later": None}], [{"id": 1}]))
    assert rows(either) == [("a", 1)]
    writer.write(batch([{"later": 1.5, "name": "b", "list": ["x"]}], [{"id": 2}], first=1))
    found = sorted(either("SELECT id, name, later FROM orders"))
    assert found == [(1, "a", None), (2, "b", 1.5)]
    with pytest.raises(ConnectorFailed, match="no unique index of \\(name\\)"):
        sink(either.url, mode="upsert", keys=("name",)).write(batch([{"name": "a"}]))
    writer.close()


def test_numbers_that_a_column_would_round_are_rejected(either: Either) -> None:
    either("CREATE TABLE orders (id integer, d double precision, n numeric(10, 2))")
    kind = pa.struct(
        [("id", pa.int64()), ("d", pa.decimal128(38, 20)), ("n", pa.decimal256(60, 3))]
    )
    values = [
        {"id": 1, "d": Decimal("0.1"), "n": Decimal("1.25")},
        {"id": 2, "d": Decimal("0.12345678901234567891")},
        {"id": 3, "n": Decimal("12345678.905")},
        {"id": 4, "n": Decimal("12345678901234567890.125")},
    ]
    writer = sink(either.url)
    writer.offsets()
    with pytest.raises(RowsRejected) as caught:
        writer.write(batch(values, kind=kind))
    rounded = isinstance(either, Sqlite)  # SQLite does not apply the scale of a column
    assert caught.value.rows == ((1, 3) if rounded else (1, 2, 3))
    reason = "column d: the number 0.12345678901234567891 does not fit"
    assert caught.value.reasons[0].startswith(reason)
    writer.write(batch(values[:1], kind=kind))
    with pytest.raises(RowsRejected, match="column d"):
        writer.write(batch([{"d": 2**53 + 1}], first=4))
    [(one, tenth, money)] = either("SELECT id, d, n FROM orders")
    assert (one, tenth, float(money)) == (1, 0.1, 1.25)
    writer.close()


def test_parts_of_one_table_keep_the_newest_record(either: Either) -> None:
    either(ORDERS)
    writer = sink(either.url, mode="upsert", keys=("id",), table="orders")
    writer.offsets()
    parts = [
        Records(name, pa.table({
            "value": [{"id": offset // 3, "name": f"{name}{offset}"} for offset in offsets],
            "partition": pa.array([0] * len(offsets), pa.int32()), "offset": pa.array(offsets),
        }))
        for name, offsets in (("a", [0, 2, 5]), ("b", [1, 3, 4]))
    ]  # fmt: skip
    writer.write(SinkBatch(topic="read", parts=parts, next_offsets={0: 6}))
    assert rows(either) == [(0, "a2", None), (1, "a5", None)]
    assert writer.offsets() == {("read", 0): 6}
    writer.close()


def test_a_missing_table_is_an_error(either: Either) -> None:
    writer = sink(either.url, table="orders")
    assert writer.problems() == (
        "table: orders does not exist; create it, or set create_table = true",
    )
    writer.offsets()
    with pytest.raises(ConnectorFailed, match="orders does not exist"):
        writer.write(batch([{"id": 1}]))
    writer.close()


def test_deletes_need_upserts() -> None:
    with pytest.raises(InvalidSetting, match='needs mode = "upsert"'):
        sink("sqlite://", delete=True)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("cud"), st.integers(0, 3), st.one_of(st.none(), st.text("ab'é"))),
    min_size=1,
    max_size=30,
)


@settings(max_examples=10, phases=(Phase.generate,))
@given(operations=OPERATIONS, size=st.integers(1, 7))
def test_envelopes_describe_the_table(
    postgres: PostgresServer, operations: list[tuple[str, int, str | None]], size: int
) -> None:
    url = postgres.schema().replace("search_path=", "options=-csearch_path%3D")
    expected: dict[int, str | None] = {}
    events: list[dict[str, Any]] = []
    for operation, number, name in operations:
        before, after = {"id": number, "name": expected.get(number)}, {"id": number, "name": name}
        if operation == "d":
            events.append({"before": before, "after": None, "op": "d"})
            expected.pop(number, None)
        else:
            events.append({"before": None, "after": after, "op": operation})
            expected[number] = name
    with database(url) as shop:
        shop(ORDERS)
        writer = sink(url, mode="upsert", keys=("id",), envelope=True)
        writer.offsets()
        for first in range(0, len(events), size):
            part = events[first : first + size]
            writer.write(batch(part, [{"id": 0}] * len(part), first=first))
        writer.close()
        assert dict(shop("SELECT id, name FROM orders")) == expected


def test_a_lost_connection_is_retried(postgres: PostgresServer, shop: Database) -> None:
    shop(ORDERS)
    writer = sink(shop.url)
    writer.offsets()
    writer.write(batch([{"id": 1}]))
    with database(postgres.url("postgres")) as admin:
        admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'penstock-connect'"
        )
    with pytest.raises(SinkUnavailable, match="does not respond"):
        writer.write(batch([{"id": 2}], first=1))
    writer.write(batch([{"id": 2}], first=1))
    assert [row[0] for row in rows(shop)] == [1, 2]
    writer.close()


def test_two_runs_of_a_connector_write_each_row_once(shop: Database) -> None:
    shop("CREATE TABLE orders (id integer)")
    sink(shop.url).offsets()
    failures: list[BaseException] = []

    def write() -> None:
        writer = sink(shop.url)
        try:
            for first in range(0, 200, 10):
                part = [{"id": first + number} for number in range(10)]
                while True:
                    try:
                        writer.write(batch(part, first=first))
                        break
                    except SinkUnavailable:
                        continue
        except BaseException as error:
            failures.append(error)
        finally:
            writer.close()

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert rows(shop) == [(number,) for number in range(200)]


class Other(Target):
    """PostgreSQL as a database without statements of its own."""

    dialect = "other"
    postgres = False


def test_databases_without_upserts_get_updates_and_inserts(shop: Database) -> None:
    shop(ORDERS)
    opened = Other(shop.url, SinkUnavailable)
    table = TargetTable(opened, TableName(None, "orders"))
    with opened.transaction() as connection:
        table.insert(connection, pa.table({"id": [1, 2], "name": ["a", "b"]}))
    for _ in range(2):
        with opened.transaction() as connection:
            table.upsert(connection, pa.table({"id": [2, 3], "name": ["c", None]}), ("id",))
    assert rows(shop) == [(1, "a", None), (2, "c", None), (3, None, None)]
    with opened.transaction() as connection:
        table.upsert(connection, pa.table({"id": [3, 4]}), ("id",))
        table.delete(connection, pa.table({"id": [1, 2]}))
    assert rows(shop) == [(3, None, None), (4, None, None)]
    opened.close()


@given(st.lists(st.one_of(st.none(), st.binary(max_size=7))))
def test_base64_is_decoded_by_columns(given: list[bytes | None]) -> None:
    from penstock.formats.json.writing import base64_texts

    column = pa.array(given, pa.binary())
    assert from_base64(base64_texts(column)).to_pylist() == given
