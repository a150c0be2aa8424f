"""Changes of PostgreSQL into a topic, beside Debezium: same database, same broker, same run.

A table of ten columns is loaded with inserts and updates in transactions of ten changes. Two slots
wait behind the load. The connectors read theirs one after the other, Debezium in a standalone
worker of Kafka Connect with its JSON converter, both with their default settings. What counts is
from the first row in the topic to the last, so that neither pays for its start: CPU time of the
connector's process, and wall time.

Then the connector follows the database at 10,000 rows a second in transactions of 100, and a
consumer of committed records takes the time from the commit in the database to the fetch.

Prediction: psycopg2 and the decoder read 400,000 rows a CPU second, values and JSON of ten columns
in both halves cost 5 µs a row, the transaction 1 µs: 120,000 rows a CPU second, where Debezium made
13,600. A batch is committed in 10 ms, and waits for the one before: p99 30 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compat.debezium.worker import Debezium
from confluent_kafka import Consumer
from tests.connect.postgresql.bed import LOGICAL, Database, database
from tests.postgres import postgres_server

from benchmarks.harness import Row
from benchmarks.peers.load import cpu_seconds
from penstock.apps.loads.figures import percentile
from penstock.client import Client
from penstock.testing import Broker

CHANGES, QUICK_CHANGES = 1_000_000, 100_000
LATENCY_SECONDS, QUICK_LATENCY_SECONDS = 30, 8
RATE, TRANSACTION = 10_000, 100
WAIT_SECONDS: Final = 900.0
_TABLE: Final = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer int, status text, amount numeric(12, 2), placed timestamptz,
    note text, quantity int, weight double precision, region varchar(20), paid boolean
)
"""
_ROW: Final = (
    "{0}, {0} % 1000, 'new', {0} * 0.25, clock_timestamp(), 'note of order ' || {0}, {0} % 7,"
    " {0} / 3.0, 'region ' || {0} % 20, {0} % 2 = 0"
)
_LOAD: Final = f"""
DO $$ BEGIN
    FOR step IN 1..{{count}} / 10 LOOP
        INSERT INTO orders SELECT {_ROW.format("i")}
            FROM generate_series(step * 5, step * 5 + 4) AS i;
        UPDATE orders SET status = 'paid', amount = amount + 1, paid = true
            WHERE id BETWEEN step * 5 AND step * 5 + 4;
        COMMIT;
    END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Rows per second of CPU time and of wall time."""

    cpu: float
    wall: float


def measure(*, quick: bool) -> list[Row]:
    """Return rows per CPU second and per second of both connectors, and the latency."""
    count = QUICK_CHANGES if quick else CHANGES
    with ExitStack() as stack:
        settings = (*LOGICAL, "max_wal_size=8GB", "shared_buffers=256MB")
        server = stack.enter_context(postgres_server(settings=settings))
        broker = stack.enter_context(Broker(process=True))
        sql = stack.enter_context(database(server.url(stack.enter_context(server.database()))))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sql(_TABLE)
        sql("CREATE PUBLICATION changes FOR TABLE orders")
        for slot in ("ours", "theirs"):
            sql(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        sql(_LOAD.format(count=count))
        with _penstock(directory, sql, broker) as process:
            ours = _pace(process.pid, broker.bootstrap, "ours.public.orders", count)
        with Debezium(broker.bootstrap, sql.url, {
            "theirs": {"publication.name": "changes", "snapshot.mode": "no_data"}
        }, directory) as debezium:  # fmt: skip
            theirs = _pace(debezium.pid, broker.bootstrap, "theirs.public.orders", count)
        with _penstock(directory, sql, broker):
            sql("INSERT INTO orders (id) VALUES (-1)")
            _wait_for(sql)
            waits = _latencies(sql, broker, QUICK_LATENCY_SECONDS if quick else LATENCY_SECONDS)
    return [
        _row("rows per CPU second of the connector", ours.cpu, 120_000, theirs.cpu),
        _row("rows per second of a slot", ours.wall, 80_000, theirs.wall),
        Row(
            name=f"p99 from commit to fetch at {RATE:,} rows/s", value=percentile(waits, 0.99),
            unit="ms", prediction=30, lower_is_better=True,
            note=f"median {statistics.median(waits):.1f} ms, most {max(waits):.1f} ms",
        ),
    ]  # fmt: skip


def _row(name: str, value: float, prediction: float, reference: float) -> Row:
    return Row(
        name=name, value=value, unit="rows/s", prediction=prediction, reference=reference,
        reference_name="Debezium 3.6.1",
    )  # fmt: skip


@contextmanager
def _penstock(directory: Path, sql: Database, broker: Broker) -> Iterator[subprocess.Popen[bytes]]:
    """Run the connector in a process until the block ends."""
    file = directory / "ours.toml"
    file.write_text(
        f'name = "ours"\n[source]\nconnector = "postgresql"\nurl = "{sql.url}"\n'
        'tables = ["public.orders"]\nslot = "ours"\npublication = "changes"\nsnapshot = "never"\n'
    )
    command = [sys.executable, "-m", "penstock", "connect", "run", str(file)]
    with (directory / "ours.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "-b", broker.bootstrap], stdout=log, stderr=log, cwd=directory
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _pace(pid: int, bootstrap: str, topic: str, count: int) -> Pace:
    """Return the pace of a process from the first record of a topic to the last."""
    deadline = time.monotonic() + WAIT_SECONDS
    first = began = cpu = 0.0
    with Client(bootstrap) as client:
        while True:
            end = _end(client, topic)
            if end >= count:
                break
            if end and not began:
                first, began, cpu = end, time.perf_counter(), cpu_seconds(pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic} has {end:,} of {count:,} records")
            time.sleep(0.02)
        wall, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    return Pace(cpu=(count - first) / used, wall=(count - first) / wall)


def _end(client: Client, topic: str) -> int:
    if topic not in {found.name for found in client.list_topics()}:
        return 0
    return sum(client.list_offsets(topic, "latest").values())


def _wait_for(sql: Database) -> None:
    """Wait until the slot's position is behind the end of the log."""
    [(end,)] = sql("SELECT pg_current_wal_lsn()")
    deadline = time.monotonic() + WAIT_SECONDS
    query = (
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
        " WHERE slot_name = 'ours'"
    )
    while not sql(query, end)[0][0]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the connector has not read up to {end}")
        time.sleep(0.05)


def _latencies(sql: Database, broker: Broker, seconds: int) -> list[float]:
    """Return the milliseconds from commit to fetch of each row."""
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "latency", "fetch.wait.max.ms": 10,
        "isolation.level": "read_committed", "auto.offset.reset": "latest",
    })  # fmt: skip
    consumer.subscribe(["ours.public.orders"])
    while not consumer.assignment():
        consumer.poll(0.1)
    writer = threading.Thread(target=_write, args=(sql.url, seconds + 4))
    writer.start()
    waits: list[float] = []
    try:
        until = time.monotonic() + seconds + 2
        begin = time.monotonic() + 2
        while time.monotonic() < until:
            found = consumer.consume(10_000, 0.005)
            now = time.time()
            if time.monotonic() > begin:
                waits += [now * 1_000 - _commit_us(message) / 1_000 for message in found]
    finally:
        writer.join()
        consumer.close()
    return waits


def _write(url: str, seconds: int) -> None:
    """Insert rows in transactions at `RATE`."""
    began, sent = time.monotonic(), 0
    with database(url) as sql:
        while (elapsed := time.monotonic() - began) < seconds:
            if sent > elapsed * RATE:
                time.sleep(sent / RATE - elapsed)
            first = 100_000_000 + sent
            rows = f"generate_series({first}, {first + TRANSACTION - 1}) AS i"
            sql(f"INSERT INTO orders SELECT {_ROW.format('i')} FROM {rows}")
            sent += TRANSACTION


def _commit_us(message: Any) -> int:
    """Return the time of the commit, the first `ts_us` of the envelope."""
    value = message.value()
    at = value.index(b'"ts_us":') + len(b'"ts_us":')
    return int(value[at : value.index(b",", at)])
