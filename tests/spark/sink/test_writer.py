"""`format("penstock")` as a sink: batch writes and streams."""

from __future__ import annotations

import urllib.error
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.spark.errors import InvalidOption, InvalidRows
from penstock.spark.sessions.source import PenstockSource
from penstock.spark.sink.options import check
from penstock.spark.sink.writer import LogBatchWriter, LogStreamWriter, StagedTask
from tests.spark.conftest import Topic
from tests.spark.sink.conftest import Target, numbered, record_of

pytestmark = [pytest.mark.spark]


def save(frame: DataFrame, target: Target, **more: object) -> None:
    options = target.sink_options(**more)
    frame.write.format("penstock").mode("append").options(**options).save()


def copy(topic: Topic, target: Target, folder: Path, **more: object) -> StreamingQuery:
    """Copy what is new in a topic, headers and all, and end."""
    stream = topic.stream(includeHeaders=True, maxRecordsPerTrigger=200)
    query = (
        stream.withColumn("partition", F.col("partition").cast("int"))
        .writeStream.format("penstock")
        .options(**target.sink_options(**more))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


def test_a_frame_is_one_commit_and_forgotten(spark: SparkSession, target: Target) -> None:
    frame = numbered(spark, 900, tasks=3).withColumn("partition", F.lit(3))
    save(frame, target, codec="lz4")
    assert target.records() == Counter(
        record_of(
            None if row.key is None else row.key.encode(),
            None if row.value is None else row.value.encode(),
            row.timestamp,
            [header.asDict() for header in row.headers or ()],
            3,
        )
        for row in frame.collect()
    )
    save(frame, target)  # another write, another commit
    assert target.count() == 1_800
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        target.sink("write")
    caught.value.close()


def test_a_numbered_batch_write_is_repeated_at_will(spark: SparkSession, target: Target) -> None:
    for _ in range(2):
        save(numbered(spark, 70), target, application=target.name, batchId=20260101)
    assert target.count() == 70
    save(numbered(spark, 30), target, application=target.name, batchId=20260102)
    assert target.count() == 100
    assert target.sink(target.name)["batch"] == 20260102


def test_a_stream_is_copied_once(topic: Topic, target: Target, tmp_path: Path) -> None:
    written = topic.write(700)
    query = copy(topic, target, tmp_path / "checkpoint")
    wanted = Counter(
        zip(*(written[name].to_pylist() for name in written.schema.names), strict=True)
    )
    found = Counter((row["key"], row["value"], row["timestamp"]) for row in target.rows())
    assert found == wanted
    source = {row.value: row.partition for row in topic.batch(columns="value,partition").collect()}
    assert all(source[row["value"]] == row["partition"] for row in target.rows())
    kept = target.sink(f"spark/{query.id}")
    assert (kept["owner"], kept["state"]) == (str(query.id), "done")
    topic.write(50, first=700)
    assert copy(topic, target, tmp_path / "checkpoint").id == query.id
    assert target.count() == 750


@pytest.mark.long
def test_an_application_refuses_another_checkpoint(
    topic: Topic, target: Target, tmp_path: Path
) -> None:
    topic.write(30)
    copy(topic, target, tmp_path / "one", application=target.name)
    with pytest.raises(Exception, match="producer_fenced"):  # Spark's own exception
        copy(topic, target, tmp_path / "two", application=target.name)
    assert target.count() == 30


def test_abort_after_the_commit_takes_nothing_back(spark: SparkSession, target: Target) -> None:
    # Spark does this when `commit` was carried out and then raised.
    options = check(topic=target.name, application=target.name, batch_id=1, **target.addresses())
    frame = numbered(spark, 40, tasks=1)
    writer = LogBatchWriter(options, frame.schema, overwrite=False)
    message = writer.write(iter(frame.toArrow().to_batches()))
    writer.commit([message])
    writer.abort([message, None])
    assert target.count() == 40
    writer.commit([message])  # and once more: the blobs are gone, the rows are there
    assert target.count() == 40
    # An abort before any commit leaves the blobs for one that may still come.
    second = check(topic=target.name, application=target.name, batch_id=2, **target.addresses())
    writer = LogBatchWriter(second, frame.schema, overwrite=False)
    message = writer.write(iter(frame.toArrow().to_batches()))
    writer.abort([message])
    assert target.count() == 40
    writer.commit([message])
    assert target.count() == 80


def test_messages_are_committed_in_the_order_of_tasks(spark: SparkSession, target: Target) -> None:
    options = check(topic=target.name, **target.addresses())
    frame = spark.range(3_000, numPartitions=3).select(
        F.lit("k").alias("key"), F.col("id").cast("string").alias("value")
    )
    writer = LogStreamWriter(options, frame.schema, overwrite=False)
    staged = [
        StagedTask(application=target.name, owner="q", batch_id=7, task=task, blobs=message.blobs)
        for task, message in enumerate(
            LogBatchWriter(options, frame.schema, overwrite=False).write(
                iter(frame.where(f"id div 1000 = {task}").toArrow().to_batches())
            )
            for task in range(3)
        )
    ]
    writer.commit([staged[2], None, staged[0], staged[1]], 7)
    assert [int(row["value"]) for row in target.rows()] == list(range(3_000))
    with pytest.raises(InvalidOption, match="must be 8, the batch that Spark commits"):
        writer.commit([*staged], 8)


@pytest.mark.long
def test_what_is_wrong_is_said(spark: SparkSession, target: Target) -> None:
    frame = numbered(spark, 20)
    for given, options, said in (
        (frame, {"topic": "nowhere"}, "has no topic nowhere"),
        (frame.withColumn("partition", F.lit(9)), {}, "partitions 0 to 4"),
        (frame, {"acks": "0"}, "the sink has no such option"),
        (frame, {"orderedBy": "timestamp"}, "LogSink"),
        (frame, {"transactional": "true"}, "requires options application and batchId"),
        (spark.range(2).selectExpr("id as value"), {}, "column value has type bigint"),
    ):
        with pytest.raises(Exception, match=said):  # Spark's own exception
            save(given, target, **options)
    assert target.count() == 0
    over = frame.write.format("penstock").mode("overwrite").options(**target.sink_options())
    with pytest.raises(Exception, match="cannot be overwritten"):  # Spark's own exception
        over.save()
    # A source still says what its own options lack.
    reading = PenstockSource({"bootstrap": target.broker.bootstrap})
    with pytest.raises(InvalidOption, match="subscribe"):
        reading.reader(StructType())
    nowhere = {name: text for name, text in target.sink_options().items() if name != "topic"}
    with pytest.raises(InvalidRows, match="no topic is set"):
        PenstockSource(nowhere).writer(frame.schema, overwrite=False)
    streaming = PenstockSource(target.sink_options(application="a", batchId=1))
    with pytest.raises(InvalidOption, match=r"only for df\.write"):
        streaming.streamWriter(frame.schema, overwrite=False)
