"""`penstock mirror history`: Spark copies the log directories of Apache Kafka, and the mirror
continues where the job ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import psutil
import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.mirror.bed import mirror, wait_for
from tests.ports import free_port

from compat.conftest import missing
from compat.parts import PartMissing
from penstock.client import Client
from penstock.testing import Broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "4096"}
Record = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]
"""Key, value, timestamp in milliseconds, and headers."""


def produced(bootstrap: str) -> Producer:
    """Write four topics; return a producer with an open transaction, which began in a segment that
    is closed.
    """
    large = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    payload = os.urandom(4_000)
    for record in range(20_000):
        large.produce("large", payload, b"%d" % record, partition=0)
        large.poll(0)
    assert large.flush(60) == 0
    for number, codec in enumerate(CODECS):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "batch.size": 16_000}
        )
        for record in range(4_000):
            payload = f"{codec} {record} ".encode() + os.urandom(500)
            producer.produce(
                "orders", payload, b"key %d" % (record % 50), partition=record % 3,
                timestamp=1_600_000_000_000 + number * 10_000 + record,
                headers=[("codec", codec.encode())] if record % 2 else None,
            )  # fmt: skip
        assert producer.flush(60) == 0
    for number in range(12):
        producer = transaction(bootstrap, f"t{number % 3}")
        for end in producer.commit_transaction, producer.abort_transaction:
            producer.begin_transaction()
            for record in range(50):
                producer.produce("ends", b"%d" % record + os.urandom(2_000), partition=record % 2)
            producer.flush(30)
            end(30)
    unfinished = transaction(bootstrap, "unfinished")
    unfinished.begin_transaction()
    unfinished.produce("ends", b"of the open transaction", partition=0)
    unfinished.flush(30)
    plain = Producer({"bootstrap.servers": bootstrap})
    for _ in range(1_500):
        plain.produce("ends", os.urandom(2_000), partition=0)
    assert plain.flush(60) == 0
    for turn in range(100):
        for number in range(200):
            value = None if number % 7 == 6 else f"{turn} {number}" + "x" * 200
            plain.produce("keys", value, f"{number % 40}")
        assert plain.flush(60) == 0
    return unfinished


def transaction(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def consumed(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """Return the committed records by partition, as a consumer of another project reads them."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
         "isolation.level": "read_committed", "enable.auto.commit": False}
    )  # fmt: skip
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: dict[int, list[Record]] = {partition: [] for partition in partitions}
    ended: set[int] = set()
    while len(ended) < len(found):
        for message in consumer.consume(5_000, 1.0):
            partition = message.partition()
            assert partition is not None
            if message.error():
                ended.add(partition)
                continue
            headers = tuple(h for h in message.headers() or () if h[0] != "penstock.origin")
            entry = message.key(), message.value(), message.timestamp()[1], headers
            found[partition].append(entry)
    consumer.close()
    return found


class History:
    """Process of `penstock mirror history`, whose lines on stderr are read as they are written."""

    def __init__(self, file: Path, directory: Path, target: Broker, *options: str) -> None:
        command = [
            sys.executable, "-m", "penstock", "mirror", "history", str(file), "--log-dir",
            str(directory), "--admin", target.admin_url, "--round-bytes", "16m", *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=file.parent
        )
        assert self.process.stderr is not None
        self.errors: IO[str] = self.process.stderr
        self.printed: list[str] = []

    def lines(self) -> Iterator[str]:
        with self.errors:
            for line in self.errors:
                self.printed.append(line)
                yield line

    def kill(self) -> None:
        """End the driver and its Java process at once."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        for process in below:
            process.kill()
        self.process.kill()
        self.process.wait()
        self.errors.close()


def rounds(history: History) -> Iterator[str]:
    return (line for line in history.lines() if " MB of files" in line)


def workers(pid: int) -> list[psutil.Process]:
    """Return the Python workers of a Spark session on this machine: children of its daemon."""
    found: list[psutil.Process] = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "penstock.spark.reads.daemon" in process.cmdline():
                found += process.children()
    return found


def active_tasks(port: int) -> int:
    """Return the number of running tasks of the Spark session whose pages have this port."""
    with urlopen(f"http://127.0.0.1:{port}/api/v1/applications", timeout=10) as found:
        (application,) = json.load(found)
    stages = f"http://127.0.0.1:{port}/api/v1/applications/{application['id']}/stages"
    with urlopen(f"{stages}?status=active", timeout=10) as found:
        return sum(stage["numActiveTasks"] for stage in json.load(found))


@contextmanager
def clusters(directory: Path) -> Iterator[tuple[ApacheKafka, Broker]]:
    node = ApacheKafka(
        directory,
        heap="512m",
        configs={"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "100"},
    )
    try:
        node.start()
    except PartMissing as error:
        missing(error)
    try:
        with Broker(process=True) as target:
            yield node, target
    finally:
        node.stop()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_history_is_copied_once_and_the_mirror_continues(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with clusters(tmp_path) as (kafka, target), Client(kafka.bootstrap) as there:
        there.create_topic("orders", 3, SEGMENTS | {"retention.ms": "-1"})
        there.create_topic("ends", 2, SEGMENTS)
        there.create_topic("large", 1, SEGMENTS)
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        there.create_topic("keys", 1, SEGMENTS | compacted)
        unfinished = produced(kafka.bootstrap)
        # Files that the cleaner replaces meanwhile may be missing from the copy.
        subprocess.run(["cp", "-r", kafka.directory / "data", copy], check=False)
        unfinished.abort_transaction(30)
        file = tmp_path / "dr.toml"
        file.write_text(
            f'name = "dr"\n[source]\nbootstrap = "{kafka.bootstrap}"\n'
            'topics = ["orders", "ends", "keys", "large"]\ngroups = ["g"]\n'
            f'[target]\nbootstrap = "{target.bootstrap}"\n'
        )
        copied(file, copy, target)
        with target.client() as here:
            history = {topic: here.list_offsets(topic) for topic in ("orders", "ends", "keys")}
        assert sum(history["orders"].values()) > 10_000
        stable = there.list_offsets("orders", isolation=1)
        there.commit_offsets("g", {("orders", 0): stable[0], ("orders", 1): 10})
        mirror(file)
        with target.client() as here:
            groups = {at: found.offset for at, found in here.committed("g").items()}
            ends = here.list_offsets("orders", isolation=1)
        assert ends[0] - 1 <= groups["orders", 0] <= ends[0]  # a marker may follow the records
        assert groups["orders", 1] == 0
        for topic in ("orders", "ends", "large"):
            assert consumed(target.bootstrap, topic) == consumed(kafka.bootstrap, topic)
        left, right = (consumed(at, "keys")[0] for at in (kafka.bootstrap, target.bootstrap))
        kept = iter(right)
        assert all(record in kept for record in left)  # the source has compacted more since
        latest = [{entry[0]: entry[1] for entry in entries} for entries in (left, right)]
        assert latest[0].items() <= latest[1].items()
        assert not any([value for key, value in latest[1].items() if key not in latest[0]])


def copied(file: Path, directory: Path, target: Broker) -> None:
    """Run the job: kill its driver, check that a mirror waits for it, and kill workers of the next
    run.
    """
    first = History(file, directory, target)
    seen = rounds(first)
    assert next(seen, None), "".join(first.printed)
    assert next(seen, None), "".join(first.printed)
    first.kill()
    refused: Any = subprocess.run(
        [sys.executable, "-m", "penstock", "mirror", "run", str(file), "--once"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "penstock mirror history" in refused.stderr
    events = file.with_name("events")
    events.mkdir()
    port = free_port()
    settings = {
        "eventLog.enabled": "true", "eventLog.compress": "false", "eventLog.dir": str(events),
        "ui.enabled": "true", "ui.port": str(port),
    }  # fmt: skip
    options = [f"--set=spark.{name}={value}" for name, value in settings.items()]
    second = History(file, directory, target, "--master", "local[2,4]", *options)
    seen = rounds(second)
    assert next(seen, None), "".join(second.printed)
    killed = workers(second.process.pid)  # they are idle, or have tasks of the next round
    for worker in killed:
        worker.suspend()
    wait_for(lambda: active_tasks(port) > 0)
    for worker in killed:
        worker.kill()
    assert len(list(seen)) > 1
    assert second.process.wait(120) == 0, second.printed[-20:]
    log = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "Python worker exited unexpectedly" in log
