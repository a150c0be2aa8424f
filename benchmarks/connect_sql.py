"""SQL connectors between PostgreSQL and a topic: rows per CPU second of the connector.

A table of eight common columns is read into a topic of JSON, and the topic is written to another
table: by `COPY`, and by upserts of new keys. The broker and PostgreSQL have processes of their own.
The processor time is that of the connector's process.

Predicted, before the first run. A row of 120 bytes costs the source 0.5 µs to receive and parse as
CSV, 1.5 µs to write as JSON and 0.5 µs to encode as a record: 400,000 rows per CPU second. The sink
parses JSON at 1.5 µs, writes CSV at 1 µs and copies 0.5 µs: 330,000 rows; an upsert costs it the
same, as the merge is PostgreSQL's work: 300,000.

The peers run in a standalone worker of Kafka Connect, with batches of 5,000 rows; the first quarter
of their rows is not measured. Both are Debezium's: the sink its JDBC sink, which reads the same
topic with the schema in its settings; the source its PostgreSQL connector, which takes a snapshot
of the same table and ends. The registry of Java packages has no JDBC source connector. Their values
take 5 µs a row for JSON and 5 µs for the driver's protocol: 100,000 rows.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg2
from compat.connect.standalone import JSON, STRINGS, Standalone
from compat.parts import debezium, kafka_connect
from tests.connect.postgresql.bed import LOGICAL
from tests.postgres import postgres_server

from benchmarks.connectors import cpu_seconds, peer_rate
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
TABLES: Final = ("inserted", "upserted", "peer_inserted", "peer_upserted")
PEERS: Final = {
    "source": "Debezium's snapshot", "sink": "Debezium's JDBC sink",
    "sink of upserts": "Debezium's JDBC sink",
}  # fmt: skip
TYPES: Final = {
    "id": "int64", "customer": "int32", "name": "string", "price": "double", "ratio": "double",
    "paid": "boolean", "day": "string", "at": "string",
}  # fmt: skip
"""Types of the values of the topic, for the peer."""
WITHOUT_SCHEMA: Final[Mapping[str, str]] = {
    "key.converter": JSON, "key.converter.schemas.enable": "false",
    "value.converter": JSON, "value.converter.schemas.enable": "false",
}  # fmt: skip
WITH_SCHEMA: Final[Mapping[str, str]] = {
    "key.converter": STRINGS, "value.converter": JSON, "value.converter.schemas.enable": "true",
    "value.converter.schema.content": json.dumps({
        "type": "struct",
        "fields": [{"field": name, "type": kind} for name, kind in TYPES.items()],
    }),
}  # fmt: skip
SOURCE: Final[Mapping[str, str]] = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput", "snapshot.mode": "initial_only", "database.password": "none",
    "table.include.list": "public.goods",
}  # fmt: skip
SINK: Final[Mapping[str, str]] = {
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector", "batch.size": "5000",
    "insert.mode": "insert", "primary.key.mode": "none", "schema.evolution": "none",
    "connection.password": "none",
}  # fmt: skip
UPSERTS: Final[Mapping[str, str]] = {
    "insert.mode": "upsert", "primary.key.mode": "record_value", "primary.key.fields": "id",
}  # fmt: skip


def measure(*, quick: bool) -> list[Row]:
    """Rows per CPU second of the source and of the sinks, medians of three runs."""
    runs, count = (1, 100_000) if quick else (3, 300_000)
    found: dict[str, list[float]] = defaultdict(list)
    with bed(count) as (url, broker, folder):
        for run in range(runs):
            for role, text in files(url, run).items():
                place = folder / f"{run}-{role.replace(' ', '-')}"
                found[role].append(count / cpu_seconds(place, text, broker.bootstrap))
            for role in PEERS:
                found[f"peer of {role}"].append(peer(role, url, broker, folder, run, count))
            check(url, count, run)
    return [
        Row(
            name=f"SQL {role}", value=statistics.median(found[role]), unit="rows per CPU second",
            prediction=PREDICTED[role], reference=statistics.median(found[f"peer of {role}"]),
            reference_name=PEERS[role],
        )
        for role in PREDICTED
    ]  # fmt: skip


@contextmanager
def bed(count: int) -> Iterator[tuple[str, Broker, Path]]:
    """Start PostgreSQL with a table of `count` rows, and a broker."""
    with (
        postgres_server(settings=LOGICAL) as server,
        server.database() as name,
        Broker(process=True) as broker,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
    ):
        url = server.url(name)
        execute(url, f"CREATE TABLE goods ({COLUMNS})", FILL.format(count=count))
        yield url, broker, Path(folder)


def files(url: str, run: int) -> dict[str, str]:
    """Create the tables of a run; return the files of its connectors by their roles."""
    for kind in TABLES:
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


def peer(role: str, url: str, broker: Broker, folder: Path, run: int, count: int) -> float:
    """Return the rows per CPU second of a role's peer."""
    place = urlsplit(url)
    if role == "source":
        name = f"peer-{run}"
        connector = {
            **SOURCE, "database.hostname": place.hostname or "", "topic.prefix": name,
            "database.port": str(place.port), "database.user": place.username or "",
            "database.dbname": place.path[1:], "slot.name": f"peer_{run}",
        }  # fmt: skip
        libraries, converter, moved = debezium(), WITHOUT_SCHEMA, _records(broker, name)
    else:
        kind, more = ("inserted", {}) if role == "sink" else ("upserted", UPSERTS)
        name = table = f"peer_{kind}_{run}"
        connector = {
            **SINK, **more, "topics": f"goods-{run}", "collection.name.format": table,
            "connection.url": f"jdbc:postgresql://{place.netloc.partition('@')[2]}{place.path}"
            "?stringtype=unspecified&reWriteBatchedInserts=true",
            "connection.username": place.username or "",
        }  # fmt: skip
        libraries, converter, moved = kafka_connect("jdbc"), WITH_SCHEMA, _rows(url, table)
    connector["name"] = name
    with Standalone(broker.bootstrap, folder, libraries, connector, converter) as worker:
        return peer_rate(worker, count, moved)


def _records(broker: Broker, name: str) -> Callable[[], int]:
    """Return a function that counts the records of the topic of Debezium's snapshot."""
    topic = f"{name}.public.goods"

    def moved() -> int:
        with broker.client() as client:
            known = topic in {found.name for found in client.list_topics()}
            return sum(client.list_offsets(topic, "latest").values()) if known else 0

    return moved


def _rows(url: str, table: str) -> Callable[[], int]:
    """Return a function that counts the rows of a table."""

    def moved() -> int:
        [(rows,)] = execute(url, f"SELECT count(*) FROM {table}")
        return int(str(rows))

    return moved


def check(url: str, count: int, run: int) -> None:
    """Check that all tables of a run equal the source's."""
    for kind in TABLES:
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
