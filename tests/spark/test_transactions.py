"""Transactions in Spark: by default only committed records are read, on every path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.client import TransactionalProducer
from tests.spark.conftest import Topic, until
from tests.spark.test_stream import Run

if TYPE_CHECKING:
    from penstock.testing import Broker

pytestmark = pytest.mark.spark

ROUNDS = 6
ABORTED = 3
"""Every third transaction is aborted."""


def batch(number: int, count: int) -> pa.Table:
    return pa.table({"value": [b"%d-%d" % (number, index) for index in range(count)]})


def fill(topic: Topic, producer: TransactionalProducer, count: int) -> list[bytes]:
    """Transactions over all partitions, with plain records between; the values that count."""
    counting: list[bytes] = []
    for number in range(ROUNDS):
        written = batch(number, count)
        producer.begin()
        for low in range(0, count, 100):
            producer.write_arrow(topic.name, written.slice(low, 100), partition=low // 100 % 3)
        if number % ABORTED:
            producer.commit()
            counting += written["value"].to_pylist()
        else:
            producer.abort()
        plain = pa.table({"value": [b"plain %d" % number]})
        topic.client.write_arrow(topic.name, plain, partition=number % 3)
        counting += plain["value"].to_pylist()
    return sorted(counting)


@pytest.fixture(
    params=[
        pytest.param("false", id="local"),
        pytest.param("true", id="diskless", marks=pytest.mark.long),
    ]
)
def topic(broker: Broker, spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Topic]:
    made = Topic(broker, spark, 3, **{"diskless.enable": request.param})
    yield made
    made.client.close()


@pytest.fixture
def producer(topic: Topic) -> TransactionalProducer:
    return topic.client.transactional(f"of-{topic.name}")


@pytest.mark.parametrize("direct", [True, pytest.param(False, marks=pytest.mark.long)])
def test_batches(topic: Topic, producer: TransactionalProducer, direct: bool) -> None:
    """From files as they lie, or from what the broker serves."""
    counting = fill(topic, producer, 2_000)
    road = {} if direct else {"penstock.admin.url": ""}
    options = {name: value for name, value in (topic.options() | road).items() if value}

    def values(**more: str) -> list[bytes]:
        frame = topic.spark.read.format("penstock").options(**options | more).load()
        return sorted(row.value for row in frame.select("value").collect())

    producer.begin()
    producer.write_arrow(topic.name, batch(99, 30))
    assert values() == counting
    everything = values(**{"kafka.isolation.level": "read_uncommitted"})
    assert len(everything) == ROUNDS * 2_001 + 30
    producer.commit()
    # A commit is answered when it is decided: its markers follow, as in Kafka.
    decided = sorted([*counting, *batch(99, 30)["value"].to_pylist()])
    until("what was committed is read", lambda: values() == decided)


@pytest.mark.long
def test_streams(topic: Topic, producer: TransactionalProducer, tmp_path: Path) -> None:
    run = Run(tmp_path / "checkpoint")
    counting = fill(topic, producer, 300)
    producer.begin()
    producer.write_arrow(topic.name, batch(99, 30), partition=0)
    producer.write_arrow(topic.name, batch(98, 30), partition=1)
    run.drain(topic.stream())
    assert run.values == counting
    producer.abort()
    topic.write(3, partition=0)
    run.batches.clear()

    def read() -> list[bytes]:
        run.drain(topic.stream())
        return run.values

    until("the aborted one is passed", lambda: read() == [b"value 0", b"value 1", b"value 2"])
    producer.begin()
    producer.write_arrow(topic.name, batch(97, 10), partition=2)
    run.batches.clear()
    run.drain(topic.stream(isolationLevel="read_uncommitted"))
    assert len(run.values) == 10
    run.drain(topic.stream())
    assert len(run.values) == 10
    producer.commit()
    topic.write(1, partition=2)
    until("what was committed is passed", lambda: len(read()) == 11)
