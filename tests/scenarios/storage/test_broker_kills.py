"""A real broker that is killed at a system call, or whose disk fails a sync: with a plain topic,
one of transactions, a tiered one whose segments are copied to the archive, and dropped, and two
that are compacted, one of them diskless."""

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
    "log.cleaner.backoff.ms": "20",
    "diskless.compaction.interval.ms": "50",
    "diskless.consolidation.min.age.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "internal.segment.bytes": "50000",
    "local.retention.bytes": "60000",
    "file.delete.delay.ms": "0",
    "index.interval.bytes": "1000",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "30000",
    "file.delete.delay.ms": "0",
}
TOPICS = {
    "plain": {"internal.segment.bytes": "50000"},
    "tiered": TIERED,
    "counted": {},
    "compacted": COMPACTED,
    "diskless": {**COMPACTED, "diskless.enable": "true"},
}
WHOLE, LATEST = ("plain", "tiered"), ("compacted", "diskless")
"""Topics that keep all records, and those that keep the latest of each key."""
KEYS = 23
CALLS = {
    "pwritev2": 300, "fdatasync": 200, "fsync": 40, "rename": 20, "openat": 60, "unlink": 8,
    "write": 150, "linkat": 12,
}  # fmt: skip
RECORDS = 6_000
SECONDS = 60.0


Row = tuple[bytes | None, bytes | None]
"""A key and a value."""


class Load:
    """Return the responses to producers until the broker was gone."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, dict[int, Row]] = {topic: {} for topic in TOPICS}
        self.sent: dict[str, set[Row]] = {topic: set() for topic in TOPICS}
        self.committed: set[Row] = set()
        self.number = 0

    def answered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            row = message.key(), message.value()
            self.acknowledged[str(message.topic())][int(message.offset() or 0)] = row

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
        rows: list[Row] = []
        for _ in range(20):
            self.number += 1
            value = b"%d;" % self.number + b"v" * 600
            key = b"%d" % (self.number % KEYS)
            deletes = self.number % 5 == 0
            for topic in (*WHOLE, *LATEST):
                row = key, None if deletes and topic in LATEST else value
                self.sent[topic].add(row)
                plain.produce(topic, row[1], row[0], on_delivery=self.answered)
            self.sent["counted"].add((None, value))
            rows.append((None, value))
            counted.produce("counted", value)
            plain.poll(0)
        plain.flush(5)
        counted.commit_transaction(5.0)
        self.committed.update(rows)


def rows_of(bootstrap: str, topic: str) -> dict[int, Row]:
    """Return all committed records of a topic by offset, from its start."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
         "isolation.level": "read_committed", "enable.auto.commit": False}
    )  # fmt: skip
    found: dict[int, Row] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(SECONDS)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found[int(message.offset() or 0)] = message.key(), message.value()
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


def check_whole(found: dict[int, Row], acknowledged: dict[int, Row]) -> None:
    """Everything that was acknowledged is there, and nothing twice."""
    lost = {at for at, row in acknowledged.items() if found.get(at) != row}
    assert not lost, f"offsets are lost: {sorted(lost)[:5]} of {len(found)}"
    assert len(set(found.values())) == len(found)


def check_latest(found: dict[int, Row], acknowledged: dict[int, Row]) -> None:
    """Check that each key's latest acknowledged record, or a later one, is there; or it was
    deleted, and nothing older is there."""
    newest = {row[0]: at for at, row in sorted(found.items())}
    for key, at in {row[0]: at for at, row in sorted(acknowledged.items())}.items():
        there, row = newest.get(key, -1), acknowledged[at]
        gone = there < 0 and row[1] is None
        assert gone or there > at or found.get(there) == row, (
            f"key {key!r} has {found.get(there)} of offset {there}, not {row} of {at}"
        )


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
    for topic in (*WHOLE, *LATEST):
        print(f"{fault}: {topic}")
        found = rows_of(broker.bootstrap, topic)
        assert set(found.values()) <= load.sent[topic]
        check = check_whole if topic in WHOLE else check_latest
        check(found, load.acknowledged[topic])
    counted = set(rows_of(broker.bootstrap, "counted").values())
    assert load.committed <= counted <= load.sent["counted"]
    return died


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_broker_is_killed_at_a_call(tmp_path: Path) -> None:
    load = Load()
    with started(tmp_path) as broker:
        assert round_of(broker, load, "fdatasync:signal=KILL:when=30")


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
        for topic in LATEST:
            assert len(rows_of(broker.bootstrap, topic)) < len(load.acknowledged[topic]) / 2
    assert kills >= 3 * len(CALLS)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_broker_whose_sync_fails(tmp_path: Path, call: str) -> None:
    load = Load()
    with started(tmp_path) as broker:
        for when in (1, 3, 10, 25):
            round_of(broker, load, f"{call}:error=EIO:when={when}")
