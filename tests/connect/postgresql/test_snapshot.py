"""Snapshots that are killed: the rows in the log equal the table, whatever changes meanwhile."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.client import Client
from penstock.connect.postgresql.pgoutput import Column, Relation, lsn_number
from penstock.connect.postgresql.snapshot import Visible, read_texts
from penstock.testing import Broker
from tests.connect.postgresql.bed import Child, Database, connector_file, database, run_once
from tests.postgres import PostgresServer

MEMORY_BYTES_MAX = 700 << 20
SEED = 20_261_130


@pytest.mark.parametrize(
    ("rows", "kills"),
    [
        (20_000, 2),
        pytest.param(10_000_000, 20, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_a_killed_snapshot_equals_the_table(
    shop: Database, logical: PostgresServer, log: Broker, folder: Path, rows: int, kills: int
) -> None:
    name = f"rows-{rows}"
    shop("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount int NOT NULL)")
    shop("INSERT INTO orders SELECT i, 'c' || i, 0 FROM generate_series(1, %s) AS i", rows)
    file = connector_file(
        folder, shop.url, name=name, more='tombstones = false\ncompression = "zstd"\n'
    )
    chance = random.Random(SEED)
    done = threading.Event()

    def change() -> None:
        """Update, delete and insert rows everywhere until the snapshots have ended."""
        with database(shop.url) as session:
            number = rows
            while not done.is_set():
                number += 1
                at = chance.randrange(1, rows)
                session(
                    "UPDATE orders SET amount = amount + 1 WHERE id BETWEEN %s AND %s", at, at + 9
                )
                session("DELETE FROM orders WHERE id = %s", chance.randrange(1, rows))
                session("INSERT INTO orders VALUES (%s, 'new', 1)", number)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        # Each batch of a snapshot has about six steps; kills are spread over the table.
        batches = rows // 40_000 + 6
        killed = 0
        for _ in range(kills):
            child = Child(file, log.bootstrap, 30 + chance.randrange(1 + 6 * batches // kills))
            kind, text = child.wait()
            assert kind != "failed", text
            peak = child.peak_bytes()
            assert peak < MEMORY_BYTES_MAX
            child.kill() if kind == "step" else child.join()
            killed += kind == "step"
    finally:
        done.set()
        writer.join()
    print(f"{killed} kills of the snapshot of {rows:,} rows")
    assert killed > kills // 2
    run_once(file, log.bootstrap)
    check(shop, log, f"{name}.public.orders")


def check(shop: Database, log: Broker, topic: str) -> None:
    """Compare the last event of each key with the table, and count the rows of the snapshot."""
    keys, ops, amounts = [], [], []
    with Client(log.bootstrap) as client:
        for batch in client.iter_arrow(topic, columns=("key", "value"), isolation="read_committed"):
            texts = batch["value"].cast(pa.string())
            keys.append(part(batch["key"].cast(pa.string()), r'"id":(?P<x>-?\d+)').cast(pa.int64()))
            ops.append(part(texts, r'"op":"(?P<x>.)"'))
            amounts.append(part(texts, r'"after":\{[^}]*"amount":(?P<x>-?\d+)').cast(pa.int64()))
    table = pa.table({
        "key": pa.concat_arrays(keys), "op": pa.concat_arrays(ops),
        "amount": pa.concat_arrays(amounts),
    })  # fmt: skip
    table = table.append_column("number", pa.array(np.arange(len(table))))
    read = table.filter(pc.equal(table["op"], "r"))
    assert len(pc.unique(read["key"])) == len(read), "rows were read twice"
    last = table.group_by("key").aggregate([("number", "max")])["number_max"]
    state = table.take(last)
    state = state.filter(pc.not_equal(state["op"], "d")).sort_by("key")
    ((count, total, weighted),) = shop(
        "SELECT count(*), sum(amount), sum(amount::numeric * id) FROM orders"
    )
    found = state["amount"].to_numpy().astype(object)
    assert (len(state), int(found.sum())) == (count, total)
    assert int((found * state["key"].to_numpy().astype(object)).sum()) == weighted


def part(texts: pa.Array, pattern: str) -> pa.Array:
    """Return the group `x` of a pattern; null where the text has no match."""
    found = pc.extract_regex(texts, pattern)
    return pc.if_else(found.is_valid(), found.field("x"), None)


def test_transactions_of_a_snapshot_are_recognised(shop: Database) -> None:
    visible = Visible.parse("100:110:103,107")
    xids = np.array([99, 100, 103, 107, 109, 110, 111])
    assert visible.shows(xids).tolist() == [True, True, False, False, True, False, False]
    wrapped = Visible.parse(f"{(1 << 32) - 2}:{(1 << 32) + 3}:{1 << 32}")
    low = np.array([0xFFFF_FFFD, 0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1, 2, 3])
    assert wrapped.shows(low).tolist() == [True, True, True, False, True, True, False]
    [(text, xid)] = shop(
        "SELECT pg_current_snapshot()::text, pg_current_xact_id()::text::bigint & 4294967295"
    )
    assert not Visible.parse(text).shows(np.array([xid]))[0]


def test_positions_are_read_as_postgresql_writes_them(shop: Database) -> None:
    [(text, size)] = shop("SELECT pg_current_wal_lsn()::text, pg_current_wal_lsn() - '0/0'::pg_lsn")
    assert lsn_number(text) == size


def test_texts_of_a_copy_keep_nulls_empty_texts_and_line_ends() -> None:
    columns = tuple(Column(name=n, type_id=25, modifier=-1, identity=False) for n in "ab")
    relation = Relation(id=1, schema="s", name="t", identity="d", columns=columns)
    data = b'"x",\n,""\n"a\nb","""q"",\xc3\xbc"\n'
    assert [column.to_pylist() for column in read_texts(data, relation)] == [
        ["x", None, "a\nb"],
        [None, "", '"q",ü'],
    ]
