"""Fixtures of the sink's tests: a target topic, frames of records, and a reader of the log."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from tests.spark.conftest import Topic

if TYPE_CHECKING:
    from penstock.testing import Broker

PARTITIONS = 5
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
Record = tuple[Any, ...]


class Target(Topic):
    """A topic that a sink writes to."""

    def addresses(self) -> dict[str, Any]:
        return {"bootstrap": self.broker.bootstrap, "admin_url": self.broker.admin_url}

    def sink_options(self, **more: object) -> dict[str, str]:
        given = {
            "bootstrap": self.broker.bootstrap,
            "penstock.admin.url": self.broker.admin_url,
            "topic": self.name,
        }
        return given | {name: str(value) for name, value in more.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Every record, by partition and offset."""
        found: list[dict[str, Any]] = self.client.read_arrow(self.name, columns=COLUMNS).to_pylist()
        return found

    def records(self) -> Counter[Record]:
        """The multiset of records: key, value, milliseconds, headers, partition."""
        return Counter(
            record_of(row["key"], row["value"], row["timestamp"], row["headers"], row["partition"])
            for row in self.rows()
        )

    def ends(self) -> dict[int, int]:
        return dict(self.client.list_offsets(self.name, "latest"))

    def count(self) -> int:
        return sum(self.ends().values())

    def sink(self, query: str) -> dict[str, Any]:
        """Return the broker's row of an application."""
        path = urllib.parse.quote(query, safe="")
        with urllib.request.urlopen(f"{self.broker.admin_url}/v1/sinks/{path}") as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def record_of(
    key: bytes | None,
    value: bytes | None,
    timestamp: datetime | int | None,
    headers: Any,
    partition: int | None,
) -> Record:
    if isinstance(timestamp, datetime):
        stamped = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        timestamp = round(stamped.timestamp() * 1_000)
    pairs = tuple((pair["key"], pair["value"]) for pair in headers or ())
    return (key, value, timestamp, pairs, partition)


def numbered(spark: SparkSession, count: int, *, first: int = 0, tasks: int = 2) -> DataFrame:
    """Rows with a key, a value that says their number, a time and headers; some of them null."""
    number = F.col("id")
    headers = F.array(
        F.struct(F.lit("number").alias("key"), number.cast("string").cast("binary").alias("value")),
        F.struct(F.lit("empty").alias("key"), F.lit(None).cast("binary").alias("value")),
    )
    return spark.range(first, first + count, numPartitions=tasks).select(
        F.when(number % 7 != 0, F.concat(F.lit("key "), number % 40)).alias("key"),
        F.when(number % 11 != 0, F.concat(F.lit("value "), number)).alias("value"),
        F.timestamp_millis(number + 1_000_000).alias("timestamp"),
        F.when(number % 3 == 0, headers).alias("headers"),
    )


@pytest.fixture
def target(broker: Broker, spark: SparkSession) -> Iterator[Target]:
    made = Target(broker, spark, partitions=PARTITIONS)
    yield made
    made.client.close()
