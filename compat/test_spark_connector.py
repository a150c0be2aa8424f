"""Spark's own Kafka connector: a batch written, a stream read in steps, and read back whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.conftest import missing
from compat.drivers import Driver
from compat.parts import PartMissing, jars
from compat.scenes import plain_records, with_offsets
from compat.servers import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session with the connector's jars.

    A session that is there already (another suite's) is stopped: jars are fixed when its Java
    machine starts, so the connector's go in through a class loader of its own where that ran.
    """
    try:
        paths = [str(path) for path in jars("spark")]
    except PartMissing as error:
        missing(error)
    sql = pytest.importorskip("pyspark.sql")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse = tmp_path_factory.mktemp("spark")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .appName("compat")
        .config("spark.jars", ",".join(paths))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse / "warehouse"))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


def _read(spark: Any, server: Server, topic: str, **options: str) -> Any:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
    return reader.option("subscribe", topic).option("includeHeaders", "true").options(**options)


def test_reads_what_others_wrote(
    spark: Any, server: Server, helper: Driver, topic: str, now_ms: int
) -> None:
    expected = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        sent = plain_records(120, start=120 * number, timestamp=now_ms)
        expected += with_offsets(sent, helper.produce(topic, sent, codec=codec))
    rows = _read(spark, server, topic).load().collect()
    found = {
        (row.partition, row.offset): (
            bytes(row.key),
            bytes(row.value),
            [(header.key, bytes(header.value)) for header in row.headers],
            int(row.timestamp.timestamp() * 1000),
        )
        for row in rows
    }
    assert found == {
        (record.partition, record.offset): (
            record.key,
            record.value,
            list(record.headers),
            record.timestamp,
        )
        for record in expected
    }


def test_reads_by_offsets_and_by_time(
    spark: Any, server: Server, helper: Driver, topic: str, now_ms: int
) -> None:
    start = now_ms - 1_000_000
    sent = plain_records(100, partitions=1, timestamp=start, step_ms=10)
    helper.produce(topic, sent)
    places = f'{{"{topic}": {{"0": 40, "1": -2, "2": -2, "3": -2, "4": -2, "5": -2}}}}'
    assert _read(spark, server, topic, startingOffsets=places).load().count() == 60
    by_time = {
        "startingTimestamp": str(start + 333),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": str(start + 500),
    }
    rows = _read(spark, server, topic, **by_time).load().collect()
    assert sorted(row.offset for row in rows) == list(range(34, 50))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_writes_a_batch(spark: Any, server: Server, helper: Driver, topic: str, codec: str) -> None:
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as key",
        "concat('value ', id) as value",
        "cast(id % 6 as int) as partition",
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
    writer.option("kafka.compression.type", codec).option("topic", topic).save()
    read = helper.consume(topic, dict.fromkeys(range(6), 0), 1000)
    assert {(record.key, record.value, record.partition) for record in read} == {
        (str(number).encode(), f"value {number}".encode(), number % 6) for number in range(1000)
    }


def test_streams_from_topic_to_topic(
    spark: Any, server: Server, helper: Driver, topic: str, now_ms: int, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    helper.create_topic(target, 2, {})
    expected = []
    for number in range(2):
        expected += plain_records(300, start=300 * number, timestamp=now_ms)
        helper.produce(topic, expected[300 * number :])
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", server.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "200")
            .load()
        )
        query = (
            stream.selectExpr("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", server.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
    read = helper.consume(target, {0: 0, 1: 0}, len(expected))
    assert sorted(record.value or b"" for record in read) == sorted(
        record.value or b"" for record in expected
    )
