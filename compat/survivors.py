"""A producer and a consumer group that go on while brokers die, and what must be true afterwards.

An idempotent producer sends numbered records to every partition in turn and keeps what was
acknowledged; one member of a group keeps what it received, and commits after each poll.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from compat.drivers import eventually
from compat.drivers.confluent import Confluent

PARTITIONS = 4
PROGRESS_RECORDS = 400
WINDOW_RECORDS = 2_000  # unacknowledged at most, so that a restart is not a flood
RECOVER_SECONDS = 45
END_SECONDS = RECOVER_SECONDS + 10


class Client(threading.Thread):
    """A client that works in a thread of its own from the begin of the context to `end`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let it finish what it has begun, and close its connections."""
        self.done.set()
        self.join(END_SECONDS)


class Load(Client):
    """Produces numbered records to every partition in turn, and keeps what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[KafkaError] = []
        self.sent = 0
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": 120_000,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "socket.timeout.ms": 10_000,
            "log_level": 0,
        }

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition(), message.offset()] = message.value()

    def run(self) -> None:
        with Producer(self._settings) as producer:
            while not self.done.is_set():
                if len(producer) < WINDOW_RECORDS:
                    self._produce(producer)
                else:
                    producer.poll(0.01)
                if self.sent % 40 == 0:
                    time.sleep(0.001)
            if producer.flush(RECOVER_SECONDS):
                producer.purge()  # the end waits for what is left; it counts as failed

    def _produce(self, producer: Producer) -> None:
        for _ in range(PARTITIONS):
            producer.produce(
                self.topic,
                value=f"{self.sent}".encode(),
                partition=self.sent % PARTITIONS,
                on_delivery=self._delivered,
            )
            self.sent += 1
        producer.poll(0)


class Reader(Client):
    """One member of the group: keeps what it has received, and commits after each poll."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self.seen: dict[tuple[int, int], bytes] = {}
        self.wrong: list[str] = []
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
            # What a commit, which this thread waits for, is given at a broker that is paused.
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }

    def run(self) -> None:
        with Consumer(self._settings) as consumer:
            consumer.subscribe([self.topic])
            uncommitted = False
            while not self.done.is_set():
                for message in consumer.consume(500, 0.05):
                    if message.error() is None:
                        uncommitted = True
                        self._keep((message.partition(), message.offset()), message.value())
                if uncommitted:
                    uncommitted = not _commit(consumer)

    def _keep(self, place: tuple[int, int], value: bytes) -> None:
        before = self.seen.setdefault(place, value)
        if before != value:
            self.wrong.append(f"{place} was {before!r}, and later {value!r}")


def _commit(consumer: Consumer) -> bool:
    """Whether it succeeded: the broker may be down, or the group rebalancing."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        return False
    return True


@contextmanager
def at_work(bootstrap: str, topic: str, group: str) -> Iterator[tuple[Load, Reader]]:
    """Both at work; neither is in the end, whatever happened."""
    with Load(bootstrap, topic) as load, Reader(bootstrap, topic, group) as reader:
        yield load, reader


def records_of(bootstrap: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of the topic: offset and value by partition, in order."""
    with Confluent(bootstrap) as driver:
        ends = {part: end for part, (_, end) in driver.bounds(topic, range(PARTITIONS)).items()}
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    finished: set[int] = set()
    deadline = time.monotonic() + RECOVER_SECONDS
    settings = {"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True}
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
        while len(finished) < PARTITIONS and time.monotonic() < deadline:
            for message in consumer.consume(5_000, 0.1):
                if message.error() is None:
                    found[message.partition()].append((message.offset(), message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    finished.add(message.partition())
    assert {part: len(records) for part, records in found.items()} == ends
    return found


def await_progress(load: Load, reader: Reader) -> None:
    """Wait until both have got on, or the producer has failed."""
    produced = len(load.acknowledged) + PROGRESS_RECORDS
    consumed = len(reader.seen) + PROGRESS_RECORDS

    def holds() -> bool:
        if load.failures:
            return True
        return len(load.acknowledged) >= produced and len(reader.seen) >= consumed

    eventually(
        holds,
        lambda: (len(load.acknowledged), len(reader.seen)),
        seconds=RECOVER_SECONDS,
    )


def assert_nothing_lost_or_doubled(load: Load, reader: Reader, bootstrap: str) -> None:
    """End both, and compare what was acknowledged, received and committed with what is stored."""
    load.end()
    assert not load.failures, load.failures[:5]
    assert len(load.acknowledged) == load.sent
    eventually(
        lambda: reader.seen.keys() >= load.acknowledged.keys(),
        lambda: f"{len(reader.seen)} of {len(load.acknowledged)} consumed",
        seconds=RECOVER_SECONDS,
    )
    ends = Counter(partition for partition, _ in load.acknowledged)
    await_committed(bootstrap, reader, ends)
    reader.end()
    assert not reader.wrong

    log = records_of(bootstrap, load.topic)
    stored = {(part, offset): value for part in log for offset, value in log[part]}
    assert stored == load.acknowledged  # none lost, none doubled, each at its acknowledged offset
    for part, records in log.items():
        numbers = [int(value) for _, value in records]
        assert numbers == list(range(part, load.sent, PARTITIONS)), f"order of partition {part}"
    assert {part: len(records) for part, records in log.items()} == ends
    assert {place: reader.seen[place] for place in stored} == stored


def await_committed(bootstrap: str, reader: Reader, ends: Mapping[int, int]) -> None:
    """Wait until the group has committed these offsets: a commit that fails is tried again."""

    def committed() -> dict[int, int]:
        found = driver.committed(reader.group, reader.topic, range(PARTITIONS))
        return {part: offset for part, (offset, _) in found.items()}

    with Confluent(bootstrap) as driver:
        eventually(lambda: committed() == ends, committed, seconds=RECOVER_SECONDS)
