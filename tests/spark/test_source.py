"""Batch reads through Spark, from a real broker."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS, spark_schema
from tests.spark.conftest import Topic

pytestmark = pytest.mark.spark


def values(frame: DataFrame) -> list[bytes]:
    return sorted(row.value for row in frame.select("value").collect())


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_the_schema_is_exact(topic: Topic) -> None:
    topic.write(10)
    assert topic.batch().schema == spark_schema(DEFAULT_COLUMNS)
    assert topic.batch(includeHeaders="true").schema == spark_schema(COLUMN_NAMES)
    assert topic.batch(columns="offset,key").schema == spark_schema(("offset", "key"))


def test_spark_reads_what_was_written(topic: Topic) -> None:
    written = topic.write(10_000)
    read = topic.batch(includeHeaders="true").toArrow().sort_by("timestamp")
    assert read["value"].to_pylist() == written["value"].to_pylist()
    assert read["key"].to_pylist() == written["key"].to_pylist()
    assert set(read["topic"].to_pylist()) == {topic.name}
    assert read["timestamp"][7].as_py() == datetime.datetime.fromtimestamp(1_000.007, datetime.UTC)
    kept = topic.client.read_arrow(topic.name, columns=("offset", "value"))
    assert sorted(
        zip(*read.select(["offset", "value"]).to_pydict().values(), strict=True)
    ) == sorted(zip(*kept.select(["offset", "value"]).to_pydict().values(), strict=True))


def test_headers_and_nulls(topic: Topic) -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    table = pa.table(
        {
            "key": pa.array([None, b"k"]),
            "value": pa.array([b"v", None]),
            "headers": pa.array([pairs, []], header),
        }
    )
    topic.client.write_arrow(topic.name, table, partition=0)
    rows = topic.batch(includeHeaders="true").orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(None, b"v"), (b"k", None)]
    assert [tuple(pair) for pair in rows[0].headers] == [("a", b"1"), ("a", None)]
    assert rows[1].headers == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(topic: Topic, codec: str) -> None:
    written = topic.write(1_000, codec=codec)
    assert values(topic.batch()) == sorted(written["value"].to_pylist())


def test_without_an_admin_address_the_broker_is_fetched_from(topic: Topic) -> None:
    written = topic.write(3_000)
    options = {name: value for name, value in topic.options().items() if "admin" not in name}
    frame = topic.spark.read.format("penstock").options(**options).load()
    assert values(frame) == sorted(written["value"].to_pylist())


def test_the_ends_are_pinned_at_load(topic: Topic) -> None:
    topic.write(100)
    frame = topic.batch()
    topic.write(50, first=100)
    assert frame.count() == 100
    assert frame.union(frame).count() == 200
    assert topic.batch().count() == 150


def test_ranges_by_offset(topic: Topic) -> None:
    topic.write(30, partition=0)
    topic.write(30, first=30, partition=1)
    start = json.dumps({topic.name: {"0": 10, "1": -1, "2": -2}})
    end = json.dumps({topic.name: {"0": 25, "1": -1, "2": -1}})
    frame = topic.batch(startingOffsets=start, endingOffsets=end)
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(10, 25))


def test_ranges_by_time(topic: Topic) -> None:
    topic.write(30, partition=0)
    more = {"startingOffsetsByTimestampStrategy": "latest"}
    frame = topic.batch(startingTimestamp=1_000_010, endingTimestamp=1_000_020, **more)
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(10, 20))


@pytest.mark.parametrize("pushdown", [pytest.param("false", marks=pytest.mark.long), "true"])
def test_a_filter_narrows_no_other_use_of_a_frame(topic: Topic, pushdown: str) -> None:
    """Spark keeps one reading for all uses of a frame, that of the filter it came by last."""
    for partition in range(3):
        topic.write(10, first=10 * partition, partition=partition)
    topic.spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = topic.batch()
        first, other = frame.where("partition = 0"), frame.where("partition = 1 and offset < 5")
        assert first.count() == 10
        assert frame.count() == 30
        both = first.union(other).groupBy("partition").count().collect()
        assert {row.partition: row["count"] for row in both} == {0: 10, 1: 5}
        assert first.alias("a").join(other.alias("b"), "offset").count() == 5
    finally:
        topic.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_more_topics_and_patterns(topic: Topic) -> None:
    topic.write(10)
    topic.client.create_topic(f"{topic.name}.more")
    topic.client.write_arrow(f"{topic.name}.more", pa.table({"value": [b"x"]}))
    both = topic.batch(subscribe=f"{topic.name},{topic.name}.more")
    assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {
        topic.name: 10,
        f"{topic.name}.more": 1,
    }
    options = topic.options() | {"subscribePattern": f"{topic.name}.*"}
    del options["subscribe"]
    assert topic.spark.read.format("penstock").options(**options).load().count() == 11


def test_an_empty_topic(topic: Topic) -> None:
    assert topic.batch().count() == 0
    assert topic.batch().schema == spark_schema(DEFAULT_COLUMNS)


def test_deleted_records(topic: Topic) -> None:
    topic.write(100, partition=0)
    topic.client.delete_records(topic.name, {0: 40})
    assert topic.batch().count() == 60
    start = json.dumps({topic.name: {"0": 10, "1": 0, "2": 0}})
    with pytest.raises(PySparkException, match="offsets 10 to 39 were deleted"):
        topic.batch(startingOffsets=start).count()
    assert topic.batch(startingOffsets=start, failOnDataLoss="false").count() == 60


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxRows": "1"}, "unknown option"),
        ({"subscribe": "nope"}, "has no topic nope"),
        ({"startingOffsets": "{}"}, "lacks"),
        ({"columns": "nope"}, "column 'nope' must be one of"),
    ],
)
def test_mistakes_are_named(topic: Topic, options: dict[str, str], says: str) -> None:
    with pytest.raises(PySparkException, match=says):
        topic.batch(**options).count()
