"""Streams through Spark, from a real broker: triggers, limits, restarts, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.reads import stream
from tests.spark.conftest import KEEP, Topic, until

pytestmark = pytest.mark.spark


class Run:
    """A stream into memory: each batch's values, in order of the batches."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[bytes]] = {}

    def take(self, batch: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [row.value for row in batch.select("value").collect()]

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self.take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def drain(self, frame: DataFrame) -> StreamingQuery:
        query = self.start(frame, availableNow=True)
        query.awaitTermination()
        return query

    @property
    def values(self) -> list[bytes]:
        return sorted(value for batch in self.batches.values() for value in batch)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "checkpoint")


def offsets(run: Run, batch: int) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        (run.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    )
    return body


def test_available_now_reads_all_and_restarts_where_it_ended(topic: Topic, run: Run) -> None:
    written = topic.write(3_000)
    run.drain(topic.stream())
    assert run.values == sorted(written["value"].to_pylist())
    more = topic.write(10, first=3_000)
    run.batches.clear()
    run.drain(topic.stream())
    assert run.values == sorted(more["value"].to_pylist())


def test_record_limits_hold_in_every_batch(topic: Topic, run: Run) -> None:
    written = topic.write(1_000)
    run.drain(topic.stream(maxRecordsPerTrigger=300))
    assert run.values == sorted(written["value"].to_pylist())
    sizes = [len(values) for values in run.batches.values()]
    assert max(sizes) <= 300
    assert len(sizes) >= 4


@pytest.mark.long
def test_byte_limits(topic: Topic, run: Run) -> None:
    for first in range(0, 2_000, 200):
        topic.write(200, first=first)
    run.drain(topic.stream(maxBytesPerTrigger=20_000))
    assert sum(map(len, run.batches.values())) == 2_000
    assert len(run.batches) >= 2


def test_a_minimum_waits_but_not_for_ever(topic: Topic, run: Run) -> None:
    topic.write(10)
    query = run.start(topic.stream(minRecordsPerTrigger=15, maxTriggerDelay="10m"))
    try:
        query.processAllAvailable()
        assert run.values == []
        topic.write(5, first=10)
        query.processAllAvailable()
        assert len(run.values) == 15
    finally:
        query.stop()


def test_a_minimum_does_not_hold_up_available_now(topic: Topic, run: Run) -> None:
    topic.write(10)
    run.drain(topic.stream(minRecordsPerTrigger=15))
    assert len(run.values) == 10


def test_positions_in_the_checkpoint(topic: Topic, run: Run) -> None:
    topic.write(20, partition=1)
    run.drain(topic.stream(groupId="billing"))
    body = offsets(run, 0)
    assert body["group"] == "billing"
    entry = body["topics"][topic.name]
    assert [place["offset"] for place in entry["partitions"].values()] == [0, 20, 0]
    assert entry["id"] == str(topic.client.describe_topic(topic.name).topic_id)


def test_an_idle_stream_makes_no_batches(topic: Topic, run: Run) -> None:
    topic.write(5)
    query = run.start(topic.stream())
    try:
        query.processAllAvailable()
        query.processAllAvailable()
        assert list(run.batches) == [0]
    finally:
        query.stop()


@pytest.mark.long
def test_a_time_that_was_asked_for_is_a_batch_once_it_has_come(
    topic: Topic, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "wake"
    topic.write(5)
    frame = topic.stream(wakeFile=str(path))
    run.drain(frame)
    far = 1 << 42
    # The second time is earlier than the first: the clock was set back in between.
    for asked, batches in [(2_000, 2), (1_000, 3), (1_000, 3), (far, 3), (None, 3)]:
        stream.write(path, asked, by="test")
        run.drain(frame)
        assert len(run.batches) == batches, asked
    assert offsets(run, 2)["wake"] == 1_000
    assert run.batches == {0: run.batches[0], 1: [], 2: []}


def test_the_default_start_is_the_end(topic: Topic, run: Run) -> None:
    topic.write(5)
    query = run.start(topic.stream(startingOffsets="latest"))
    try:
        query.processAllAvailable()
        topic.write(3, first=5)
        query.processAllAvailable()
        assert run.values == [b"value 5", b"value 6", b"value 7"]
    finally:
        query.stop()


def test_new_partitions_are_read_from_their_start(topic: Topic, run: Run) -> None:
    topic.write(5)
    run.drain(topic.stream())
    topic.client.create_partitions(topic.name, 5)
    topic.write(7, first=5, partition=4)
    run.batches.clear()
    run.drain(topic.stream())
    assert len(run.values) == 7


def test_the_groups_lag_is_visible(topic: Topic, run: Run) -> None:
    topic.write(40)
    group = f"group-of-{topic.name}"
    query = run.start(topic.stream(groupId=group))
    try:
        until(  # the listener hears of a batch a moment after it ended
            "the group has the batch",
            lambda: sum(entry.offset for entry in topic.client.committed(group).values()) == 40,
        )
        assert {name for name, _ in topic.client.committed(group)} == {topic.name}
    finally:
        query.stop()


def test_a_recreated_topic_is_refused(topic: Topic, run: Run) -> None:
    topic.write(5)
    run.drain(topic.stream())
    topic.client.delete_topic(topic.name)
    topic.client.create_topic(topic.name, partitions=3, configs=KEEP)
    topic.write(9)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run.drain(topic.stream())


@pytest.mark.long
def test_offsets_that_went_back_are_refused(topic: Topic, run: Run) -> None:
    topic.write(5, partition=0)
    run.drain(topic.stream())
    path = run.checkpoint / "offsets" / "0"
    path.write_text(
        path.read_text().replace('"offset":5', '"offset":50').replace('"offset": 5', '"offset": 50')
    )
    (run.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    query = run.start(topic.stream())
    with pytest.raises(StreamingQueryException, match="ends at offset 5"):
        query.processAllAvailable()


def test_data_loss(topic: Topic, run: Run) -> None:
    topic.write(10, partition=0)
    run.drain(topic.stream())
    topic.write(90, first=10, partition=0)
    topic.client.delete_records(topic.name, {0: 40})
    with pytest.raises(StreamingQueryException, match="offsets 10 to 39 were deleted"):
        run.drain(topic.stream())
    run.batches.clear()
    run.drain(topic.stream(failOnDataLoss="false"))
    assert len(run.values) == 60


def test_a_stream_has_no_ending_options(topic: Topic, run: Run) -> None:
    topic.write(1)
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        run.drain(topic.stream(endingOffsets="latest"))
