"""Kafka Streams counts words exactly once, while it and the broker are killed.

Two instances run with each group protocol, classic and streams (KIP-1071), over the same input and
the same kills. Both must give the counts that the test computes, so they also equal each other.

A program of Kafka's own library (`java/WordCount.java`, `processing.guarantee=exactly_once_v2`)
reads lines, repartitions words, keeps counts in a store with a changelog, and tells each count. So
for each word a reader of committed records must see 1, 2, 3, … to the number of times that it was
written, in order, and nothing twice. `PENSTOCK_KILLS` sets another number of kills.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.conftest import missing
from compat.daemons import Daemon, java
from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.drivers.port import Record
from compat.drivers.remote import java_environment
from compat.parts import PartMissing, java_program
from compat.security import grant, harness, read, scenario, security_of, transactions, write
from compat.servers import killable
from compat.tools import run_tool
from penstock.client import Client

PARTITIONS = 2
LINES = 300
WORDS = ("event", "log", "offset", "segment", "broker", "epoch")
KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
WAIT_SECONDS = 120.0
SEED = 7
SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

STREAMS_GROUPS = {
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "1000",
}
"""Settings with which members of streams groups expire as fast as those of classic groups."""

# What Kafka's documentation of Streams asks for: its own topics begin with the application's id.
NEEDS = (
    *read("lines", "counts-app"),
    write("counts"),
    *((operation, "topic", "counts-app-*") for operation in ("create", "read", "write", "delete")),
    ("describe_configs", "topic", "counts-app-*"),
    transactions("counts-app-*"),
)


class WordCount(Daemon):
    """The program, on the same state after each start; it works some seconds later."""

    def __init__(self, bootstrap: str, directory: Path, protocol: str, name: str) -> None:
        try:
            classes = java_program("WordCount", "streams")
        except PartMissing as error:
            missing(error)
        grant(bootstrap, "streams", NEEDS)
        arguments = (bootstrap, "lines", "counts", directory / f"state-{name}")
        command = java(classes, "WordCount", *arguments, options=SMALL)
        environment = {**java_environment(security_of("streams")), "GROUP_PROTOCOL": protocol}
        super().__init__(command, directory / f"streams-{name}.log", environment=environment)


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

    def await_seen(self, count: int, programs: Sequence[WordCount]) -> None:
        """Wait until so many counts have been told in all."""
        eventually(
            lambda: self.poll() >= count,
            lambda: f"{self.poll()} counts of {count}: {[p.log() for p in programs]}",
            seconds=WAIT_SECONDS,
        )

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({**harness(bootstrap), "log_level": 0})
    topics = [NewTopic(name, PARTITIONS) for name in ("lines", "counts")]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_SECONDS)


@contextmanager
def counting(
    bootstrap: str, directory: Path, protocol: str
) -> Iterator[tuple[list[WordCount], Counts]]:
    """Two instances of the program, and a reader of what they count."""
    programs = [WordCount(bootstrap, directory, protocol, name) for name in ("one", "two")]
    counts = Counts(bootstrap)
    for program in programs:
        program.start()
    try:
        yield programs, counts
    finally:
        counts.close()
        for program in programs:
            program.kill()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_words_are_counted_once_over_kills(tmp_path: Path, protocol: str) -> None:
    dice = random.Random(SEED)
    truth: Counter[str] = Counter()
    with (
        killable(tmp_path / "broker", STREAMS_GROUPS) as broker,
        Confluent(broker.bootstrap) as driver,
    ):
        create_topics(broker.bootstrap)
        with counting(broker.bootstrap, tmp_path, protocol) as (programs, counts):
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
                counts.await_seen(target, programs)
                if number == KILLS:
                    break
                if number % 2:
                    broker.kill()
                    broker.start()
                else:
                    program = dice.choice(programs)
                    program.kill()
                    program.start()
            assert counts.poll() == truth.total()
            with Client(broker.bootstrap) as client:
                kinds = {group.group_id: group.group_type for group in client.list_groups()}
            assert kinds["counts-app"] == protocol
        for word in WORDS:
            assert counts.of[word] == list(range(1, truth[word] + 1)), word


TOOL = "streams.StreamsGroupCommand"
GROUP = ("--group", "counts-app")
WHILE_RUNNING = (
    ("--list", "--state"),
    *(("--describe", *GROUP, *of) for of in (
        ("--members",), ("--members", "--verbose"), ("--offsets",), ("--state",),
    )),
)  # fmt: skip
AFTER_THE_END = (
    *WHILE_RUNNING,
    ("--reset-offsets", *GROUP, "--to-earliest", "--input-topic", "lines", "--execute"),
    ("--describe", *GROUP, "--offsets"),
    ("--delete-offsets", *GROUP, "--input-topic", "lines"),
    ("--reset-offsets", *GROUP, "--to-earliest", "--all-input-topics", "--execute"),
    ("--delete", *GROUP),
    ("--list",),
)  # fmt: skip
GENERATED = {"MEMBER", "PROCESS", "CLIENT-ID", "COORDINATOR"}
"""Columns whose values differ between two runs."""


def shown(bootstrap: str, arguments: Sequence[str]) -> list[tuple[tuple[str, str], ...]]:
    rows = run_tool(bootstrap, TOOL, *arguments)
    return sorted(
        tuple((name, "" if name in GENERATED else value) for name, value in row.items())
        for row in rows
    )


def session(bootstrap: str, directory: Path) -> dict[str, Any]:
    """Return what `kafka-streams-groups.sh` shows of a running application, and after its end."""
    create_topics(bootstrap)
    with (
        Confluent(bootstrap) as driver,
        counting(bootstrap, directory, "streams") as (programs, counts),
    ):
        now_ms = int(time.time() * 1000)
        lines = [
            Record(value=b"log event", timestamp=now_ms, partition=number % PARTITIONS)
            for number in range(50)
        ]
        driver.produce("lines", lines, idempotent=True)
        counts.await_seen(100, programs)
        eventually(
            lambda: len(run_tool(bootstrap, TOOL, *WHILE_RUNNING[1])) == 2,
            lambda: "the group does not have both members",
            seconds=WAIT_SECONDS,
        )
        found = {f"running {' '.join(asked)}": shown(bootstrap, asked) for asked in WHILE_RUNNING}
    eventually(
        lambda: run_tool(bootstrap, TOOL, "--list", "--state")[0]["STATE"] == "Empty",
        lambda: "the group still has members",
        seconds=WAIT_SECONDS,
    )
    return found | {f"{number} {' '.join(asked)}": shown(bootstrap, asked)
                    for number, asked in enumerate(AFTER_THE_END)}  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(300)
def test_kafka_streams_groups_shows_the_same_as_with_apache_kafka(tmp_path: Path) -> None:
    """Run Kafka's own tool on both brokers: list, describe, reset, delete."""
    found = []
    for name in ("kafka", "penstock"):
        directory = tmp_path / name
        directory.mkdir()
        server: AbstractContextManager[Any] = (
            ApacheKafka(heap="512m", configs=STREAMS_GROUPS)
            if name == "kafka"
            else killable(directory / "broker", STREAMS_GROUPS)
        )
        with server as broker:
            found.append(session(broker.bootstrap, directory))
    expected, actual = found
    assert actual == expected
    assert len(actual["running --describe --group counts-app --offsets"]) == 4
