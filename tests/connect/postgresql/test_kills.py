"""Kills of the connector, the broker and the database at each step: each change is in the log once.

A run reports each step: a call that changes the log, the slot or the database. The victim of the
test is killed there. Between two kills the table changes. An audit table, filled by a trigger in
the same transactions, has each change in the order of the commits, as one session makes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import (
    LOGICAL,
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

    The events of a key must be its last changes. The row of the snapshot must be what the changes
    before them have left.
    """
    found = [event for event in events(bootstrap, topic) if event.value is not None]
    columns = ("id", "customer", "amount")
    rows = shop("SELECT id, customer, amount FROM orders")
    assert replayed(found) == {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    read: dict[int, Any] = {}
    seen: dict[int, list[Any]] = {}
    for event in found:
        key, op, after = event.key["id"], event.value["op"], event.value["after"]
        if op == "r":
            assert key not in read, f"row {key} was read twice"
            read[key] = after
        else:
            seen.setdefault(key, []).append((op, after))
    made: dict[int, list[Any]] = {}
    for op, key, after in shop("SELECT op, id, after FROM audit ORDER BY number"):
        made.setdefault(key, []).append((op, after))
    begun = {i: dict(zip(columns, (i, f"c{i}", i), strict=True)) for i in range(1, 401)}
    for key in {*read, *seen, *made}:
        changes, last = made.get(key, []), seen.get(key, [])
        shown = len(changes) - len(last)
        assert changes[shown:] == last, f"events of row {key}"
        state = begun.get(key) if shown == 0 else changes[shown - 1][1]
        assert read.get(key) == state, f"row {key} of the snapshot"
    order = [(event.value["op"], event.key["id"]) for event in found if event.value["op"] != "r"]
    audited = iter(shop("SELECT op, id FROM audit ORDER BY number"))
    assert all(any(entry == change for entry in audited) for change in order), "order of commits"


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
        (5, 5, False),
        pytest.param(80, 1, False, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
        pytest.param(80, 1, True, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_each_change_is_in_the_log_once(
    tmp_path: Path, victim: str, kills: int, stride: int, version_17: bool
) -> None:
    chance = random.Random(SEED)
    numbers = iter(range(10**9))
    with servers(tmp_path, version_17=version_17) as (server, broker), server.database() as name:
        url = server.url(name)
        with database(url) as shop:
            shop(SCHEMA)
        file = connector_file(tmp_path, url, tables="public.orders")
        steps: list[str] = []
        step = stride
        while len(steps) < kills:
            with database(url) as shop:
                change(shop, chance, numbers)
            child = Child(file, broker.bootstrap, step)
            kind, text = child.wait()
            if kind != "step":  # the run has fewer steps: begin with the first ones again
                assert kind == "ended", text
                child.join()
                step = stride
                continue
            step += stride
            steps.append(text)
            with database(url) as shop:
                change(shop, chance, numbers)
            follow = kill(victim, child, server, broker)
            if follow is not None:
                assert child.wait() == ("ended", "")
                follow()
        run_once(file, broker.bootstrap)
        with database(url) as shop:
            check(shop, broker.bootstrap, "shop.public.orders")
    print(f"{len(steps)} kills of the {victim}: {sorted(set(steps))}")
