"""Changes of PostgreSQL in the log: each one once, in commit order, in Debezium's envelopes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.connect.connector_file import load
from penstock.connect.errors import ConnectorFailed
from penstock.connect.plugins import SourceContext
from penstock.connect.postgresql.source import PostgresSource
from penstock.connect.status import read_status
from penstock.testing import Broker
from tests.connect.postgresql.bed import (
    LOGICAL,
    Database,
    connector_file,
    database,
    events,
    replayed,
    run_once,
)
from tests.postgres import PostgresServer, postgres_server

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12, 2))"
LONG = "repeat(md5(random()::text), 1000)"
"""Text that PostgreSQL stores out of line, and does not send again in an update of other columns.
"""


def topic_of(name: str) -> str:
    return f"{name}.public.orders"


def rows_of(shop: Database, columns: str = "id, customer, amount::text") -> dict[int, object]:
    names = [column.partition("::")[0].strip() for column in columns.split(",")]
    return {
        row[0]: dict(zip(names, row, strict=True))
        for row in shop(f"SELECT {columns} FROM orders ORDER BY id")
    }


def test_a_snapshot_and_its_changes_equal_the_table(
    shop: Database, log: Broker, folder: Path
) -> None:
    shop(ORDERS)
    shop("INSERT INTO orders SELECT i, 'c' || i, i * 1.25 FROM generate_series(1, 3000) AS i")
    file = connector_file(folder, shop.url, name="equal", more='decimals = "string"\n')
    run_once(file, log.bootstrap)
    shop("UPDATE orders SET amount = -amount WHERE id % 7 = 0")
    shop("DELETE FROM orders WHERE id % 11 = 0")
    shop("UPDATE orders SET id = id + 100000 WHERE id <= 3")
    shop("INSERT INTO orders VALUES (9000, 'it''s \"ü\" \\ {}', NULL)")
    run = run_once(file, log.bootstrap)
    found = events(log.bootstrap, topic_of("equal"))
    assert replayed(found) == rows_of(shop)
    lsns = [event.value["source"]["lsn"] for event in found if event.value]
    assert lsns == sorted(lsns)
    status = read_status(run.spec.state)
    assert status is not None
    assert (status.state, status.cause) == ("STOPPED", None)


def test_a_changed_key_is_a_delete_and_a_create(shop: Database, log: Broker, folder: Path) -> None:
    shop(ORDERS)
    shop("INSERT INTO orders VALUES (1, 'a', 1)")
    file = connector_file(folder, shop.url, name="moved")
    run_once(file, log.bootstrap)
    shop("UPDATE orders SET id = 2")
    run_once(file, log.bootstrap)
    _, deleted, tombstone, created = events(log.bootstrap, topic_of("moved"))
    assert (deleted.key, deleted.value["op"]) == ({"id": 1}, "d")
    assert deleted.headers == [{"key": "__debezium.newkey", "value": b'{"id":2}'}]
    assert (tombstone.key, tombstone.value) == ({"id": 1}, None)
    assert (created.key, created.value["op"]) == ({"id": 2}, "c")
    assert created.headers == [{"key": "__debezium.oldkey", "value": b'{"id":1}'}]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_an_unsent_value_is_named_or_known(
    shop: Database, log: Broker, folder: Path, identity: str
) -> None:
    name = f"toast-{identity.lower()}"
    shop("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, body text)")
    shop(f"ALTER TABLE orders REPLICA IDENTITY {identity}, ALTER body SET STORAGE EXTERNAL")
    shop(f"INSERT INTO orders VALUES (1, 'a', {LONG}), (2, 'b', NULL)")
    file = connector_file(folder, shop.url, name=name)
    run_once(file, log.bootstrap)
    shop("UPDATE orders SET customer = 'c'")
    run_once(file, log.bootstrap)
    *_, first, second = events(log.bootstrap, topic_of(name))
    [(body,)] = shop("SELECT body FROM orders WHERE id = 1")
    if identity == "FULL":
        assert first.value["after"]["body"] == body
        assert first.value["before"]["body"] == body
        assert "unchanged" not in first.value
    else:
        assert (first.value["after"]["body"], first.value["unchanged"]) == (None, ["body"])
        assert second.value["unchanged"] is None


def test_tables_in_one_topic_keep_the_order_of_the_log(
    shop: Database, log: Broker, folder: Path
) -> None:
    shop("CREATE TABLE a (id int PRIMARY KEY)")
    shop("CREATE TABLE b (id int PRIMARY KEY)")
    file = connector_file(folder, shop.url, name="mixed")
    file.write_text(file.read_text().replace("mixed.{schema}.{table}", "mixed.all"))
    run_once(file, log.bootstrap)
    for number in range(20):
        shop(f"INSERT INTO a VALUES ({number}); INSERT INTO b VALUES ({number})")
    run_once(file, log.bootstrap)
    found = events(log.bootstrap, "mixed.all")
    assert [(event.value["source"]["table"], event.key["id"]) for event in found] == [
        (table, number) for number in range(20) for table in "ab"
    ]


def test_new_tables_and_columns_are_followed(shop: Database, log: Broker, folder: Path) -> None:
    shop(ORDERS)
    shop("INSERT INTO orders VALUES (1, 'a', 1)")
    file = connector_file(folder, shop.url, name="grows", more='decimals = "string"\n')
    run_once(file, log.bootstrap)
    shop("ALTER TABLE orders ADD COLUMN note text DEFAULT 'x'")
    shop("UPDATE orders SET note = 'y'")
    shop("ALTER TABLE orders DROP COLUMN customer")
    shop("INSERT INTO orders VALUES (2, 2, 'z')")
    shop("CREATE TABLE more (id int PRIMARY KEY)")
    shop("INSERT INTO more VALUES (7)")
    run_once(file, log.bootstrap)
    found = events(log.bootstrap, topic_of("grows"))
    assert [event.value["after"] for event in found] == [
        {"id": 1, "customer": "a", "amount": "1.00"},
        {"id": 1, "customer": "a", "amount": "1.00", "note": "y"},
        {"id": 2, "amount": "2.00", "note": "z"},
    ]
    [added] = events(log.bootstrap, "grows.public.more")
    assert (added.key, added.value["op"]) == ({"id": 7}, "r")


def test_a_lost_slot_names_the_missing_range(shop: Database, log: Broker, folder: Path) -> None:
    shop(ORDERS)
    file = connector_file(folder, shop.url, name="lost")
    run_once(file, log.bootstrap)
    shop("SELECT pg_drop_replication_slot('penstock_lost')")
    with pytest.raises(ConnectorFailed, match=r"since position [0-9A-F]+/[0-9A-F]+ are missing"):
        run_once(file, log.bootstrap)
    status = read_status(load(file).state)
    assert status is not None
    assert status.state == "FAILED"
    assert "penstock connect reset" in str(status.cause)


def test_problems_are_found_before_a_run(
    shop: Database, postgres: PostgresServer, folder: Path
) -> None:
    shop("CREATE TABLE bare (id int)")

    def problems(url: str, tables: str = "public.*") -> list[str]:
        spec = load(connector_file(folder, url, tables=tables))
        return list(PostgresSource(spec.settings, SourceContext(connector="c")).problems())

    [bare] = problems(shop.url)
    assert "public.bare has no primary key" in bare
    shop("DROP TABLE bare; CREATE TABLE bare (id int PRIMARY KEY, name text NOT NULL UNIQUE)")
    shop("ALTER TABLE bare REPLICA IDENTITY USING INDEX bare_name_key")
    [other] = problems(shop.url)
    assert "an index without its primary key" in other
    shop("ALTER TABLE bare REPLICA IDENTITY USING INDEX bare_pkey")
    assert problems(shop.url) == []
    assert any(
        "no table matches 'public.none'" in text for text in problems(shop.url, "public.none")
    )
    assert any("wal_level is replica" in text for text in problems(postgres.url("postgres")))
    [absent] = problems(shop.url.rpartition("/")[0] + "/absent")
    assert 'database "absent" does not exist' in absent


def test_a_table_that_is_created_again_is_read_again(
    shop: Database, log: Broker, folder: Path
) -> None:
    shop(ORDERS)
    shop("INSERT INTO orders VALUES (1, 'a', 1)")
    file = connector_file(folder, shop.url, name="created")
    run_once(file, log.bootstrap)
    shop(f"DROP TABLE orders; {ORDERS}; INSERT INTO orders VALUES (2, 'b', 2)")
    run_once(file, log.bootstrap)
    found = events(log.bootstrap, topic_of("created"))
    assert [(event.value["op"], event.key["id"]) for event in found] == [("r", 1), ("r", 2)]


def test_another_database_is_not_read_from_an_old_position(
    shop: Database, logical: PostgresServer, log: Broker, folder: Path
) -> None:
    shop(ORDERS)
    file = connector_file(folder, shop.url, name="restored")
    run_once(file, log.bootstrap)
    with postgres_server(settings=LOGICAL) as other, other.database() as name:
        with database(other.url(name)) as there:
            there(ORDERS)
        file.write_text(file.read_text().replace(shop.url, other.url(name)))
        with pytest.raises(ConnectorFailed, match="the database is of another cluster"):
            run_once(file, log.bootstrap)
