"""Iceberg tables: commits of 1,000 rows as their number grows, and a topic copied by the connector.

The reference of the commits is pyiceberg's own `append` on a table of the same catalogue, without
upkeep. Each of its commits copies all snapshots 16 times and lists all manifests, so it grows by
0.5 ms with each commit. Ours copies them twice, keeps 100 to 120 snapshots and merges manifests:
a commit should be flat from the 120th on, at about twice the time of the first.

The connector reads JSON values from a broker in another process and commits every five seconds.
Prediction, of a million rows of four fields: 0.5 µs a row for fetching and decoding the batches,
0.7 µs for parsing JSON by Arrow, 0.7 µs for Parquet with zstd: about 500,000 rows a CPU second.
The CPU time is that of the connector's process; a run over few rows before it loads our modules.

The peer is Apache Iceberg's own sink in a standalone worker of Kafka Connect, at the same topic and
with the same interval of commits. Its first quarter of the rows is not measured, because the JVM
warms up. It makes a map of each value, and from it a record of Iceberg: 5 µs a row, so 200,000 rows
a CPU second. DuckDB reads the files of both tables; they must have equal rows.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from compat.connect.standalone import JSON, STRINGS, Standalone
from compat.parts import kafka_connect
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from benchmarks.columnar_client import scratch
from benchmarks.connectors import cpu_seconds
from benchmarks.harness import Chart, Report, Row
from penstock.client import Client
from penstock.lake.commits import LakeTable, Mark, appended, catalog_of
from penstock.lake.target import Target
from penstock.testing import Broker

COMMITS, QUICK_COMMITS = 400, 60
ROWS, QUICK_ROWS = 2_000_000, 200_000
COMMIT_ROWS = 1_000
WINDOW = 20
FILE = """
name = "{name}"

[sink]
connector = "iceberg"
topics = ["{topic}"]
table = "db.orders"
batch_rows = 100_000
flush_interval_seconds = 5
catalog = {{type = "sql", uri = "sqlite:///{folder}/{name}.db", warehouse = "{folder}/{name}"}}
"""
PEER: Final[Mapping[str, str]] = {
    "name": "iceberg", "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
    "topics": "orders", "iceberg.tables": "db.orders", "iceberg.catalog.type": "jdbc",
    "iceberg.tables.auto-create-enabled": "true", "iceberg.control.commit.interval-ms": "5000",
}  # fmt: skip
PEER_WORKER: Final[Mapping[str, str]] = {
    "key.converter": STRINGS, "value.converter": JSON, "value.converter.schemas.enable": "false",
}  # fmt: skip


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
        ours, peer = _connectors(Path(folder), count)
    rows.append(
        Row(
            name="rows from a topic into a table",
            value=ours,
            unit="rows/CPU s",
            prediction=500_000,
            reference=peer,
            reference_name="Iceberg's connector for Kafka Connect",
            note=f"{count:,} rows of JSON",
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


def _write_values(client: Client, topic: str, first: int, end: int) -> None:
    for begin in range(first, end, 100_000):
        texts = [
            b'{"id":%d,"customer":"customer-%d","amount":%d.25,"paid":%s}'
            % (number, number % 977, number % 1_000, b"true" if number % 3 else b"false")
            for number in range(begin, min(begin + 100_000, end))
        ]
        client.write_arrow(topic, pa.table({"value": pa.array(texts, pa.binary())}))


def _connectors(folder: Path, count: int) -> tuple[float, float]:
    """Copy a topic into a table by both connectors; return their rows per CPU second."""
    with Broker(process=True) as broker, broker.client() as client:
        for topic, rows in (("few", 1_000), ("orders", count // 4)):
            client.create_topic(topic)
            _write_values(client, topic, 0, rows)
        settings = {**PEER, "iceberg.kafka.bootstrap.servers": broker.bootstrap,
                    "iceberg.catalog.uri": f"jdbc:sqlite:{folder}/peer.db",
                    "iceberg.catalog.warehouse": f"{folder}/peer"}  # fmt: skip
        with Standalone(
            broker.bootstrap, folder, kafka_connect("iceberg"), settings, PEER_WORKER
        ) as worker:
            worker.wait_for(count // 4, lambda: _committed(folder))
            began = worker.cpu_seconds()
            _write_values(client, "orders", count // 4, count)
            worker.wait_for(count, lambda: _committed(folder))
            peer = worker.cpu_seconds() - began
        ours = 0.0
        for name, topic in (("few", "few"), ("catalog", "orders")):  # the first loads our modules
            text = FILE.format(folder=folder, name=name, topic=topic)
            ours = cpu_seconds(folder / name, text, broker.bootstrap)
    found = [_contents(_metadata(folder / name)) for name in ("catalog.db", "peer.db")]
    if found[0] != found[1] or found[0][0] != count:
        raise RuntimeError(f"the tables have different rows: {found}")
    return count / ours, (count - count // 4) / peer


def _metadata(catalog: Path) -> str:
    """Return the path of the metadata of a catalogue's only table; empty if there is no table."""
    connection = sqlite3.connect(catalog, timeout=10)
    # The peer creates the catalogue while others look.
    with closing(connection), suppress(sqlite3.OperationalError):
        for (path,) in connection.execute("SELECT metadata_location FROM iceberg_tables"):
            return str(path).removeprefix("file://").removeprefix("file:")
    return ""


def _committed(folder: Path) -> int:
    """Return the number of rows in the peer's table."""
    path = _metadata(folder / "peer.db")
    snapshots = json.loads(Path(path).read_bytes()).get("snapshots", []) if path else []
    return int(snapshots[-1]["summary"]["total-records"]) if snapshots else 0


def _contents(metadata: str) -> tuple[object, ...]:
    """Return the number, sums and hash of the rows in a table's data files, read by DuckDB.

    Args:
        metadata: path of the table's metadata.
    """
    tasks = StaticTable.from_metadata(metadata).scan().plan_files()
    query = (
        "SELECT count(*), sum(id), sum(amount), count(*) FILTER (paid),"
        " bit_xor(hash(id, customer, amount, paid)) FROM read_parquet(?)"
    )
    with duckdb.connect() as connection:
        paths = [task.file.file_path.removeprefix("file://") for task in tasks]
        [found] = connection.execute(query, [paths]).fetchall()
    return found
