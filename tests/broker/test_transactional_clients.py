"""Real transactional producers: what they commit is seen, what they abort is not; zombies."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.handlers.running import RunningBroker
from tests.broker.transactions import committed_values

SECONDS = 60.0
PARTITIONS = 3
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"), SETTINGS)
    yield running
    running.close()


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SECONDS)
    return name


def producer(broker: RunningBroker, name: str, **more: Any) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
            **more,
        }
    )
    made.init_transactions(SECONDS)
    return made


def committed(broker: RunningBroker, topic: str, expected: int) -> list[bytes]:
    """Return the values that a reader of committed records gets."""
    return committed_values(broker.bootstrap, topic, PARTITIONS, expected)


def write(made: Producer, topic: str, *values: str) -> None:
    for index, value in enumerate(values):
        made.produce(topic, value.encode(), partition=index % PARTITIONS)


def test_librdkafka_commits_and_aborts(broker: RunningBroker, topic: str) -> None:
    made = producer(broker, f"{topic}-a")
    for round_number in range(5):
        made.begin_transaction()
        write(made, topic, *[f"{round_number}-{number}" for number in range(4)])
        if round_number % 2:
            made.abort_transaction(SECONDS)
        else:
            made.commit_transaction(SECONDS)
    expected = sorted(f"{source}-{number}".encode() for source in (0, 2, 4) for number in range(4))
    assert committed(broker, topic, len(expected)) == expected


def test_librdkafka_is_fenced_by_its_successor(broker: RunningBroker, topic: str) -> None:
    zombie = producer(broker, f"{topic}-z")
    zombie.begin_transaction()
    write(zombie, topic, "zombie", "zombie")
    zombie.flush(SECONDS)
    successor = producer(broker, f"{topic}-z")
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(SECONDS)
    assert fenced.value.args[0].fatal()
    successor.begin_transaction()
    write(successor, topic, "successor")
    successor.commit_transaction(SECONDS)
    assert committed(broker, topic, 1) == [b"successor"]


def test_a_transaction_times_out(broker: RunningBroker, topic: str) -> None:
    slow = producer(broker, f"{topic}-s", **{"transaction.timeout.ms": 1_000})
    slow.begin_transaction()
    write(slow, topic, "never", "never")
    slow.flush(SECONDS)
    other = producer(broker, f"{topic}-o")
    other.begin_transaction()
    write(other, topic, "behind", "behind", "behind")
    other.commit_transaction(SECONDS)
    assert committed(broker, topic, 3) == [b"behind"] * 3
    with pytest.raises(KafkaException):
        slow.commit_transaction(SECONDS)


async def test_aiokafka_commits_and_aborts(broker: RunningBroker, topic: str) -> None:
    made = aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-a"
    )
    await made.start()
    for number in range(4):
        await made.begin_transaction()
        for index in range(PARTITIONS):
            await made.send(topic, f"{number}".encode(), partition=index)
        await (made.abort_transaction() if number % 2 else made.commit_transaction())
    successor = aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-a"
    )
    await made.begin_transaction()
    await made.send_and_wait(topic, b"zombie", partition=0)
    await successor.start()
    with pytest.raises(ProducerFenced):
        await made.commit_transaction()
    await successor.stop()
    await asyncio.gather(made.stop(), return_exceptions=True)
    values = await asyncio.to_thread(committed, broker, topic, 6)
    assert values == [b"0"] * 3 + [b"2"] * 3


def test_kafka_python_commits_and_aborts(broker: RunningBroker, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaProducer
    made = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-k")
    made.init_transactions()
    for number in range(4):
        made.begin_transaction()
        for index in range(PARTITIONS):
            made.send(topic, f"{number}".encode(), partition=index)
        if number % 2:
            made.abort_transaction()
        else:
            made.commit_transaction()
    made.close()
    assert committed(broker, topic, 6) == [b"0"] * 3 + [b"2"] * 3


def test_many_transactions_of_many_producers(broker: RunningBroker, topic: str) -> None:
    """Each transaction writes to all partitions; none is seen in part."""
    producers = [producer(broker, f"{topic}-{number}") for number in range(4)]
    for round_number in range(10):
        for made in producers:
            made.begin_transaction()
        for number, made in enumerate(producers):
            write(made, topic, *[f"{number}.{round_number}"] * PARTITIONS)
        for number, made in enumerate(producers):
            if (number + round_number) % 3:
                made.commit_transaction(SECONDS)
            else:
                made.abort_transaction(SECONDS)
    expected = sorted(
        [f"{number}.{n}".encode() for number in range(4) for n in range(10) if (number + n) % 3]
        * PARTITIONS
    )
    assert committed(broker, topic, len(expected)) == expected
