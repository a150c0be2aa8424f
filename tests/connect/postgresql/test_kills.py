"""Kills of the connector, the broker and the database at each step: each change is in the log once.

A run reports each step: a call that changes the log, the slot or the database. The victim of the
test is killed there. Every second kill is that of a new connector's first run, whose steps create
the slot and read the table; the others are those of runs that continue. Between two kills the table
changes. An audit table, filled by a trigger in the same transactions, has each change in the order
of the commits, as one session makes them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import (
    LOGICAL,
    STEPS,
    Child,
    Database,
    connector_file,
    database,
    events,
    replayed,
    run_once,
)
from tests.postgres import PostgresServer, postgres_server

SCHEMA = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount int);
CREATE TABLE audit (number bigserial PRIMARY KEY, op text, id bigint, after jsonb);
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audit (op, id, after) VALUES (
        CASE tg_op WHEN 'INSERT' THEN 'c' WHEN 'UPDATE' THEN 'u' ELSE 'd' END,
        coalesce(new.id, old.id), to_jsonb(new));
    RETURN NULL; END $$;
INSERT INTO orders SELECT i, 'c' || i, i FROM generate_series(1, 400) AS i;
CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON orders
    FOR EACH ROW EXECUTE FUNCTION audited();
"""
SEED = 20_261_130


@contextmanager
def servers(folder: Path, *, version_17: bool = False) -> Iterator[tuple[PostgresServer, Broker]]:
    """A server and a broker that the test may kill."""
    (folder / "log").mkdir()
    with (
        postgres_server(settings=LOGICAL, version_17=version_17) as server,
        Broker(directory=folder / "log", process=True) as broker,
    ):
        yield server, broker


def change(shop: Database, chance: random.Random, numbers: Iterator[int]) -> None:
    """Make some transactions: inserts, updates, deletes."""
    for _ in range(4):
        number = next(numbers)
        low = chance.randrange(450)
        shop(
            f"INSERT INTO orders VALUES ({1000 + number}, 'n', {number});"
            f"UPDATE orders SET amount = amount + 1 WHERE id BETWEEN {low} AND {low + 5};"
            f"DELETE FROM orders WHERE id = {chance.randrange(1000 + number)}"
        )


def check(shop: Database, bootstrap: str, topic: str) -> None:
    """Compare the log with the audit table and with the table.

    The row of the snapshot must be what the first changes of its key have left. All later changes
    must be in the log, with their values, in the order of the commits.
    """
    found = [event for event in events(bootstrap, topic) if event.value is not None]
    columns = ("id", "customer", "amount")
    rows = shop("SELECT id, customer, amount FROM orders")
    assert replayed(found) == {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    read: dict[int, Any] = {}
    streamed: list[tuple[str, int, Any]] = []
    for event in found:
        key, op, after = event.key["id"], event.value["op"], event.value["after"]
        if op != "r":
            streamed.append((op, key, after))
            continue
        assert key not in read, f"row {key} was read twice"
        read[key] = after
    made = shop("SELECT op, id, after FROM audit ORDER BY number")
    hidden = Counter(key for _, key, _ in made)
    hidden.subtract(key for _, key, _ in streamed)
    state = {i: dict(zip(columns, (i, f"c{i}", i), strict=True)) for i in range(1, 401)}
    expected = []
    for op, key, after in made:
        if hidden[key] > 0:  # the snapshot shows the change
            hidden[key] -= 1
            state[key] = after
        else:
            expected.append((op, key, after))
    assert streamed == expected, "changes in the order of commits"
    assert read == {key: row for key, row in state.items() if row}, "rows of the snapshot"


def kill(
    victim: str, child: Child, server: PostgresServer, broker: Broker
) -> Callable[[], None] | None:
    """Kill the victim and bring it back; return what ends the child, or None."""
    if victim == "worker":
        child.kill()
        return None
    if victim == "broker":
        broker.kill()
        broker.start()
    else:
        server.stop(crash=True)
        server.start()
    child.go_on()
    return child.join


@pytest.mark.parametrize("victim", ["worker", "broker", "server"])
@pytest.mark.parametrize(
    ("kills", "stride", "version_17"),
    [
        (2, 5, False),
        pytest.param(80, 1, False, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
        pytest.param(80, 1, True, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_each_change_is_in_the_log_once(
    tmp_path: Path, victim: str, kills: int, stride: int, version_17: bool
) -> None:
    chance = random.Random(SEED)
    numbers, connectors = count(), count()
    with servers(tmp_path, version_17=version_17) as (server, broker), server.database() as name:
        url = server.url(name)
        with database(url) as shop:
            shop(SCHEMA)
        steps: list[str] = []
        at = {"first": stride, "later": stride}
        # A first run has more steps when the table has grown to more chunks.
        while len(steps) < kills or (stride == 1 and set(steps) < set(STEPS)):
            assert len(steps) < 2 * kills, f"never at {set(STEPS) - set(steps)}"
            kind = ("first", "later")[len(steps) % 2]
            connector = f"shop{next(connectors)}" if kind == "first" else "shop"
            file = connector_file(tmp_path, url, name=connector, tables="public.orders")
            with database(url) as shop:
                change(shop, chance, numbers)
            child = Child(file, broker.bootstrap, at[kind])
            event, text = child.wait()
            if event != "step":  # the run has fewer steps: begin with the first ones again
                assert event == "ended", text
                assert at[kind] > stride, "a run has no steps"
                child.join()
                at[kind] = stride
                continue
            at[kind] += stride
            steps.append(text)
            with database(url) as shop:
                change(shop, chance, numbers)
            follow = kill(victim, child, server, broker)
            if follow is not None:
                assert child.wait() == ("ended", "")
                follow()
            if kind == "first":
                finish(file, url, broker, connector)
                with database(url) as shop:
                    shop(f"SELECT pg_drop_replication_slot('penstock_{connector}')")
        finish(connector_file(tmp_path, url, tables="public.orders"), url, broker, "shop")
    print(f"{len(steps)} kills of the {victim}: {sorted(set(steps))}")


def finish(file: Path, url: str, broker: Broker, connector: str) -> None:
    """Run a connector to the end of the changes, and compare log and table."""
    run_once(file, broker.bootstrap)
    with database(url) as shop:
        check(shop, broker.bootstrap, f"{connector}.public.orders")
