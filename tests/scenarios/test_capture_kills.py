"""Kills of worker, broker, database and Spark driver: Delta and Iceberg tables equal the source.

The connector and the pipeline are those that a user would run. The driver dies once before and
after each of its steps, and then at random moments. After each death the source changes while the
connector, the broker or the database is killed.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.lake.commits import LakeTable
from penstock.testing import Broker
from tests.connect.postgresql.bed import Child, Database, connector_file, database, run_once
from tests.connect.postgresql.test_kills import kill, servers
from tests.lake.oracle import assert_files_once, assert_same, stored, target
from tests.lake.readers import by_duckdb, by_spark
from tests.spark.driver_deaths import MORTAL

SEED: Final = 20_261_201
STARTS_MAX: Final = 60
ANYWHERE: Final = "anywhere"
STEPS: Final = tuple(
    f"{moment}-{name}"
    for name in (
        "Journal.begin", "DeltaChanges._remember", "DeltaUpsert.commit", "IcebergChanges._remember",
        "FileWriter.write", "LakeTable._attempt", "Journal.finish",
    )
    for moment in ("before", "after")
)  # fmt: skip
PROGRAM: Final = (
    MORTAL
    + """
import random, threading, time
from penstock.apps.cli import main
from penstock.lake.commits import LakeTable
from penstock.lake.files import FileWriter
from penstock.spark.pipeline.journal import Journal
from penstock.spark.tables.changes import DeltaChanges
from penstock.spark.tables.iceberg import IcebergChanges
from penstock.spark.tables.upsert import DeltaUpsert

def between(owner, name):
    plain, step = getattr(owner, name), f"{owner.__name__}.{name}"

    def wrapped(*given, **more):
        die(f"before-{step}")
        if step == "Journal.begin":
            threading.Thread(target=later, daemon=True).start()
        result = plain(*given, **more)
        die(f"after-{step}")
        return result

    setattr(owner, name, wrapped)

def later():
    left = [step for step in steps if not os.path.exists(os.path.join(folder, "died-" + step))]
    if left and left[0].startswith("anywhere"):
        time.sleep(random.uniform(0, 6))
        die(left[0])

for owner, name in (
    (Journal, "begin"), (Journal, "finish"), (DeltaChanges, "_remember"), (DeltaUpsert, "commit"),
    (IcebergChanges, "_remember"), (FileWriter, "write"), (LakeTable, "_attempt"),
):
    between(owner, name)
main(["pipeline", "run", os.path.join(folder, "pipeline.toml"), "--once", "--bootstrap", bootstrap,
      "--admin", admin, "--set", "spark.ui.enabled=false", "--set", "spark.driver.memory=600m",
      "--set", "spark.sql.shuffle.partitions=2", "--set",
      "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"])
"""
)
SCHEMA: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12, 2), at timestamptz,
                     body text);
ALTER TABLE orders ALTER body SET STORAGE EXTERNAL;
INSERT INTO orders SELECT i, 'c' || i, i / 100.0, now(), repeat(md5(i::text), 100)
    FROM generate_series(1, 200) AS i;
"""
PIPELINE: Final = """
name = "shop"
[source.orders]
topic = "shop.public.orders"
format = "debezium"
schema = "id bigint, customer string, amount decimal(12, 2), at timestamp, body string"
decimal_handling = "string"
[sink.delta]
from = "orders"
table = "delta"
mode = "cdc"
keys = "id"
[sink.iceberg]
from = "orders"
iceberg = "db.orders"
mode = "cdc"
keys = "id"
partition_by = ["bucket(3, id)"]
catalog = {{type = "sql", uri = "sqlite:///{folder}/catalog.db", warehouse = "{folder}/lake"}}
[errors]
on_invalid = "fail"
"""


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_tables_equal_the_source_through_kills(tmp_path: Path) -> None:
    chance, numbers = random.Random(SEED), itertools.count()
    steps = [*STEPS, *(f"{ANYWHERE}-{number}" for number in range(4))]
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(folder=tmp_path))
    victims, deaths = itertools.cycle(("worker", "broker", "server")), list[str]()
    with servers(tmp_path) as (server, broker), server.database() as name:
        url = server.url(name)
        file = connector_file(tmp_path, url, tables="public.orders", more='decimals = "string"\n')
        with database(url) as shop:
            shop(SCHEMA)
        run_once(file, broker.bootstrap)
        assert drive(tmp_path, broker, [])
        with database(url) as shop:
            change(shop, chance, numbers)
        run_once(file, broker.bootstrap)
        for _ in range(STARTS_MAX):
            drive(tmp_path, broker, steps)
            died = {path.name.removeprefix("died-") for path in tmp_path.glob("died-*")}
            if died == set(steps):
                break
            victim = next(victims)
            with database(url) as shop:
                change(shop, chance, numbers)
            child = Child(file, broker.bootstrap, chance.randrange(1, 12))
            reached, text = child.wait()
            with database(url) as shop:
                change(shop, chance, numbers)
            if reached == "step":
                deaths.append(victim)
                if (follow := kill(victim, child, server, broker)) is not None:
                    assert child.wait() == ("ended", "")
                    follow()
            else:
                assert reached == "ended", text
                child.join()
            run_once(file, broker.bootstrap)
        assert died == set(steps)
        assert set(deaths) == {"worker", "broker", "server"}
        assert drive(tmp_path, broker, steps)
        with database(url) as shop:
            expected = source(shop)
    print(f"{len(died)} kills of the driver, {len(deaths)} of {sorted(set(deaths))}")
    assert expected.num_rows > 50
    assert_same(expected, DeltaTable(str(tmp_path / "delta")).to_pyarrow_table())
    lake = LakeTable(target(tmp_path), application="tests")
    assert_same(expected, stored(lake).scan().to_arrow())
    assert_files_once(lake)
    for reader in (by_duckdb, by_spark):
        assert_same(expected, reader(stored(lake), expected.column_names))


def drive(folder: Path, broker: Broker, steps: list[str]) -> bool:
    """Run the pipeline; return whether it ended by itself."""
    command = [sys.executable, "-c", PROGRAM, str(folder), broker.bootstrap, broker.admin_url, "-"]
    log = folder / "driver.log"
    with log.open("wb") as printed:
        ended = subprocess.run(
            [*command, *steps], start_new_session=True, stdout=printed, stderr=printed, check=False
        )
    assert ended.returncode in (0, -signal.SIGKILL), log.read_text()[-3_000:]
    return ended.returncode == 0


def change(shop: Database, chance: random.Random, numbers: itertools.count[int]) -> None:
    """Make some transactions: inserts, updates that keep large values or not, moves, deletes."""
    for _ in range(4):
        number = next(numbers)
        low, gone = chance.randrange(250), chance.randrange(1000 + number)
        shop(
            f"INSERT INTO orders VALUES ({1000 + number}, 'n', {number}.5, now(),"
            f" repeat(md5('{number}'), 100));"
            f"UPDATE orders SET amount = amount + 1.25 WHERE id BETWEEN {low} AND {low + 20};"
            f"UPDATE orders SET body = repeat(md5(customer), 90) WHERE id = {low + 30};"
            f"UPDATE orders SET id = id + 100000 WHERE id = {low + 40};"
            f"DELETE FROM orders WHERE id = {gone} OR id = {low + 50}"
        )
    if number % 40 == 39:
        shop("TRUNCATE orders")
        shop(SCHEMA.partition("EXTERNAL;")[2])


def source(shop: Database) -> pa.Table:
    """Return the rows of the table in the source."""
    names = ("id", "customer", "amount", "at", "body")
    kinds = (pa.int64(), pa.string(), pa.decimal128(12, 2), pa.timestamp("us", "UTC"), pa.string())
    columns: list[tuple[Any, ...]] = list(zip(*shop("SELECT * FROM orders"), strict=True))
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=list(names))
