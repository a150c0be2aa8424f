"""SQL connectors between PostgreSQL and a topic: rows per CPU second of the connector.

A table of eight common columns is read into a topic of JSON, and the topic is written to another
table: by `COPY`, and by upserts of new keys. The broker and PostgreSQL have processes of their own.
The processor time is that of the connector's process.

Predicted, before the first run. A row of 120 bytes costs the source 0.5 µs to receive and parse as
CSV, 1.5 µs to write as JSON and 0.5 µs to encode as a record: 400,000 rows per CPU second. The sink
parses JSON at 1.5 µs, writes CSV at 1 µs and copies 0.5 µs: 330,000 rows; an upsert costs it the
same, as the merge is PostgreSQL's work: 300,000.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from tests.postgres import postgres_server

from benchmarks.connectors import cpu_seconds
from benchmarks.harness import Row
from penstock.testing import Broker

PREDICTED = {"source": 400_000.0, "sink": 330_000.0, "sink of upserts": 300_000.0}
COLUMNS = (
    "id bigint PRIMARY KEY, customer integer, name text, price numeric(12, 2), ratio float8,"
    " paid boolean, day date, at timestamptz"
)
FILL = """
    INSERT INTO goods SELECT i, i % 1000, 'customer number ' || i, i * 0.25, i / 7.0, i % 2 = 0,
        date '2026-01-01' + i % 365, timestamptz '2026-01-01' + i * interval '1 second'
    FROM generate_series(1, {count}) i
"""


def measure(*, quick: bool) -> list[Row]:
    """Rows per CPU second of the source and of the sinks, medians of three runs."""
    runs, count = (1, 100_000) if quick else (3, 300_000)
    found: dict[str, list[float]] = defaultdict(list)
    with bed(count) as (url, broker, folder):
        for run in range(runs):
            for role, text in files(url, run).items():
                place = folder / f"{run}-{role.replace(' ', '-')}"
                found[role].append(count / cpu_seconds(place, text, broker.bootstrap))
            check(url, count, run)
    return [
        Row(
            name=f"SQL {role}", value=statistics.median(found[role]), unit="rows per CPU second",
            prediction=PREDICTED[role],
        )
        for role in PREDICTED
    ]  # fmt: skip


@contextmanager
def bed(count: int) -> Iterator[tuple[str, Broker, Path]]:
    """Start PostgreSQL with a table of `count` rows, and a broker."""
    with (
        postgres_server() as server,
        server.database() as name,
        Broker(process=True) as broker,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
    ):
        url = server.url(name)
        execute(url, f"CREATE TABLE goods ({COLUMNS})", FILL.format(count=count))
        yield url, broker, Path(folder)


def files(url: str, run: int) -> dict[str, str]:
    """Create the tables of a run; return the files of its connectors by their roles."""
    for kind in ("inserted", "upserted"):
        execute(url, f"CREATE TABLE {kind}_{run} ({COLUMNS})")
    sink = f'[sink]\nconnector = "sql"\nurl = "{url}"\ntopics = ["goods-{run}"]\n'
    return {
        "source": f'name = "source-{run}"\n[source]\nconnector = "sql"\nurl = "{url}"\n'
        f'tables = ["goods"]\ntopic = "goods-{run}"\nmode = "incrementing"\n'
        'incrementing_column = "id"\n',
        "sink": f'name = "sink-{run}"\n{sink}table = "inserted_{run}"\n',
        "sink of upserts": f'name = "upserts-{run}"\n{sink}table = "upserted_{run}"\n'
        'mode = "upsert"\n',
    }


def check(url: str, count: int, run: int) -> None:
    """Check that both tables of a run equal the source's."""
    for kind in ("inserted", "upserted"):
        different = f"SELECT 1 FROM (TABLE goods EXCEPT TABLE {kind}_{run}) AS missing LIMIT 1"
        if execute(url, different) or execute(url, f"SELECT count(*) FROM {kind}_{run}") != [
            (count,)
        ]:
            raise RuntimeError(f"table {kind}_{run} differs from the source")


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        found = list(cursor.fetchall()) if cursor.description else []
    connection.close()
    return found
