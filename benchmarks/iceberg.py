"""Iceberg tables: commits of 1,000 rows as their number grows, and a topic copied by the connector.

The reference of the commits is pyiceberg's own `append` on a table of the same catalogue, without
upkeep. Each of its commits copies all snapshots 16 times and lists all manifests, so it grows by
0.5 ms with each commit. Ours copies them twice, keeps 100 to 120 snapshots and merges manifests:
a commit should be flat from the 120th on, at about twice the time of the first.

The connector reads JSON values from a broker on this machine and commits every five seconds.
Prediction, of a million rows of four fields: 0.5 µs a row for fetching and decoding the batches,
0.7 µs for parsing JSON by Arrow, 0.7 µs for Parquet with zstd: about 500,000 rows a CPU second.
The CPU time is that of the process of `penstock connect run`, with its start.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from benchmarks.columnar_client import scratch
from benchmarks.harness import Chart, Report, Row
from penstock.lake.commits import LakeTable, Mark, appended, catalog_of
from penstock.lake.target import Target
from penstock.testing import Broker

COMMITS, QUICK_COMMITS = 400, 60
ROWS, QUICK_ROWS = 2_000_000, 200_000
COMMIT_ROWS = 1_000
WINDOW = 20
FILE = """
name = "bench"

[sink]
connector = "iceberg"
topics = ["orders"]
table = "db.orders"
batch_rows = 100_000
flush_interval_seconds = 5
catalog = {{type = "sql", uri = "sqlite:///{folder}/catalog.db", warehouse = "{folder}/lake"}}
"""


def measure(*, quick: bool = False) -> Report:
    with scratch() as folder:
        lines = _curves(Path(folder), QUICK_COMMITS if quick else COMMITS)
    rows = []
    for name, number in (("first", slice(1, WINDOW)), ("last", slice(-WINDOW, None))):
        ours, plain = (_median(lines[line][number]) for line in ("Penstock", "pyiceberg"))
        rows.append(
            Row(
                name=f"commit of 1,000 rows, the {name} {WINDOW}",
                value=ours,
                unit="ms",
                reference=plain,
                reference_name="pyiceberg's append",
                lower_is_better=True,
            )
        )
    count = QUICK_ROWS if quick else ROWS
    with scratch() as folder:
        cpu_seconds = _connector(Path(folder), count)
    rows.append(
        Row(
            name="rows from a topic into a table",
            value=count / cpu_seconds,
            unit="rows/CPU s",
            prediction=500_000,
            note=f"{count:,} rows of JSON, with the start of the process",
        )
    )
    chart = Chart(title="Time of a commit, by the number of commits", unit="ms", lines=lines)
    return Report(rows=rows, charts=[chart])


def _median(points: list[tuple[float, float]]) -> float:
    return statistics.median(value for _, value in points)


def _curves(folder: Path, commits: int) -> dict[str, list[tuple[float, float]]]:
    """Return the time of each commit in ms, of both writers in turn."""
    catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder}/lake"}
    lake = LakeTable(Target.of("db.ours", catalog, Path), application="bench")
    catalog_of(lake.target).create_namespace("db")
    plain = load_catalog("default", **catalog).create_table("db.plain", schema=_rows(0).schema)

    def ours(rows: pa.Table, number: int) -> None:
        lake.prepare(rows.schema)
        files = lake.writer().write(rows)
        lake.commit(Mark(batch=number), lambda mark: True, appended(files))

    writers: dict[str, Callable[[pa.Table, int], None]] = {
        "Penstock": ours,
        "pyiceberg": lambda rows, number: plain.append(rows),
    }
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in writers}
    for number in range(commits):
        rows = _rows(number)
        for name, write in writers.items():
            began = time.perf_counter()
            write(rows, number)
            lines[name].append((number, (time.perf_counter() - began) * 1000))
    return lines


def _rows(number: int) -> pa.Table:
    ids = range(number * COMMIT_ROWS, (number + 1) * COMMIT_ROWS)
    return pa.table({
        "id": ids, "customer": [f"customer-{number % 977}" for number in ids],
        "amount": [number * 0.25 for number in ids], "paid": [number % 3 == 0 for number in ids],
    })  # fmt: skip


def _values(count: int) -> Iterator[pa.Table]:
    for first in range(0, count, 100_000):
        texts = [
            b'{"id":%d,"customer":"customer-%d","amount":%d.25,"paid":%s}'
            % (number, number % 977, number % 1_000, b"true" if number % 3 else b"false")
            for number in range(first, min(first + 100_000, count))
        ]
        yield pa.table({"value": pa.array(texts, pa.binary())})


def _connector(folder: Path, count: int) -> float:
    """Return the CPU seconds of a connector that copies a topic into a table."""
    file = folder / "bench.toml"
    file.write_text(FILE.format(folder=folder))
    with Broker() as broker, broker.client() as client:
        client.create_topic("orders")
        for rows in _values(count):
            client.write_arrow("orders", rows)
        command = [sys.executable, "-m", "penstock", "connect", "run", str(file), "--once",
                   "-b", broker.bootstrap]  # fmt: skip
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"the connector ended with status {child.returncode}")
    table = LakeTable(Target.of("db.orders", {"uri": f"sqlite:///{folder}/catalog.db"}, Path),
                      application="bench").open()  # fmt: skip
    if table is None or table.scan().count() != count:
        raise RuntimeError("the table has not all rows of the topic")
    return usage.ru_utime + usage.ru_stime
