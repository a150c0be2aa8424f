"""Diskless topics through Spark, from the store of a real broker: batch, by time, stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.sessions.source import PenstockSource
from tests.spark.conftest import Topic
from tests.spark.test_stream import Run, offsets

if TYPE_CHECKING:
    from penstock.testing import Broker

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(broker: Broker, spark: SparkSession) -> Iterator[Topic]:
    made = Topic(broker, spark, 3, **{"diskless.enable": "true"})
    yield made
    made.client.close()


def rows(topic: Topic) -> list[tuple[Any, ...]]:
    table = topic.batch().toArrow()
    names = ("partition", "offset", "timestamp", "key", "value")
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def consumed(topic: Topic) -> list[tuple[Any, ...]]:
    names = ("partition", "offset", "timestamp", "key", "value")
    table = topic.client.read_arrow(topic.name, columns=names)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_a_batch_has_the_rows_of_a_consumer(topic: Topic) -> None:
    for first in range(0, 5_000, 1_000):
        topic.write(1_000, first=first)
    found, expected = rows(topic), consumed(topic)
    assert len(found) == 5_000
    assert [row[:2] + row[3:] for row in found] == [row[:2] + row[3:] for row in expected]


def test_ranges_by_time(topic: Topic) -> None:
    """Without a session: what Spark would call."""
    for first in range(0, 5_000, 1_000):
        topic.write(1_000, first=first)
    times = {"startingTimestamp": 1_002_000, "endingTimestamp": 1_003_500}
    source = PenstockSource(topic.options(**times))
    reader = source.reader(source.schema())
    tables = [batch for task in reader.partitions() for batch in reader.read(task)]
    found = sorted(value for batch in tables for value in batch["value"].to_pylist())
    assert found == sorted(b"value %d" % number for number in range(2_000, 3_500))


def test_a_stream_follows_commits(topic: Topic, tmp_path: Path) -> None:
    run = Run(tmp_path / "checkpoint")
    written: list[bytes] = []
    for first in (0, 300):
        written += topic.write(300, first=first)["value"].to_pylist()
        run.drain(topic.stream(maxBytesPerTrigger=3_000))
        assert run.values == sorted(written)
    assert len(run.batches) > 3, "byte limits hold"
    last = offsets(run, max(run.batches))["topics"][topic.name]["partitions"]
    assert sum(place["offset"] for place in last.values()) == 600
