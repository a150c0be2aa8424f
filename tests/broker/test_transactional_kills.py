"""kill -9 of a coordinator at each step of a transaction; its producer goes on."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.client import Client
from tests.apps.test_serve import READY, environment
from tests.broker import dying_broker
from tests.broker.transactions import committed_values

SECONDS = 90.0
PARTITIONS = 3
STEPS = [
    *((dying_broker.BEFORE_SAVE, count) for count in range(1, 5)),
    *((dying_broker.AFTER_SAVE, count) for count in range(1, 5)),
    (dying_broker.BEFORE_MARKERS, 1),
    (dying_broker.AFTER_MARKER, 1),
]
"""The first save is the producer's beginning; then it adds partitions, decides, and completes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def running(directory: Path, port: int, *program: str) -> Iterator[subprocess.Popen[str]]:
    words = ["serve", "--data-dir", str(directory), "--listener", f"127.0.0.1:{port}"]
    words += ["--admin", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", *program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            assert READY.fullmatch(process.stdout.readline())
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Transactional(threading.Thread):
    """Two transactions of one producer, however often its broker goes."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.servers = bootstrap
        self.committed: list[bytes] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            producer = Producer(
                {
                    "bootstrap.servers": self.servers,
                    "transactional.id": "tx",
                    "log_level": 0,
                    "reconnect.backoff.max.ms": 200,
                }
            )
            producer.init_transactions(SECONDS)
            for name in (b"first", b"second"):
                self._transaction(producer, name)
        except BaseException as failure:
            self.failure = failure

    def _transaction(self, producer: Producer, name: bytes) -> None:
        while True:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", name, partition=partition)
            try:
                producer.commit_transaction(SECONDS)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(SECONDS)
            else:
                self.committed += [name] * PARTITIONS
                return


@pytest.mark.parametrize(("point", "count"), STEPS)
def test_a_coordinator_dies(tmp_path: Path, point: str, count: int) -> None:
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    producer = Transactional(bootstrap)
    program = ("tests.broker.dying_broker", point, str(count))
    with running(tmp_path, port, *program) as process:
        with Client(bootstrap) as client:
            client.create_topic("t", partitions=PARTITIONS)
        producer.start()
        assert process.wait(SECONDS) == -9
    with running(tmp_path, port, "penstock"):
        producer.join(SECONDS * 2)
        assert not producer.is_alive()
        assert producer.failure is None
        assert sorted(producer.committed) == [b"first"] * PARTITIONS + [b"second"] * PARTITIONS
        assert committed_values(bootstrap, "t", PARTITIONS) == sorted(producer.committed)
