"""Kafka Streams counts words exactly once, while it and the broker are killed.

A program of Kafka's own library (`java/WordCount.java`, `processing.guarantee=exactly_once_v2`)
reads lines, repartitions words, keeps counts in a store with a changelog, and tells each count. So
for each word a reader of committed records must see 1, 2, 3, … to the number of times that it was
written, in order, and nothing twice. `PENSTOCK_KILLS` sets another number of kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.conftest import missing
from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.drivers.port import Record
from compat.drivers.remote import java_environment
from compat.parts import PartMissing, java_program
from compat.security import grant, harness, read, scenario, security_of, transactions, write
from compat.servers import killable

PARTITIONS = 2
LINES = 300
WORDS = ("event", "log", "offset", "segment", "broker", "epoch")
KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
WAIT_SECONDS = 120.0
SEED = 7
SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

# What Kafka's documentation of Streams asks for: its own topics begin with the application's id.
NEEDS = (
    *read("lines", "counts-app"),
    write("counts"),
    *((operation, "topic", "counts-app-*") for operation in ("create", "read", "write", "delete")),
    ("describe_configs", "topic", "counts-app-*"),
    transactions("counts-app-*"),
)


class WordCount:
    """The program, in a process that can be killed and started again on the same state."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        try:
            self._classes = java_program("WordCount", "streams")
        except PartMissing as error:
            missing(error)
        self._arguments = [bootstrap, "lines", "counts", str(directory / "state")]
        grant(bootstrap, "streams", NEEDS)
        self._said = directory / "streams.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program; it works some seconds later."""
        command = ["java", "-cp", self._classes, *SMALL, QUIET, "WordCount", *self._arguments]
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **java_environment(security_of("streams"))},
            )

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def said(self) -> str:
        """The end of what it has said."""
        return self._said.read_text(errors="replace")[-4000:]


class Counts:
    """A reader of committed records, which keeps all counts of each word in their order."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                **scenario(bootstrap, *read("counts", "reader")),
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        places = [TopicPartition("counts", partition, 0) for partition in range(PARTITIONS)]
        self._consumer.assign(places)
        self.of: dict[str, list[int]] = {word: [] for word in WORDS}

    def poll(self) -> int:
        """Take what there is; returns how many counts have been seen in all."""
        for message in self._consumer.consume(1_000, 0.2):
            if message.error() is None:
                self.of[message.key().decode()].append(int(message.value()))
        return sum(map(len, self.of.values()))

    def await_seen(self, count: int, program: WordCount) -> None:
        """Wait until so many counts have been told in all."""
        eventually(
            lambda: self.poll() >= count,
            lambda: f"{self.poll()} counts of {count}: {program.said}",
            seconds=WAIT_SECONDS,
        )

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()


@contextmanager
def counting(bootstrap: str, directory: Path) -> Iterator[tuple[WordCount, Counts]]:
    """The program and a reader of what it counts."""
    program, counts = WordCount(bootstrap, directory), Counts(bootstrap)
    program.start()
    try:
        yield program, counts
    finally:
        counts.close()
        program.kill()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_words_are_counted_once_over_kills(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    truth: Counter[str] = Counter()
    with killable(tmp_path / "broker") as broker, Confluent(broker.bootstrap) as driver:
        admin = AdminClient({**harness(broker.bootstrap), "log_level": 0})
        for future in admin.create_topics(
            [NewTopic(name, PARTITIONS) for name in ("lines", "counts")]
        ).values():
            future.result(WAIT_SECONDS)
        with counting(broker.bootstrap, tmp_path) as (program, counts):
            for number in range(KILLS + 1):
                words = [dice.choices(WORDS, k=8) for _ in range(LINES)]
                truth.update(word for line in words for word in line)
                now_ms = int(time.time() * 1000)
                driver.produce(
                    "lines",
                    [
                        Record(
                            value=" ".join(line).encode(),
                            timestamp=now_ms,
                            partition=index % PARTITIONS,
                        )
                        for index, line in enumerate(words)
                    ],
                    idempotent=True,
                )
                target = truth.total()
                if number < KILLS:  # some of what was just written is counted when the kill comes
                    target -= dice.randrange(1, LINES * 8)
                counts.await_seen(target, program)
                if number == KILLS:
                    break
                if number % 2:
                    broker.kill()
                    broker.start()
                else:
                    program.kill()
                    program.start()
            assert counts.poll() == truth.total()
        for word in WORDS:
            assert counts.of[word] == list(range(1, truth[word] + 1)), word
