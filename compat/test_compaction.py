"""Compacted topics as a real client sees them, over a broker that is killed amid passes.

What a consumer knows that reads all of a topic, the last value of each key, is what the producer
was told of, and nothing that it deleted. Kafka's own tool finds nothing wrong with the files.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from benchmarks.peers.load import create_topic
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.storage.compaction.keyed import Keyed, Pair

from compat.security import ADMIN, read, scenario, security_of, write
from compat.servers import PenstockProcess
from compat.test_log_files import checked_by_kafka, verified

TOPIC = "last-values"
KEYS = 200
ROUNDS = 3
RECORDS = 6_000
COMPACTED_BYTES = 400_000
"""Of two million that are sent."""
SETTINGS = {
    "log.cleaner.backoff.ms": "50",
    "log.checkpoint.interval.ms": "200",
    "log.cleaner.io.max.bytes.per.second": "4000000",
    "log.cleaner.io.buffer.size": "65536",
}
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "100000",
    "delete.retention.ms": "3600000",
}


@pytest.mark.timeout(300)
def test_the_files_of_a_compacted_log_are_kafkas(tmp_path: Path) -> None:
    place = Keyed(tmp_path, log_cleaner_backoff_ms=0)
    place.configure(segment_bytes=4000, index_interval_bytes=500)
    for number in range(120):
        some: list[Pair] = [
            (b"key %d" % (number * n % 37), None if n % 5 == 4 else b"value %d" % number * n)
            for n in range(1, 8)
        ]
        place.send(some, codec=number % 5, producer_id=number % 3 - 1)
        if number % 4 == 0:
            place.send(some[:2], producer_id=7 + number % 2, transactional=True)
        if number % 8 == 4:
            place.end(7, commits=number % 16 == 4)
        if number % 50 == 49:
            place.compact()
            place.harness.clock.ms += 2_000
    place.end(7, commits=False)
    place.end(8, commits=True)
    place.compact()
    place.check()
    place.harness.store.close()
    checked_by_kafka(tmp_path / "orders-0", gaps=True)
    verified(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_key_is_lost_or_comes_back_when_a_broker_is_killed(tmp_path: Path) -> None:
    dice = random.Random(7)
    known: dict[bytes, bytes] = {}
    broker = PenstockProcess(tmp_path, configs=SETTINGS).start()
    try:
        create_topic(broker.bootstrap, TOPIC, 1, CONFIGS, security_of(ADMIN).options())
        for number in range(ROUNDS):
            send(broker.bootstrap, number, dice, known)
            time.sleep(dice.uniform(0.1, 0.6))  # somewhere in a pass
            broker.kill()
            broker.start()
            assert view(broker.bootstrap) == known
        directory = tmp_path / "data" / "log" / f"{TOPIC}-0"
        deadline = time.monotonic() + 60
        while size_of(directory) > COMPACTED_BYTES:
            assert time.monotonic() < deadline, "nothing was compacted"
            time.sleep(0.1)
        assert view(broker.bootstrap) == known
    finally:
        broker.stop()
    checked_by_kafka(directory, gaps=True)
    verified(tmp_path / "data")


def size_of(directory: Path) -> int:
    total = 0
    for path in directory.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # it was compacted a moment ago
            continue
    return total


def send(bootstrap: str, number: int, dice: random.Random, known: dict[bytes, bytes]) -> None:
    """Records of keys drawn by the dice, one in ten a tombstone; all acknowledged."""
    refused: list[object] = []
    producer = Producer(
        {
            **scenario(bootstrap, write(TOPIC)),
            "linger.ms": 2,
            "batch.size": 16_000,
            "compression.type": ("none", "lz4")[number % 2],
            "on_delivery": lambda error, message: refused.extend([error] if error else []),
        }
    )
    for place in range(RECORDS):
        key = b"key %d" % dice.randrange(KEYS)
        value = None if dice.random() < 0.1 else b"%d-%d-" % (number, place) + b"x" * 100
        producer.produce(TOPIC, value, key)
        known.pop(key, None)
        if value is not None:
            known[key] = value
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not refused, refused[0]


def view(bootstrap: str) -> dict[bytes, bytes]:
    """The last value of each key, for who reads from the beginning to the end."""
    consumer = Consumer(
        {
            **scenario(bootstrap, *read(TOPIC, "none")),
            "group.id": "none",
            "enable.auto.commit": False,
        }
    )
    found: dict[bytes, bytes] = {}
    where = TopicPartition(TOPIC, 0, 0)
    try:
        _, end = consumer.get_watermark_offsets(where, timeout=30)
        consumer.assign([where])
        deadline = time.monotonic() + 60
        while consumer.position([where])[0].offset < end:
            assert time.monotonic() < deadline, "the end is never reached"
            for message in consumer.consume(1000, timeout=0.2):
                assert message.error() is None, message.error()
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                found.pop(key, None)
                if value is not None:
                    found[key] = value
    finally:
        consumer.close()
    return found
