"""Run of the same pipeline file on this machine and on the cluster: the same table and topics."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.cluster import jobs
from tests.spark.cluster.conftest import Driver
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.cluster.topics import Records

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(700)]

RUN_SECONDS = 300
ORDERS = 600
FILE = """
name = "{name}"

[source.orders]
topic = "{topic}"
format = "json"
schema = "id bigint, customer string, amount decimal(12,2)"

[source.orders.expect]
"amount is positive" = "amount > 0"

[step.doubled]
python = "{module}.py:doubled"
inputs = ["orders"]

[step.masked]
sql = "select id, sha2(customer, 256) as customer, amount from doubled"

[sink.lake]
from = "masked"
table = "lake"

[sink.copies]
from = "masked"
topic = "{out}"
key = "customer"

[errors]
dead_letters = "{dead}"
"""
STEP = """
import pyarrow.compute as pc


def doubled(orders):
    def twice(batches):
        for batch in batches:
            yield batch.set_column(0, "id", pc.multiply(batch["id"], 2))

    columns = "id bigint, customer string, amount decimal(12,2)"
    return orders.drop("_record").mapInArrow(twice, columns)
"""


def test_the_cluster_makes_what_this_machine_makes(
    driver: Driver, cluster: StandaloneCluster, records: Records, tmp_path: Path
) -> None:
    values = [
        f'{{"id": {row}, "customer": "c{row % 7}", "amount": {row % 10}.50}}'
        for row in range(ORDERS)
    ]
    values += ["not json", '{"id": 1, "customer": "c1", "amount": -1}']
    records.client.write_arrow(records.name, pa.table({"value": values}))
    here = run("here", records, tmp_path, driver, master="local[1]")
    driver.call(jobs.close_session)  # its executors make room for the command's
    try:
        there = run("there", records, tmp_path, driver, master=cluster.url)
    finally:
        driver.call(jobs.open_session, cluster.url)
    made = {where: contents(tmp_path / where, records, driver, where) for where in (here, there)}
    assert made[here] == made[there]
    table, copies, dead = made[there]
    assert sorted(row[0] for row in table) == [2 * row for row in range(ORDERS)]
    assert sum(copies.values()) == ORDERS
    assert sum(dead.values()) == 2


def run(where: str, records: Records, folder: Path, driver: Driver, *, master: str) -> str:
    """Run the file to the end of the log; its names apart, it is the same everywhere."""
    home = folder / where
    home.mkdir()
    (home / "cluster_steps.py").write_text(STEP)
    out, dead = f"{records.out}-{where}", f"{records.name}-dead-{where}"
    for name in (out, dead):
        records.client.create_topic(name, partitions=2)
    names = {"name": f"orders-{where}", "topic": records.name, "out": out, "dead": dead}
    file = home / "pipeline.toml"
    file.write_text(FILE.format(**names, module="cluster_steps"))
    settings = [f"--set={name}={value}" for name, value in jobs.SETTINGS.items()]
    command = [
        *(sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--once"),
        *("--bootstrap", records.broker.bootstrap, "--admin", str(records.broker.admin_url)),
        *("--master", master, *settings),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        command, env=kept, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    return where


def contents(home: Path, records: Records, driver: Driver, where: str) -> tuple[Any, Any, Any]:
    """Rows of the table, values of the topic, and how often each dead record was written."""
    table = DeltaTable(str(home / "lake")).to_pyarrow_table()
    rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
    copies = driver.call(jobs.batch, records.options(topic=f"{records.out}-{where}"))
    dead = driver.call(jobs.batch, records.options(topic=f"{records.name}-dead-{where}"))
    return rows, Counter(copies), Counter(dead)
