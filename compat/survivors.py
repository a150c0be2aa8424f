"""A producer and a consumer group that go on while brokers die, and what must be true afterwards.

An idempotent producer sends numbered records to every partition in turn and keeps what was
acknowledged; one member of a group keeps what it received, and commits after each poll.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from compat.drivers import eventually
from compat.drivers.confluent import Confluent

PARTITIONS = 4
PROGRESS_RECORDS = 400
WINDOW_RECORDS = 2_000  # unacknowledged at most, so that a restart is not a flood
RECOVER_SECONDS = 45


class Load(threading.Thread):
    """Produces numbered records to every partition in turn, and keeps what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[KafkaError] = []
        self.sent = 0
        self.done = threading.Event()
        self._producer = Producer(
            {
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
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition(), message.offset()] = message.value()

    def run(self) -> None:
        while not self.done.is_set():
            if len(self._producer) < WINDOW_RECORDS:
                for _ in range(PARTITIONS):
                    value = f"{self.sent}".encode()
                    self._producer.produce(
                        self.topic,
                        value=value,
                        partition=self.sent % PARTITIONS,
                        on_delivery=self._delivered,
                    )
                    self.sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.01)
            if self.sent % 40 == 0:
                time.sleep(0.001)
        self._producer.flush(RECOVER_SECONDS)


class Reader(threading.Thread):
    """One member of the group: commits after each poll, and keeps what it has received."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.group = group
        self.seen: dict[tuple[int, int], bytes] = {}
        self.wrong: list[str] = []
        self.done = threading.Event()
        self._consumer = Consumer(
            {
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
        )

    def run(self) -> None:
        self._consumer.subscribe([self.topic])
        while not self.done.is_set():
            received = False
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    received = True
                    self._keep((message.partition(), message.offset()), message.value())
            if received:
                self._commit()
        self._commit()
        self._consumer.close()

    def _keep(self, place: tuple[int, int], value: bytes) -> None:
        before = self.seen.setdefault(place, value)
        if before != value:
            self.wrong.append(f"{place} was {before!r}, and later {value!r}")

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the broker is down, or the group is rebalancing: the next commit covers it


def records_of(bootstrap: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of the topic: offset and value by partition, in order."""
    driver = Confluent(bootstrap)
    ends = {part: end for part, (_, end) in driver.bounds(topic, range(PARTITIONS)).items()}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    finished: set[int] = set()
    deadline = time.monotonic() + RECOVER_SECONDS
    while len(finished) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(5_000, 0.1):
            if message.error() is None:
                found[message.partition()].append((message.offset(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                finished.add(message.partition())
    consumer.close()
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
    load.done.set()
    load.join(RECOVER_SECONDS + 10)
    assert not load.failures, load.failures[:5]
    assert len(load.acknowledged) == load.sent
    eventually(
        lambda: reader.seen.keys() >= load.acknowledged.keys(),
        lambda: f"{len(reader.seen)} of {len(load.acknowledged)} consumed",
        seconds=RECOVER_SECONDS,
    )
    reader.done.set()
    reader.join(RECOVER_SECONDS)
    assert not reader.wrong

    log = records_of(bootstrap, load.topic)
    stored = {(part, offset): value for part in log for offset, value in log[part]}
    assert stored == load.acknowledged  # none lost, none doubled, each at its acknowledged offset
    for part, records in log.items():
        numbers = [int(value) for _, value in records]
        assert numbers == list(range(part, load.sent, PARTITIONS)), f"order of partition {part}"
    assert {place: reader.seen[place] for place in stored} == stored
    committed = Confluent(bootstrap).committed(reader.group, load.topic, range(PARTITIONS))
    ends = {part: (len(records), "") for part, records in log.items()}
    assert {part: (at, "") for part, (at, _) in committed.items()} == ends
