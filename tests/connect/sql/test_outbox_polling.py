"""Outbox by polling: order of aggregates, single publication, under writers and kills."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.errors import ConnectorFailed, SourceUnavailable
from penstock.connect.plugins import SourceBatch, SourceContext
from penstock.connect.sql.outbox_polling import OutboxSettings, OutboxSource
from penstock.connect.status import StatusFile
from penstock.testing import Broker
from tests.connect.postgresql.bed import Database, database, events, run_once
from tests.connect.sql.bed import killed

DEFINITION = """
    CREATE TABLE outbox (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
        aggregateid text NOT NULL, type text, payload jsonb,
        seq bigserial UNIQUE, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
        published_at timestamptz)
"""
INSERT = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES"
STEPS = (
    "penstock.client:TransactionalProducer.begin",
    "penstock.client:TransactionalProducer.write_arrow",
    "penstock.client:TransactionalProducer.commit",
    "penstock.connect.sql.outbox_polling:OutboxSource._start",
    "penstock.connect.sql.outbox_polling:OutboxSource._claim",
    "penstock.connect.sql.outbox_polling:OutboxSource._finish",
    "penstock.connect.sql.outbox_polling:OutboxSource.committed",
)


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Database]:
    """A schema with an empty outbox."""
    with database(postgres_url.replace("search_path=", "options=-csearch_path%3D")) as opened:
        opened(DEFINITION)
        yield opened


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(directory=tmp_path_factory.mktemp("log"), process=True) as broker:
        yield broker


def source(url: str, name: str = "outbox", **settings: Any) -> OutboxSource:
    return OutboxSource(OutboxSettings(url=url, **settings), SourceContext(connector=name))


def outbox_file(folder: Path, url: str, name: str, more: str = "") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f'name = "{name}"\n[source]\nconnector = "outbox-polling"\nurl = "{url}"\n'
        f'topic = "{folder.name}.{{aggregatetype}}"\nbatch_rows = 7\n{more}'
    )
    return file


def numbers(batch: SourceBatch) -> list[int]:
    """Return the field `n` of all payloads."""
    rows = [value for item in batch.records for value in item.rows.column("value").to_pylist()]
    return [json.loads(value)["n"] for value in rows]


def versions(bootstrap: str, topic: str) -> dict[Any, list[int]]:
    """Return the versions of each aggregate in the order of the log."""
    found: dict[Any, list[int]] = defaultdict(list)
    for event in events(bootstrap, topic):
        found[event.key].append(event.value["n"])
    return dict(found)


def test_columns_become_topic_key_value_and_headers(shop: Database) -> None:
    shop(f"{INSERT} ('order', '7', 'made', '{{\"n\": 1}}'), ('a b', '8', NULL, NULL)")
    ids = [row[0] for row in shop("SELECT id FROM outbox ORDER BY seq")]
    reader = source(shop.url, topic="shop.{aggregatetype}")
    batch = next(found for found in reader.read({}) if found.records)
    first, second = batch.records
    assert (first.topic, second.topic) == ("shop.order", "shop.a_b")
    assert first.rows.to_pylist() == [
        {
            "key": "7", "value": '{"n": 1}',
            "headers": [
                {"key": "id", "value": ids[0].encode()}, {"key": "type", "value": b"made"},
            ],
        }
    ]  # fmt: skip
    assert second.rows.column("value").to_pylist() == [None]
    assert shop("SELECT count(*) FROM outbox") == [(2,)]
    reader.committed(batch.positions)
    assert shop("SELECT count(*) FROM outbox") == [(0,)]
    reader.close()


@pytest.mark.parametrize("kind", ["bytea", "text", "json"])
def test_payloads_are_unchanged(shop: Database, kind: str) -> None:
    payload = {"bytea": b"\x00\xff", "text": "plain é", "json": '{ "n":  1 }'}[kind]
    shop(f"ALTER TABLE outbox ALTER payload TYPE {kind} USING NULL")
    shop("INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('a', '1', %s)", payload)
    reader = source(shop.url)
    batch = next(found for found in reader.read({}) if found.records)
    assert batch.records[0].rows.column("value").to_pylist() == [payload]
    reader.close()


@pytest.mark.parametrize("order", [True, False])
def test_published_rows_are_marked(shop: Database, order: bool) -> None:
    shop(f"{INSERT} ('order', '7', 'made', '{{\"n\": 1}}')")
    reader = source(shop.url, after="mark", order=order)
    batches = reader.read({})
    batch = next(found for found in batches if found.records)
    reader.committed(batch.positions)
    assert next(batches).caught_up
    reader.close()
    assert shop("SELECT published_at IS NOT NULL FROM outbox") == [(True,)]


def test_an_open_transaction_delays_events_behind_it(shop: Database) -> None:
    reader = source(shop.url)
    with psycopg2.connect(shop.url) as slow, slow.cursor() as cursor:
        cursor.execute(f"{INSERT} ('order', '7', 'made', '{{\"n\": 1}}')")
        shop(f"{INSERT} ('order', '7', 'made', '{{\"n\": 2}}')")
        batches = reader.read({})
        assert [next(batches).count for _ in range(5)] == [0] * 5
        slow.commit()
    slow.close()
    assert numbers(next(found for found in batches if found.records)) == [1, 2]
    reader.close()


def test_an_event_does_not_overtake_one_whose_transaction_has_a_larger_id(shop: Database) -> None:
    """Let a transaction with a small id write after one with a large id has committed."""
    early, middle = psycopg2.connect(shop.url), psycopg2.connect(shop.url)
    with early.cursor() as first, middle.cursor() as second:
        first.execute("SELECT pg_current_xact_id()")
        second.execute("SELECT pg_current_xact_id()")
        shop(f"{INSERT} ('order', '7', 'made', '{{\"n\": 1}}')")
        first.execute(f"{INSERT} ('order', '7', 'made', '{{\"n\": 2}}')")
        early.commit()
        reader = source(shop.url)
        batches = reader.read({})
        assert [next(batches).count for _ in range(5)] == [0] * 5
        middle.commit()
        assert numbers(next(found for found in batches if found.records)) == [1, 2]
    reader.close()
    early.close()
    middle.close()


def test_another_poller_waits_for_the_batch_of_a_lost_one(shop: Database) -> None:
    shop(f"{INSERT} ('order', '7', 'made', '{{\"n\": 1}}')")
    lost = source(shop.url, "first")
    batch = next(found for found in lost.read({}) if found.records)
    lost.close()
    other = source(shop.url, "second")
    batches = other.read({})
    assert [next(batches).count for _ in range(5)] == [0] * 5
    assert len(other.facts()["buckets"]) < 16

    returned = source(shop.url, "first")
    assert next(returned.read(batch.positions)).count == 0  # the log has the batch
    assert shop("SELECT count(*) FROM outbox") == [(0,)]
    returned.close()
    other.close()

    shop(f"{INSERT} ('order', '7', 'made', '{{\"n\": 2}}')")
    lost = source(shop.url, "first")
    next(found for found in lost.read({}) if found.records)
    lost.close()
    shop("UPDATE penstock_outbox SET claimed = claimed - interval '1 hour'")
    other = source(shop.url, "second")
    assert numbers(next(found for found in other.read({}) if found.records)) == [2]
    other.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "ALTER TABLE outbox DROP seq, DROP xid",
            "run ALTER TABLE outbox ADD COLUMN seq bigserial UNIQUE, ADD COLUMN xid xid8 NOT NULL"
            " DEFAULT pg_current_xact_id()",
        ),
        ("ALTER TABLE outbox DROP payload", "has no column payload"),
        ("DROP TABLE outbox", "outbox does not exist"),
    ],
)
def test_problems_have_the_statement_that_resolves_them(
    shop: Database, statement: str, problem: str
) -> None:
    assert source(shop.url).problems() == ()
    shop(statement)
    [found] = source(shop.url).problems()
    assert problem in found
    shop("DROP TABLE IF EXISTS outbox")
    shop(DEFINITION)


def test_a_right_that_is_missing_is_a_problem(shop: Database) -> None:
    [(schema,)] = shop("SELECT current_schema()")
    shop(f"CREATE ROLE {schema}_reader LOGIN; GRANT USAGE ON SCHEMA {schema} TO {schema}_reader")
    shop(f"GRANT SELECT ON outbox TO {schema}_reader")
    reader = source(shop.url.replace("//penstock@", f"//{schema}_reader@"))
    assert ["may not DELETE" in problem for problem in reader.problems()] == [True]


def test_pollers_must_agree_on_the_buckets(shop: Database) -> None:
    first = source(shop.url, "first")
    next(first.read({}))
    second = source(shop.url, "second", buckets=8)
    with pytest.raises(ConnectorFailed, match=r"use \[8, 16\] buckets"):
        next(second.read({}))
    second.close()
    first.close()


def test_a_lost_connection_is_retried(shop: Database) -> None:
    reader = source(shop.url)
    batches = reader.read({})
    next(batches)
    shop(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'penstock-connect'"
    )
    with pytest.raises(SourceUnavailable):
        list(batches)
    reader.close()


# Writers and pollers together


@contextmanager
def polling(file: Path, bootstrap: str) -> Iterator[running.Run]:
    """Run a connector in a thread until the context ends."""
    spec = load(file, bootstrap=bootstrap)
    with Client(bootstrap) as client:
        run = running.Run(
            spec=spec, client=client, stop=running.Stop(),
            status=StatusFile(spec.name, spec.direction, spec.state),
        )  # fmt: skip
        thread = threading.Thread(target=running.run, args=(run,))
        thread.start()
        try:
            yield run
        finally:
            run.stop.set()
            thread.join()


def write(url: str, writer: int, transactions: int) -> None:
    """Append versions of aggregates, whose rows are locked; each third transaction is slow."""
    connection = psycopg2.connect(url)
    with connection.cursor() as cursor:
        for number in range(transactions):
            if number % 3 == 0:
                cursor.execute("SELECT pg_current_xact_id(), pg_sleep(0.01)")
            aggregate = (writer + number) % 5
            cursor.execute(
                "UPDATE aggregates SET n = n + 1 WHERE id = %s RETURNING n", (aggregate,)
            )
            [version] = cursor.fetchone() or (0,)
            payload = json.dumps({"n": version})
            cursor.execute(f"{INSERT} ('order', %s, 'changed', %s)", (str(aggregate), payload))
            connection.rollback() if number % 7 == 6 else connection.commit()
    connection.close()


@pytest.mark.parametrize("order", [True, False])
def test_two_pollers_publish_each_event_once(
    shop: Database, log: Broker, tmp_path: Path, order: bool
) -> None:
    """Each aggregate's events are in order, if this is asked for."""
    shop("CREATE TABLE aggregates AS SELECT id, 0 AS n FROM generate_series(0, 4) id")
    more = f"order = {str(order).lower()}\n"
    files = [outbox_file(tmp_path, shop.url, f"{tmp_path.name}-{name}", more) for name in "ab"]
    with polling(files[0], log.bootstrap) as first, polling(files[1], log.bootstrap) as second:
        writers = [threading.Thread(target=write, args=(shop.url, at, 40)) for at in range(4)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
        while shop("SELECT count(*) FROM outbox") != [(0,)]:
            states = {first.status.status.state, second.status.status.state}
            assert "FAILED" not in states
    expected = {int(aggregate): list(range(1, n + 1)) for aggregate, n in shop("TABLE aggregates")}
    found = versions(log.bootstrap, f"{tmp_path.name}.order")
    assert (found if order else {key: sorted(n) for key, n in found.items()}) == expected
    shares = [run.status.status.records for run in (first, second)]
    assert sum(shares) == sum(len(found) for found in expected.values())


def kill_at(shop: Database, log: Broker, folder: Path, step: int, order: str) -> str:
    """Kill a poller at a step, and let it run again; return the step's name.

    Without order, another poller runs in between: it publishes no rows of the lost batch.
    """
    shop(DEFINITION.replace("CREATE TABLE", "DROP TABLE IF EXISTS outbox; CREATE TABLE"))
    shop("DROP TABLE IF EXISTS penstock_outbox")
    for number in range(20):
        payload = json.dumps({"n": number // 4})
        shop(f"{INSERT} ('order', %s, 'made', %s)", str(number % 4), payload)
    more = f"order = {order}\n"
    file = outbox_file(folder, shop.url, folder.name, more)
    name = killed(file, log.bootstrap, step, *STEPS)
    if order == "false":
        run_once(outbox_file(folder, shop.url, f"{folder.name}-other", more), log.bootstrap)
    run_once(file, log.bootstrap)
    assert shop("SELECT count(*) FROM outbox") == [(0,)]
    found = versions(log.bootstrap, f"{folder.name}.order")
    if order == "false":
        found = {key: sorted(numbers) for key, numbers in found.items()}
    assert found == {number: list(range(5)) for number in range(4)}, name
    return name


@pytest.mark.parametrize(("step", "order"), [(5, "true"), (12, "true"), (13, "false")])
def test_a_killed_poller_publishes_each_event_once(
    shop: Database, log: Broker, tmp_path: Path, step: int, order: str
) -> None:
    assert kill_at(shop, log, tmp_path, step, order)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("order", ["true", "false"])
def test_a_poller_killed_at_any_step_publishes_each_event_once(
    shop: Database, log: Broker, tmp_path: Path, order: str
) -> None:
    names: list[str] = []
    for step in range(1, 500):
        folder = tmp_path / f"kill-{order}-{step}"
        folder.mkdir()
        name = kill_at(shop, log, folder, step, order)
        if not name:
            break
        names.append(name)
    assert {"before commit", "after commit", "before _finish", "after _claim"} <= set(names)
