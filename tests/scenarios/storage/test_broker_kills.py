"""A real broker that is killed at a system call, or whose disk fails a sync: with a plain topic,
one of transactions, and a tiered one whose segments are copied to the archive, and dropped."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from compat.servers import PenstockProcess
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.scenarios.storage.strace import inject

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "20",
    "log.retention.check.interval.ms": "50",
    "log.checkpoint.interval.ms": "100",
    "diskless.sweep.interval.ms": "50",
    "diskless.sweep.unreferenced.grace.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "internal.segment.bytes": "50000",
    "local.retention.bytes": "60000",
    "file.delete.delay.ms": "0",
    "index.interval.bytes": "1000",
}
TOPICS = {"plain": {"internal.segment.bytes": "50000"}, "tiered": TIERED, "counted": {}}
CALLS = {
    "pwritev": 300, "fdatasync": 200, "fsync": 40, "rename": 20, "openat": 60, "unlink": 8,
    "write": 150,
}  # fmt: skip
RECORDS = 6_000
SECONDS = 60.0


class Load:
    """What producers were told until the broker was gone."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        self.sent: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.committed: set[bytes] = set()
        self.number = 0

    def answered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value = message.value()
            assert value is not None
            self.acknowledged[str(message.topic())][int(message.offset() or 0)] = value

    def produce(self, bootstrap: str, gone: threading.Event) -> None:
        """Until the broker is gone, or takes no more, or all is sent."""
        quick = {"bootstrap.servers": bootstrap, "linger.ms": 0, "reconnect.backoff.max.ms": 100}
        plain = Producer({**quick, "enable.idempotence": True, "message.timeout.ms": 4_000})
        counted = Producer(
            {**quick, "transactional.id": "counted", "transaction.timeout.ms": 4_000}
        )
        try:
            counted.init_transactions(5.0)
            for _ in range(RECORDS // 20):
                if gone.is_set():
                    break
                self._some(plain, counted)
        except KafkaException:
            gone.set()
        plain.flush(0.1 if gone.is_set() else 5)

    def _some(self, plain: Producer, counted: Producer) -> None:
        counted.begin_transaction()
        values = []
        for _ in range(20):
            self.number += 1
            value = b"%d;" % self.number + b"v" * 600
            for topic in ("plain", "tiered"):
                self.sent[topic].add(value)
                plain.produce(topic, value, on_delivery=self.answered)
            self.sent["counted"].add(value)
            values.append(value)
            counted.produce("counted", value)
            plain.poll(0)
        plain.flush(5)
        counted.commit_transaction(5.0)
        self.committed.update(values)


def values_of(bootstrap: str, topic: str) -> dict[int, bytes]:
    """All committed records of a topic, by offset, from its start."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
         "isolation.level": "read_committed", "enable.auto.commit": False}
    )  # fmt: skip
    found: dict[int, bytes] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(SECONDS)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            value = message.value()
            assert value is not None
            found[int(message.offset() or 0)] = value
    finally:
        consumer.close()
    raise AssertionError(f"{topic} did not end within {SECONDS} s")


@contextmanager
def started(directory: Path) -> Iterator[PenstockProcess]:
    """A broker with the topics, which is ended whatever happens."""
    broker = PenstockProcess(directory, configs=SETTINGS).start()
    try:
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics(topics).values():
            future.result(SECONDS)
        yield broker
    finally:
        broker.kill()


def round_of(broker: PenstockProcess, load: Load, fault: str) -> bool:
    """Work under a fault, start again, and look at everything; whether the broker was killed."""
    tracer = inject(broker.pid, fault)
    gone = threading.Event()
    working = threading.Thread(target=load.produce, args=(broker.bootstrap, gone))
    working.start()
    while working.is_alive() and broker.alive:
        working.join(0.05)
    died = not broker.alive
    gone.set()
    working.join(SECONDS)
    assert not working.is_alive()
    broker.kill()
    tracer.wait()
    broker.start()
    for topic in ("plain", "tiered"):
        found = values_of(broker.bootstrap, topic)
        lost = {at for at, value in load.acknowledged[topic].items() if found.get(at) != value}
        assert not lost, f"{fault}: {topic} has lost offsets {sorted(lost)[:5]} of {len(found)}"
        assert set(found.values()) <= load.sent[topic]
        assert len(set(found.values())) == len(found)
    counted = set(values_of(broker.bootstrap, "counted").values())
    assert load.committed <= counted <= load.sent["counted"]
    return died


@pytest.mark.timeout(120)
def test_a_broker_is_killed_at_a_call(tmp_path: Path) -> None:
    load = Load()
    with started(tmp_path) as broker:
        for fault in ("fdatasync:signal=KILL:when=30", "rename:signal=KILL:when=4"):
            assert round_of(broker, load, fault)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_broker_is_killed_at_every_kind_of_call(tmp_path: Path) -> None:
    dice, load, kills = random.Random(5), Load(), 0
    with started(tmp_path) as broker:
        for turn in range(6 * len(CALLS)):
            call = [*CALLS][turn % len(CALLS)]
            kills += round_of(
                broker, load, f"{call}:signal=KILL:when={dice.randint(1, CALLS[call])}"
            )
    assert kills >= 3 * len(CALLS)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_broker_whose_sync_fails(tmp_path: Path, call: str) -> None:
    load = Load()
    with started(tmp_path) as broker:
        for when in (1, 3, 10, 25):
            round_of(broker, load, f"{call}:error=EIO:when={when}")
