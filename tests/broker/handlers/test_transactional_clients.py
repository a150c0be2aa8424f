"""Real clients read, transform and write in transactions, and each record counts once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.handlers.running import RunningBroker

SECONDS = 60.0
RECORDS = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"))
    yield running
    running.close()


@pytest.fixture
def topics(broker: RunningBroker) -> tuple[str, str]:
    """Create a topic with numbers, and an empty one."""
    suffix = uuid.uuid4().hex[:8]
    names = f"numbers-{suffix}", f"squares-{suffix}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        made.result(SECONDS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(names[0], value=str(number), partition=number % 2)
    assert producer.flush(SECONDS) == 0
    return names


def consumer(broker: RunningBroker, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            "log_level": 0,
        }
    )


def producer(broker: RunningBroker, transactional_id: str) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "log_level": 0,
        }
    )
    made.init_transactions(SECONDS)
    return made


class Squares:
    """Reads numbers and writes their squares, each batch in a transaction."""

    def __init__(self, broker: RunningBroker, names: tuple[str, str], name: str) -> None:
        self.target = names[1]
        self.consumer = consumer(broker, "squares-of-" + names[0])
        self.consumer.subscribe([names[0]])
        self.producer = producer(broker, f"{name}-{names[0]}")

    def write(self) -> int:
        """A batch in an open transaction, with its offsets; how many records."""
        batch = self.consumer.consume(30, timeout=1.0)
        if not batch:
            return 0
        self.producer.begin_transaction()
        for message in batch:
            assert message.error() is None
            self.producer.produce(self.target, value=str(int(message.value()) ** 2))
        self.producer.send_offsets_to_transaction(
            self.consumer.position(self.consumer.assignment()),
            self.consumer.consumer_group_metadata(),
            SECONDS,
        )
        return len(batch)

    def rewind(self) -> None:
        """Read again from what is committed."""
        places = self.consumer.committed(self.consumer.assignment(), SECONDS)
        for place in places:
            self.consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))


def read(broker: RunningBroker, topic: str, count: int) -> list[int]:
    reader = consumer(broker, f"reader-{uuid.uuid4().hex[:8]}")
    reader.subscribe([topic])
    found: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += [int(message.value()) for message in reader.consume(count, timeout=0.5)]
    found += [int(message.value()) for message in reader.consume(count, timeout=0.5)]
    reader.close()
    return sorted(found)


def test_each_record_counts_once_over_aborts_and_successors(
    broker: RunningBroker, topics: tuple[str, str]
) -> None:
    done, round_number = 0, 0
    squares = Squares(broker, topics, "one")
    zombies: list[Squares] = []
    while done < RECORDS:
        count = squares.write()
        round_number += 1
        if count and round_number % 3 == 1:
            squares.producer.abort_transaction(SECONDS)
            squares.rewind()
        elif count and round_number % 5 == 2 and len(zombies) < 2:
            # It falls silent in the middle; another one takes its transactional id over.
            zombies.append(squares)
            squares.consumer.close()
            squares = Squares(broker, topics, "one")
        elif count:
            squares.producer.commit_transaction(SECONDS)
            done += count
    squares.consumer.close()
    assert len(zombies) == 2
    for zombie in zombies:
        with pytest.raises(KafkaException) as caught:
            zombie.producer.commit_transaction(SECONDS)
        assert caught.value.args[0].fatal()
    assert read(broker, topics[1], RECORDS) == [number**2 for number in range(RECORDS)]


def test_a_member_that_was_replaced_commits_nothing(
    broker: RunningBroker, topics: tuple[str, str]
) -> None:
    """KIP-447: ids are each producer's own, and the group's generation fences."""
    first = Squares(broker, topics, "first")
    assert first.write()
    metadata = first.consumer.consumer_group_metadata()
    first.producer.abort_transaction(SECONDS)
    first.consumer.close()
    following = Squares(broker, topics, "following")
    deadline = time.monotonic() + SECONDS
    while not following.write() and time.monotonic() < deadline:
        pass
    first.producer.begin_transaction()
    first.producer.produce(topics[1], value="-1")
    with pytest.raises(KafkaException) as caught:
        first.producer.send_offsets_to_transaction(
            [TopicPartition(topics[0], 0, 100)], metadata, SECONDS
        )
    assert caught.value.args[0].txn_requires_abort()
    first.producer.abort_transaction(SECONDS)
    following.producer.commit_transaction(SECONDS)
    following.consumer.close()


def test_transactions_outlive_a_restart(tmp_path: Path) -> None:
    running = RunningBroker(tmp_path)
    try:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(SECONDS)
        before = producer(running, "tx")
        before.begin_transaction()
        before.produce("t", value="1")
        before.commit_transaction(SECONDS)
        before.begin_transaction()
        before.produce("t", value="2")
        assert before.flush(SECONDS) == 0
        running.restart()
        after = producer(running, "tx")
        after.begin_transaction()
        after.produce("t", value="3")
        after.commit_transaction(SECONDS)
        assert read(running, "t", 2) == [1, 3]
    finally:
        running.close()
