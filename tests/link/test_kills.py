"""Links under load and kills: promotion, reversal and the way back lose and double nothing."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, Message, Producer

from penstock.apps.cli import root
from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.link.topics import compare, lag_of, linked_topics
from penstock.testing import Broker
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
TOPIC = "orders"
PARTITIONS = 3
SECONDS = 90.0
SEEDS = [int(seed) for seed in os.environ.get("PENSTOCK_LINK_SEEDS", "1,2,3").split(",")]

Records = dict[tuple[int, int], bytes]
"""Values by partition and offset."""


class Load:
    """Idempotent producer with acks=all in a thread; the acknowledged records."""

    def __init__(self, side: Side, name: str) -> None:
        self.acked: Records = {}
        self.errors: list[str] = []
        self._over = threading.Event()
        self._name = name
        self._producer = Producer(
            {
                "bootstrap.servers": side.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": int(SECONDS * 1000),
                "topic.metadata.refresh.fast.interval.ms": 50,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            value = f"{self._name} {number}".encode()
            partition = number % PARTITIONS
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0.003)
            number += 1
        self._producer.flush(SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        if error is not None:
            self.errors.append(f"{value!r}: {error}")
        elif value is not None and partition is not None and offset is not None:
            self.acked[partition, offset] = value

    def grow(self, count: int) -> None:
        """Wait until this many more records are acknowledged."""
        wanted, until = len(self.acked) + count, time.monotonic() + SECONDS
        while len(self.acked) < wanted:
            assert time.monotonic() < until, f"{len(self.acked)} of {wanted}; {self.errors[:3]}"
            time.sleep(0.02)

    def end(self) -> Records:
        self._over.set()
        self._thread.join()
        assert not self.errors
        return self.acked


class Side:
    """Cluster of one or three brokers."""

    def __init__(self, brokers: Sequence[Broker], chance: random.Random) -> None:
        self._brokers = brokers
        self._chance = chance
        self.factor = len(brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self._brokers)

    def client(self) -> Client:
        return Client(self.bootstrap, api_timeout_ms=int(SECONDS * 1000))

    def kill(self) -> None:
        """Kill a broker and start it again."""
        broker = self._chance.choice(self._brokers)
        broker.kill()
        time.sleep(self._chance.choice([0.0, 0.3]))
        broker.start()

    def maybe_kill(self) -> None:
        if self._chance.random() < 0.5:
            self.kill()


@contextmanager
def clusters(url: str, store: Path, chance: random.Random) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:
        one = stack.enter_context(Broker(process=True, admin=False))
        three = []
        for node_id in (1, 2, 3):
            settings = {
                "node.id": node_id,
                "control.url": url,
                "diskless.storage.url": store.as_uri(),
                "replication.listener": "127.0.0.1:0",
                "broker.session.timeout.ms": 3_000,
                "broker.heartbeat.interval.ms": 300,
            }
            three.append(stack.enter_context(Broker(settings, process=True, admin=False)))
        yield Side([one], chance), Side(three, chance)


def link(*words: str, side: Side) -> None:
    done = CliRunner().invoke(root, ["link", *words, "-b", side.bootstrap])
    assert done.exit_code == 0, (words, done.output, done.exception)


def await_copied(source: Side, target: Side) -> None:
    until = time.monotonic() + SECONDS
    with source.client() as ours, target.client() as theirs:
        while behind := [lag for lag in lag_of(ours, theirs, [TOPIC]) if lag.records]:
            assert time.monotonic() < until, behind
            time.sleep(0.05)


def read(side: Side) -> Records:
    columns = ("partition", "offset", "value")
    with side.client() as client:
        table = client.read_arrow(TOPIC, columns=columns)
    rows = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return {(partition, offset): value for partition, offset, value in rows}


def check_equal(source: Side, target: Side, expected: Records) -> None:
    """Check CRCs by partition, and that both sides have all of these records once."""
    with source.client() as ours, target.client() as theirs:
        sums = compare(ours, theirs, TOPIC)
        assert [found.partition for found in sums] == list(range(PARTITIONS))
        assert all(found.equal for found in sums), sums
        ends = {found.partition: found.end for found in sums}
        assert ends == ours.list_offsets(TOPIC) == theirs.list_offsets(TOPIC)
    held = read(target)
    assert {place: held.get(place) for place in expected} == expected
    assert len(set(held.values())) == len(held)


def promote(target: Side, chance: random.Random) -> None:
    """Promote the topic, with all replicas, while a broker is killed; repeat what has failed."""
    kill = threading.Timer(chance.random() * 2, target.kill)
    kill.start()
    words = ["promote", TOPIC, "--timeout-seconds", f"{SECONDS:g}"]
    words += ["--replication-factor", str(target.factor)]
    done = CliRunner().invoke(root, ["link", *words, "-b", target.bootstrap])
    kill.join()
    if done.exit_code:
        assert isinstance(done.exception, PenstockError), done.exception
        with target.client() as client:
            ended = not linked_topics(client)
        words = ["link", *words] if not ended else ["topic", "reassign", TOPIC, "--factor"]
        words += [str(target.factor)] if ended else []
        done = CliRunner().invoke(root, [*words, "-b", target.bootstrap])
        assert done.exit_code == 0, (words, done.exception)
    with target.client() as client:
        rows = client.describe_topic(TOPIC).partitions
    assert {len(row.replicas) for row in rows} == {target.factor}


def fail_over(source: Side, target: Side, chance: random.Random, number: int) -> Records:
    """Promote the linked topic of `target` under load, and make `source` follow it.

    Returns the acknowledged records that both sides must have: records that the source accepted
    after the promotion are removed.
    """
    load = Load(source, f"source {number}")
    load.grow(300)
    source.maybe_kill()
    load.grow(300)
    target.maybe_kill()
    under_load = chance.random() < 0.5
    if not under_load:
        load.end()
    source.maybe_kill()
    promote(target, chance)
    with target.client() as client:
        promoted = client.list_offsets(TOPIC)
    after = Load(target, f"target {number}")
    after.grow(200)
    target.kill()
    after.grow(200)
    kept = {place: value for place, value in load.end().items() if place[1] < promoted[place[0]]}
    source.maybe_kill()
    link("reverse", TOPIC, "--source", target.bootstrap, "--yes", side=source)
    after.grow(100)
    source.kill()
    after.grow(100)
    target.maybe_kill()
    kept |= after.end()
    await_copied(target, source)
    check_equal(target, source, kept)
    return kept


@pytest.mark.parametrize("seed", SEEDS)
def test_fail_over_and_back(seed: int, postgres: PostgresServer, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with clusters(postgres.schema(), tmp_path, chance) as (first, second):
        with first.client() as client:
            client.create_topic(TOPIC, PARTITIONS)
        link("create", TOPIC, "--source", first.bootstrap, side=second)
        kept: Records = {}
        for number in range(2):  # there, and back
            kept |= fail_over(first, second, chance, number)
            first, second = second, first
        check_equal(first, second, kept)
