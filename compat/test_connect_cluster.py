"""Kafka Connect on Penstock: distributed workers with Debezium's connector, and a standalone one.

Debezium's source writes the changes of a table, and a file sink reads them, while workers and the
broker are killed. `PENSTOCK_CONNECT_MINUTES` is the duration of the kills; its default is 2.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from tests.connect.postgresql.bed import LOGICAL, Database, Event, database, events
from tests.connect.worker_bed import wait_until
from tests.postgres import postgres_server

from compat.conftest import missing
from compat.connect.distributed import TOPICS, Worker
from compat.connect.standalone import STRINGS, Standalone
from compat.debezium.worker import connector_settings
from compat.parts import PartMissing, debezium, kafka_connect
from compat.servers import Killable, killed_in_turn, one_or_three
from penstock.client import Client
from penstock.testing import Broker

MINUTES: Final = float(os.environ.get("PENSTOCK_CONNECT_MINUTES", "2"))
WAIT_SECONDS: Final = 180.0
ROWS: Final = 200
TOPIC: Final = "shop.public.orders"
FILE_SINK: Final = "org.apache.kafka.connect.file.FileStreamSinkConnector"
FILE_SOURCE: Final = "org.apache.kafka.connect.file.FileStreamSourceConnector"
COMPACTED_SOON: Final = {
    f"{name}.storage.{setting}": value
    for name in TOPICS
    for setting, value in (("segment.ms", "1000"), ("min.cleanable.dirty.ratio", "0.01"))
}
"""Settings by which workers start from topics that were compacted in between."""


class Table:
    """Table `orders`, and the changes that were made to it in their order."""

    def __init__(self, sql: Database, seed: int) -> None:
        self._sql, self._chance = sql, random.Random(seed)
        self._next = ROWS
        self.changes: list[tuple[str, int]] = []
        sql("CREATE TABLE orders (id int PRIMARY KEY, amount int, note text)")
        sql("ALTER TABLE orders REPLICA IDENTITY FULL")
        sql(f"INSERT INTO orders SELECT i, i * 7, 'ü' || i FROM generate_series(0, {ROWS - 1}) i")

    def change(self, count: int) -> None:
        """Insert, update and delete rows; the last change inserts one."""
        for number in range(count):
            kept = self._sql("SELECT id FROM orders ORDER BY random() LIMIT 1")[0][0]
            kind = "c" if number == count - 1 else self._chance.choice("ccuud")
            if kind == "c":
                kept, self._next = self._next, self._next + 1
                self._sql("INSERT INTO orders VALUES (%s, %s, 'new')", kept, number)
            elif kind == "u":
                self._sql("UPDATE orders SET amount = amount + 1 WHERE id = %s", kept)
            else:
                self._sql("DELETE FROM orders WHERE id = %s", kept)
            self.changes.append((kind, kept))

    @property
    def newest(self) -> int:
        return self._next - 1

    def read(self) -> dict[int, dict[str, Any]]:
        rows = self._sql("SELECT id, amount, note FROM orders")
        return {row[0]: dict(zip(("id", "amount", "note"), row, strict=True)) for row in rows}


class Scene:
    """Two workers with a source and a sink between a table, a broker and a file."""

    def __init__(
        self, folder: Path, broker: Killable, table: Table, workers: Sequence[Worker]
    ) -> None:
        self.table, self.workers = table, workers
        self._folder, self._broker = folder, broker
        self.client = Client(broker.bootstrap)

    def begin(self, url: str, *, exactly_once: bool) -> None:
        """Create both connectors; wait for the snapshot, and until both run."""
        self.workers[0].put("shop", {
            **connector_settings(url, "shop"), "tasks.max": "1", "tombstones.on.delete": "false",
            "publication.autocreate.mode": "filtered", "table.include.list": "public.orders",
            "topic.creation.default.replication.factor": "-1",
            "topic.creation.default.partitions": "1",
            "exactly.once.support": "required" if exactly_once else "requested",
        })  # fmt: skip
        self.workers[0].wait_until_running("shop")
        self._wait_for(ROWS - 1)
        self.workers[0].put("file", {
            "connector.class": FILE_SINK, "tasks.max": "1", "topics": TOPIC,
            "file": str(self._folder / "out.txt"), "value.converter": STRINGS,
            "consumer.override.isolation.level": "read_committed",
        })  # fmt: skip
        self.workers[1].wait_until_running("file")

    def disturb(self, seconds: float, seed: int) -> None:
        """Kill workers and the broker; after each kill, wait until the newest row arrives."""
        self.table.change(50)
        for _ in killed_in_turn([*self.workers, self._broker], seconds, seed):
            self.table.change(50)
            self._wait_for(self.table.newest)
            self.table.change(50)
        self._wait_for(self.table.newest)

    def _wait_for(self, row: int) -> None:
        wait_until(
            lambda: b'{"id":%d}' % row in self._newest_keys(),
            lambda: "".join(worker.log() for worker in self.workers), WAIT_SECONDS,
        )  # fmt: skip

    def _newest_keys(self) -> list[bytes]:
        if TOPIC not in {topic.name for topic in self.client.list_topics()}:
            return []
        end = self.client.list_offsets(TOPIC, isolation=1)
        keys: list[bytes] = self.client.read_arrow(
            TOPIC, start={0: max(0, end[0] - 100)}, end=end, columns=("key",),
            isolation="read_committed",
        )["key"].to_pylist()  # fmt: skip
        return keys

    def compacted(self) -> bool:
        topic = "connect-status"
        kept = self.client.read_arrow(topic, columns=("offset",)).num_rows
        return bool(kept < sum(self.client.list_offsets(topic).values()))

    def lines(self) -> list[str]:
        return (self._folder / "out.txt").read_text().splitlines()


def check_events(found: list[Event], table: Table, *, exactly_once: bool) -> None:
    """Check that the events end in the table's rows, and are its changes in their order."""
    last = {event.key["id"]: event.value for event in found}
    rows = {key: value["after"] for key, value in last.items() if value["op"] != "d"}
    assert rows == table.read()
    made = [(event.value["op"], event.key["id"]) for event in found]
    snapshot = [("r", row) for row in range(ROWS)]
    if exactly_once:
        assert made == snapshot + table.changes
    else:  # a repeated event has the position of the first
        first = {(e.value["source"]["lsn"], e.value["op"], e.key["id"]): None for e in found}
        assert [(op, row) for _, op, row in first if op != "r"] == table.changes


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 900)
@pytest.mark.parametrize(
    ("brokers", "exactly_once"), [(1, True), (1, False), (3, True)],
    ids=["exactly once", "at least once", "replicated"],
)  # fmt: skip
def test_distributed_workers_under_kills(tmp_path: Path, brokers: int, exactly_once: bool) -> None:
    seed = int(time.time())
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(settings=LOGICAL))
        url = server.url(stack.enter_context(server.database()))
        sql = stack.enter_context(database(url))
        settings = {"log.cleaner.backoff.ms": "1000"}
        broker = stack.enter_context(one_or_three(tmp_path, brokers, settings))
        try:
            libraries = debezium()
        except PartMissing as error:
            missing(error)
        support = {"exactly.once.source.support": "enabled" if exactly_once else "disabled"}
        workers = [
            stack.enter_context(
                Worker(broker.bootstrap, tmp_path, name, libraries, {**COMPACTED_SOON, **support})
            )
            for name in ("worker1", "worker2")
        ]
        scene = Scene(tmp_path, broker, Table(sql, seed), workers)
        stack.callback(scene.client.close)
        scene.begin(url, exactly_once=exactly_once)
        scene.disturb(60 * MINUTES, seed)
        found = events(broker.bootstrap, TOPIC)
        check_events(found, scene.table, exactly_once=exactly_once)
        table = scene.client.read_arrow(TOPIC, columns=("value",), isolation="read_committed")
        expected = [value.decode() for value in table["value"].to_pylist()]
        wait_until(lambda: set(scene.lines()) == set(expected), scene.workers[0].log, WAIT_SECONDS)
        # Compaction has removed old states of connectors and tasks.
        wait_until(scene.compacted, scene.workers[0].log, WAIT_SECONDS)
        # The sink repeats lines after a kill.
        assert list(dict.fromkeys(scene.lines())) == list(dict.fromkeys(expected))
        for name in TOPICS:
            configs = scene.client.describe_configs("topic", f"connect-{name}")
            assert [e.value for e in configs if e.name == "cleanup.policy"] == ["compact"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_standalone_worker_carries_lines(tmp_path: Path) -> None:
    """Lines go from a file through a topic into another file, over kills of both workers."""
    source = {"name": "source", "connector.class": FILE_SOURCE, "topic": "lines",
              "file": str(tmp_path / "in.txt")}  # fmt: skip
    sink = {"name": "sink", "connector.class": FILE_SINK, "topics": "lines",
            "file": str(tmp_path / "out.txt")}  # fmt: skip
    strings = {"key.converter": STRINGS, "value.converter": STRINGS}
    try:
        libraries = kafka_connect()
    except PartMissing as error:
        missing(error)
    written: list[str] = []
    with Broker(process=True) as broker:
        broker.create_topic("lines")
        for part in range(2):
            # ASCII: the source stores its position in characters, and continues at that byte.
            more = [f"line {part} {number}" for number in range(2_000)]
            written += more
            with (tmp_path / "in.txt").open("a") as file:
                file.writelines(f"{line}\n" for line in more)
            with (
                Standalone(broker.bootstrap, tmp_path, libraries, source, strings),
                Standalone(broker.bootstrap, tmp_path, libraries, sink, strings) as worker,
            ):
                worker.wait_for(len(written), lambda: len(distinct(tmp_path / "out.txt")))
    assert distinct(tmp_path / "out.txt") == written


def distinct(file: Path) -> list[str]:
    """Return the lines of a file without repetitions."""
    return list(dict.fromkeys(file.read_text().splitlines())) if file.exists() else []
