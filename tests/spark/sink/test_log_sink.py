"""`LogSink` against a broker: what is in the log is what was in the batch, once."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from penstock.base.ids import TopicPartition
from penstock.client import errors
from penstock.client.errors import AdminUnavailable
from penstock.records import split_batches
from penstock.spark import LogSink
from penstock.spark.errors import (
    InvalidOption,
    InvalidRows,
    NotPenstock,
    SinkOwnerChanged,
    UnknownTopics,
)
from penstock.spark.sink.blobs import StagingLocation
from penstock.spark.sink.options import check
from penstock.spark.sink.staging import Attempt, find_topic, stage
from tests.client.test_partitioning import plain_murmur2
from tests.spark.conftest import KEEP, Topic
from tests.spark.sink.conftest import PARTITIONS, Target, numbered, record_of

pytestmark = [pytest.mark.spark]


def keyed_records(frame: DataFrame) -> Counter[tuple[object, ...]]:
    """Return the records of a frame of `numbered`, in partitions of Kafka's default partitioner."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in frame.collect():
        key = None if row.key is None else row.key.encode()
        value = None if row.value is None else row.value.encode()
        partition = None if key is None else (plain_murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        headers = [header.asDict() for header in row.headers or ()]
        found[record_of(key, value, row.timestamp, headers, partition)] += 1
    return found


def without_turns(records: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """Records without a key go anywhere."""
    found: Counter[tuple[object, ...]] = Counter()
    for record, count in records.items():
        found[(*record[:-1], None if record[0] is None else record[-1])] += count
    return found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_log_has_the_batch(spark: SparkSession, target: Target, codec: str) -> None:
    frame = numbered(spark, 3_000, tasks=3)
    sink = LogSink(application=target.name, topic=target.name, codec=codec, **target.addresses())
    done = sink.write(frame, 0)
    assert (done.batch_id, done.records, done.replayed) == (0, 3_000, False)
    assert done.offsets == {
        TopicPartition(target.name, partition): (0, end)
        for partition, end in target.ends().items()
        if end
    }
    assert without_turns(target.records()) == keyed_records(frame)
    codecs = set()
    for partition in target.ends():
        data = target.client.fetch_raw(target.name, partition, 0).data
        codecs |= {header.attributes & 7 for header in split_batches(data)}
    assert codecs == {0 if codec == "none" else 4}


def test_a_batch_is_appended_once(spark: SparkSession, target: Target) -> None:
    sink = LogSink(application=target.name, topic=target.name, **target.addresses())
    first, second = numbered(spark, 100), numbered(spark, 50, first=100)
    sink.write(first, 4)
    sink.write(second, 5)
    ends = target.ends()
    for frame, batch_id in ((second, 5), (first, 4), (first, 0)):
        again = sink.write(frame, batch_id)
        assert (again.records, again.replayed, again.offsets) == (0, True, {})
    assert target.ends() == ends
    # The same from blobs that are staged anew, past the look at what the broker has.
    sink.write(first, 9, owner="me")
    ends = target.ends()
    other = LogSink(application=target.name, topic=target.name, **target.addresses())
    assert other.write(first, 9).replayed
    assert target.ends() == ends
    assert sum(ends.values()) == 250


def test_a_batch_is_one_transaction(spark: SparkSession, target: Target) -> None:
    addresses = target.addresses()
    sink = LogSink(application=target.name, topic=target.name, transactional=True, **addresses)
    frame = numbered(spark, 100)
    done = sink.write(frame, 0)
    assert (done.records, done.replayed, done.offsets) == (100, False, {})
    assert sink.write(frame, 0).replayed
    committed = target.client.read_arrow(target.name, isolation="read_committed")
    assert committed.num_rows == 100
    for partition in target.ends():
        data = target.client.fetch_raw(target.name, partition, 0).data
        assert all(header.is_transactional for header in split_batches(data))


def test_another_owner_is_refused(spark: SparkSession, target: Target) -> None:
    sink = LogSink(application=target.name, topic=target.name, **target.addresses())
    sink.write(numbered(spark, 10), 3, owner="query one")
    for batch_id in (0, 3, 4):
        with pytest.raises(SinkOwnerChanged, match=r"another application.*DELETE") as caught:
            sink.write(numbered(spark, 10), batch_id, owner="query two")
        text = str(caught.value)
        assert "query one" in text
        assert text.count("checkpoint was") == 1
        assert f"DELETE /v1/sinks/{target.name}" in text
    assert target.count() == 10


def test_columns_name_topics_and_partitions(spark: SparkSession, target: Target) -> None:
    second = f"{target.name}-second"
    target.client.create_topic(second, partitions=2, configs=KEEP)
    frame = spark.range(600, numPartitions=2).select(
        F.when(F.col("id") % 2 == 0, F.lit(target.name)).otherwise(F.lit(second)).alias("topic"),
        F.when(F.col("id") % 3 == 0, F.lit(1)).cast("int").alias("partition"),
        F.col("id").cast("string").cast("binary").alias("key"),
        F.col("id").cast("string").alias("value"),
        (F.col("id") + 5).alias("timestamp"),
        F.lit(1.5).alias("ignored"),
    )
    done = LogSink(application=target.name, **target.addresses()).write(frame, 0)
    assert done.records == 600
    for name, partitions, rest in ((target.name, PARTITIONS, 0), (second, 2, 1)):
        read = target.client.read_arrow(name, columns=("partition", "key", "value", "timestamp"))
        rows = read.to_pylist()
        assert sorted(int(row["value"]) for row in rows) == list(range(rest, 600, 2))
        for row in rows:
            number = int(row["value"])
            keyed = (plain_murmur2(row["key"]) & 0x7FFFFFFF) % partitions
            assert row["partition"] == (1 if number % 3 == 0 else keyed)
            assert row["timestamp"] == number + 5


def test_rows_keep_the_order_of_their_task(spark: SparkSession, target: Target) -> None:
    frame = spark.range(20_000, numPartitions=4).select(
        (F.col("id") % 97).cast("string").alias("key"), F.col("id").cast("string").alias("value")
    )
    LogSink(application=target.name, topic=target.name, **target.addresses()).write(frame, 0)
    for values in by_key(target).values():
        assert values == sorted(values)  # tasks are in the order of their numbers too


def test_ordered_by_holds_for_each_key(spark: SparkSession, target: Target) -> None:
    frame = spark.range(6_000, numPartitions=4).select(
        (F.col("id") % 50).cast("string").alias("key"),
        F.hash("id").cast("string").alias("value"),
        F.hash("id").alias("at"),
    )
    sink = LogSink(
        application=target.name, topic=target.name, ordered_by=["at"], **target.addresses()
    )
    sink.write(frame, 0)
    found = by_key(target)
    assert len(found) == 50
    assert sum(map(len, found.values())) == 6_000
    for values in found.values():
        assert values == sorted(values)
    with pytest.raises(InvalidOption, match="the batch has no column later"):
        LogSink(
            application="x", topic=target.name, ordered_by=["later"], **target.addresses()
        ).write(frame, 0)


def by_key(target: Target) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for row in target.rows():  # by partition and offset
        found[row["key"]].append(int(row["value"]))
    return found


def test_an_empty_batch_is_a_batch(spark: SparkSession, target: Target) -> None:
    sink = LogSink(application=target.name, topic=target.name, **target.addresses())
    done = sink.write(numbered(spark, 10).where("false"), 0)
    assert (done.records, done.replayed, done.offsets) == (0, False, {})
    assert sink.write(numbered(spark, 10), 0).replayed
    assert sink.write(numbered(spark, 10), 1).records == 10
    assert target.count() == 10


def test_what_is_wrong_is_said_on_the_driver(spark: SparkSession, target: Target) -> None:
    frame = numbered(spark, 10)
    good = target.addresses()
    with pytest.raises(UnknownTopics, match="no topic nowhere, and"):
        LogSink(application="x", topic="nowhere", **good).write(frame, 0)
    with pytest.raises(InvalidRows, match="no topic nowhere, and"):
        LogSink(application="x", **good).write(frame.withColumn("topic", F.lit("nowhere")), 0)
    with pytest.raises(InvalidRows, match=f"value 5, but topic {target.name} has"):
        LogSink(application="x", topic=target.name, **good).write(
            frame.withColumn("partition", F.lit(5)), 0
        )
    with pytest.raises(InvalidRows, match=r"column value has type bigint.*to_json\(value\)"):
        LogSink(application="x", topic=target.name, **good).write(
            spark.range(3).withColumnRenamed("id", "value"), 0
        )
    assert target.count() == 0


def test_an_address_that_is_not_penstock_is_reported(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "ADMIN_ATTEMPTS_MAX", 2)
    good = target.addresses()
    # A Kafka listener behind another name, and a web server that is none of ours.
    listener = good["bootstrap"].replace("127.0.0.1", "http://localhost")
    for url, kind, said in (
        (listener, AdminUnavailable, "Apache Kafka has no admin address"),
        (f"{good['admin_url']}/elsewhere", NotPenstock, "does not belong to a Penstock broker"),
    ):
        sink = LogSink(
            application="x", topic=target.name, bootstrap=good["bootstrap"], admin_url=url
        )
        with pytest.raises(kind, match=said):
            sink.write(numbered(spark, 10), 0)


def test_a_blob_is_uploaded_where_the_directory_is_not(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    # As a worker on another machine sees it: a path that is not the broker's.
    far = StagingLocation(
        url=target.broker.admin_url,
        directory=str(tmp_path),
        token="of another machine",
        blob_bytes_max=1 << 26,
    )
    options = check(topic=target.name, application=target.name, **target.addresses())
    topics = {target.name: find_topic(options.bootstrap, target.name)}
    attempt = Attempt(application=target.name, batch_id=0, partition=0, number=0)
    batches = numbered(spark, 5_000, tasks=1).toArrow().to_batches()
    columns = ("key", "value", "headers", "timestamp")
    staged = list(
        stage(iter(batches), options, attempt, columns=columns, locations=[far], topics=topics)
    )
    assert list(tmp_path.iterdir()) == []
    blobs = [item.blob for item in staged if item.blob is not None]
    assert sum(blob.records for blob in blobs) == 5_000
    from penstock.spark.admin_http import BrokerAdmins
    from penstock.spark.sink.commits import Commits

    address = BrokerAdmins(options.admin_url)
    done = Commits(address, target.name, timeout_seconds=60).commit(0, None, blobs)
    address.close()
    assert done.records == target.count() == 5_000


@pytest.mark.long
def test_a_million_rows(spark: SparkSession, target: Target) -> None:
    frame = spark.range(1_000_000, numPartitions=2).select(
        F.col("id").cast("string").alias("key"),
        F.sha2(F.col("id").cast("string"), 256).alias("value"),
    )
    sink = LogSink(application=target.name, topic=target.name, codec="lz4", **target.addresses())
    assert sink.write(frame, 0).records == target.count() == 1_000_000
    assert sink.write(frame, 0).replayed


@pytest.mark.long
def test_foreach_batch_gives_the_query_as_owner(
    topic: Topic, target: Target, tmp_path: Path
) -> None:
    topic.write(300)
    sink = LogSink(application=target.name, topic=target.name, **target.addresses())

    def run(checkpoint: str) -> str:
        stream = topic.stream(columns="key,value,timestamp", maxRecordsPerTrigger=100)
        query = (
            stream.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return str(query.id)

    owner = run("one")
    kept = target.sink(target.name)
    assert (kept["owner"], kept["state"]) == (owner, "done")
    assert kept["batch"] >= 2
    assert Counter(row["value"] for row in target.rows()) == Counter(
        b"value %d" % number for number in range(300)
    )
    topic.write(10, first=300)
    assert run("one") == owner
    assert target.count() == 310
    with pytest.raises(Exception, match="producer_fenced"):  # Spark's own exception
        run("two")
    assert target.count() == 310
