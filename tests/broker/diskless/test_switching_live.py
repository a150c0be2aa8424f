"""A topic becomes diskless under librdkafka's clients, and through `kill -9` at every step."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.base.errors import PenstockError
from penstock.testing import Broker
from tests.broker.diskless.dying import STEPS

PARTITIONS = 2
SECONDS = 30.0
DISKLESS = {"diskless.enable": "true"}
LOCAL_STEPS = ("begun", "copied", "fenced", "tail copied")


class Producing(threading.Thread):
    """Produces numbers to the partitions in turn until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        self._over = threading.Event()
        self._changed = threading.Condition()
        self.delivered: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
        self.errors: list[str] = []
        self.count = 0

    def run(self) -> None:
        while not self._over.is_set():
            self._producer.produce(
                "t",
                b"%d" % self.count,
                partition=self.count % PARTITIONS,
                on_delivery=self._done,
            )
            self.count += 1
            self._producer.poll(0.001)
        self._producer.flush(SECONDS)

    def _done(self, error: KafkaError | None, message: Message) -> None:
        with self._changed:
            if error is not None:
                self.errors.append(str(error))
            else:
                place = (message.offset() or 0, message.value() or b"")
                self.delivered[message.partition() or 0].append(place)
            self._changed.notify_all()

    def total(self) -> int:
        return sum(map(len, self.delivered)) + len(self.errors)

    def wait_for(self, more: int) -> None:
        goal = self.total() + more
        with self._changed:
            assert self._changed.wait_for(lambda: self.total() >= goal, SECONDS)

    def finish(self) -> None:
        self._over.set()
        self.join(SECONDS)
        assert not self.is_alive()


class Consuming(threading.Thread):
    """A member of a group that reads on until it has seen `goal` records."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(["t"])
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
        self.goal = sys.maxsize
        self.errors: list[str] = []
        self.committed: list[int] = []

    def run(self) -> None:
        idle = 0
        while sum(map(len, self.seen)) < self.goal and idle < 200:
            message = self._consumer.poll(0.1)
            if message is None:
                idle += 1
                continue
            idle = 0
            if message.error() is not None:
                self.errors.append(str(message.error()))
                continue
            place = (message.offset() or 0, message.value() or b"")
            self.seen[message.partition() or 0].append(place)
        self._consumer.commit(asynchronous=False)
        found = self._consumer.committed([TopicPartition("t", one) for one in range(PARTITIONS)])
        self.committed = [one.offset for one in found]
        self._consumer.close()

    def finish(self, goal: int) -> None:
        self.goal = goal
        self.join(SECONDS)
        assert not self.is_alive()


def test_producer_and_consumer_go_on() -> None:
    with Broker(admin=False) as broker, broker.client() as client:
        broker.create_topic("t", PARTITIONS)
        producing, consuming = Producing(broker.bootstrap), Consuming(broker.bootstrap)
        producing.start()
        consuming.start()
        producing.wait_for(400)
        client.alter_configs("topic", "t", DISKLESS)
        producing.wait_for(400)
        producing.finish()
        consuming.finish(producing.count)
        assert producing.errors == consuming.errors == []
        written = [
            [(n, b"%d" % (n * PARTITIONS + index)) for n in range(len(part))]
            for index, part in enumerate(producing.delivered)
        ]
        assert producing.delivered == written
        assert consuming.seen == written
        assert consuming.committed == [len(part) for part in written]
        assert not list(broker.directory.glob("log/t-?"))


class Dying:
    """A broker's process that ends itself at a step."""

    def __init__(self, directory: Path, step: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.broker.diskless.dying", step, "serve",
                "-X", f"log.dirs={directory}", "-X", "listeners=PLAINTEXT://127.0.0.1:0",
                "-X", "admin.listener=",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self._process.stdout.readline() if self._process.stdout else ""
        found = re.search(r"penstock ready kafka=(\S+)", line)
        assert found, line
        self.bootstrap = found[1]

    def ended(self) -> int:
        code = self._process.wait(SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


def values(client: Any) -> list[list[bytes]]:
    table = client.read_arrow("t", columns=("partition", "offset", "value"))
    rows = table.to_pylist()
    found = []
    for index in range(PARTITIONS):
        part = [row for row in rows if row["partition"] == index]
        assert [row["offset"] for row in part] == list(range(len(part)))
        found.append([row["value"] for row in part])
    return found


@pytest.mark.parametrize("step", STEPS)
def test_killed_broker_has_a_local_topic_or_a_diskless_one(step: str, tmp_path: Path) -> None:
    import pyarrow as pa

    from penstock.client import Client

    table = pa.table({"value": [b"%d" % n for n in range(500)]})
    broker = Broker(directory=tmp_path, admin=False)
    with broker, broker.client() as client:
        broker.create_topic("t", PARTITIONS)
        client.write_arrow("t", table)
        before = values(client)
    dying = Dying(tmp_path, step)
    with Client(dying.bootstrap, api_timeout_ms=500) as client, pytest.raises(PenstockError):
        client.alter_configs("topic", "t", DISKLESS)
    assert dying.ended() == -9
    with broker, broker.client() as client:
        entries = client.describe_configs("topic", "t")
        [kind] = [entry.value for entry in entries if entry.name == "diskless.enable"]
        assert kind == ("false" if step in LOCAL_STEPS else "true")
        assert bool(list(tmp_path.glob("log/t-?"))) is (step in LOCAL_STEPS)
        assert values(client) == before
        client.alter_configs("topic", "t", DISKLESS)
        client.write_arrow("t", table)
        after = values(client)
        assert [part[: len(old)] for part, old in zip(after, before, strict=True)] == before
        assert sum(map(len, after)) == 1000
