"""The outbox in Spark: pointers resolved on executors, batch and stream, and the tree in place."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.client import Client
from penstock.outbox import Sweeper, SweepRules, TopicPointers
from penstock.outbox.layout import temporary_name
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.policy import ReadPolicy
from penstock.spark import json_lines, outbox_tree, read_outbox
from penstock.spark.errors import InvalidOption
from tests.outbox.shelf import AT_MS, HOUR_MS, Shelf
from tests.spark.conftest import Topic

pytestmark = pytest.mark.spark
QUICK = ReadPolicy(missing_grace_ms=0, pause_first_ms=1, pause_max_ms=2)
READING_SECONDS = 280


@pytest.fixture
def shelf(topic: Topic, tmp_path: Path) -> Iterator[Shelf]:
    root = tmp_path / "outbox"
    root.mkdir()
    with Client(topic.broker.bootstrap) as client:
        yield Shelf(root=root, client=client, topic=topic.name, dead="")


def batch(topic: Topic, shelf: Shelf, **more: Any) -> DataFrame:
    return read_outbox(topic.batch(includeHeaders="true"), shelf.root, **({"policy": QUICK} | more))


def test_files_and_inline_payloads(topic: Topic, shelf: Shelf) -> None:
    pointers = [
        shelf.file(b"file %d" % n, partition_id=f"p{n % 3}", event_count=n) for n in range(50)
    ]
    shelf.publish(*pointers, partition=1)
    shelf.publish(*(shelf.inline(b"inline %d" % n, batch_id=f"i{n}") for n in range(20)))
    rows = batch(topic, shelf).orderBy("partition", "offset").collect()
    assert [bytes(row.payload) for row in rows[:20]] == [b"inline %d" % n for n in range(20)]
    assert [bytes(row.payload) for row in rows[20:]] == [b"file %d" % n for n in range(50)]
    assert {row.error for row in rows} == {None}
    for row, pointer in zip(rows[20:], pointers, strict=True):
        assert (row.partition_id, row.batch_id) == (pointer.partition_id, pointer.batch_id)
        assert (row.event_count, row.size_bytes) == (pointer.event_count, pointer.size_bytes)
        assert (row.topic, row.partition, row.codec) == (topic.name, 1, "none")
    assert rows[0].timestamp is not None


def test_bad_ones_are_rows_with_an_error(topic: Topic, shelf: Shelf) -> None:
    good, gone = shelf.add(b"good"), shelf.add(b"gone")
    torn, swapped = shelf.add(b"torn"), shelf.add(b"swapped")
    linked = shelf.add(b"linked")
    shelf.path(gone).unlink()
    shelf.path(torn).write_bytes(b"to")
    shelf.path(swapped).write_bytes(b"another")
    shelf.path(linked).unlink()
    shelf.path(linked).symlink_to("/etc/passwd")
    shelf.client.write_arrow(topic.name, pa.table({"value": [b"no outbox"]}), partition=0)
    frame = batch(topic, shelf)
    rows = {row.offset: row for row in frame.collect()}
    assert bytes(rows[0].payload) == b"good"
    assert {offset: row.payload for offset, row in rows.items() if offset} == dict.fromkeys(
        range(1, 6)
    )
    words = [rows[offset].error.partition(":")[0] for offset in range(1, 6)]
    assert words == [
        "missing",
        "size-mismatch",
        "checksum-mismatch",
        "path-escapes",
        "invalid-pointer",
    ]
    assert rows[1].batch_id == gone.batch_id
    assert good.file_path not in str(rows)
    with pytest.raises(PySparkException, match="no valid header penstock-outbox"):
        batch(topic, shelf, fail_on_error=True).count()


def test_a_file_that_shows_late_is_waited_for(topic: Topic, shelf: Shelf) -> None:
    pointer = shelf.add(b"late")
    path = shelf.path(pointer)
    hidden = path.rename(path.with_name("hidden"))
    shower = threading.Timer(2.0, hidden.rename, (path,))
    shower.start()
    (row,) = batch(topic, shelf, policy=ReadPolicy()).collect()
    shower.join()
    assert (bytes(row.payload), row.error) == (b"late", None)


def test_a_claim_too_large_is_refused(topic: Topic, shelf: Shelf) -> None:
    shelf.publish(shelf.file(b"x" * 100))
    (row,) = batch(topic, shelf, bytes_max=99).collect()
    assert row.error.startswith("too-large: ")


def put(shelf: Shelf, payload: bytes, codec: str) -> Pointer:
    pointer = shelf.file(payload, codec=codec)
    shelf.publish(pointer)
    return pointer


def test_codecs(topic: Topic, shelf: Shelf) -> None:
    put(shelf, gzip.compress(b"packed"), "gzip")
    put(shelf, zstandard.compress(b"packed"), "zstd")
    put(shelf, b"packed", "none")
    put(shelf, b"packed", "brotli")
    put(shelf, b"packed", "gzip")
    put(shelf, gzip.compress(bytes(1 << 20)), "gzip")
    rows = batch(topic, shelf, decompress=True, bytes_max=100_000).orderBy("offset").collect()
    assert [row.payload for row in rows] == [b"packed"] * 3 + [None] * 3
    assert [row.codec for row in rows] == ["none"] * 3 + ["brotli", "gzip", "gzip"]
    assert [(row.error or "").partition(":")[0] for row in rows] == [
        "", "", "", "unknown-codec", "corrupt-codec", "corrupt-codec",
    ]  # fmt: skip
    assert [row.codec for row in batch(topic, shelf).orderBy("offset").collect()][:2] == [
        "gzip",
        "zstd",
    ]


LINES = b'{"n": 1, "t": "a"}\n{"n": 2, "t": "\xc3\xa4"}\n\n'


def test_json_lines(topic: Topic, shelf: Shelf) -> None:
    shelf.publish(shelf.file(LINES, batch_id="b1"), shelf.file(b'{"n": 3}', batch_id="b2"))
    frame = json_lines(batch(topic, shelf), "n int, t string", keep=("batch_id",))
    assert sorted(map(tuple, frame.collect())) == [
        ("b1", 1, "a"), ("b1", 2, "ä"), ("b2", 3, None),
    ]  # fmt: skip
    put(shelf, b"", "zstd")
    with pytest.raises(PySparkException, match="codec zstd"):
        json_lines(batch(topic, shelf), "n int").collect()


def test_json_lines_do_not_pass_over_errors(topic: Topic, shelf: Shelf) -> None:
    shelf.path(shelf.add(LINES)).unlink()
    with pytest.raises(PySparkException, match="missing"):
        json_lines(batch(topic, shelf), "n int").collect()


def test_large_payloads_come_in_several_batches(topic: Topic, shelf: Shelf) -> None:
    sizes = [20 << 20, 20 << 20, 1, 15 << 20]
    for size in sizes:
        shelf.add(bytes([size % 251]) * size)
    rows = batch(topic, shelf).selectExpr("offset", "length(payload) as size").collect()
    assert sorted((row["offset"], row["size"]) for row in rows) == list(enumerate(sizes))


def test_a_stream_continues_from_its_checkpoint(topic: Topic, shelf: Shelf, tmp_path: Path) -> None:
    got: list[tuple[int, bytes]] = []

    def take(frame: DataFrame, _: int) -> None:
        got.extend((row.offset, bytes(row.payload)) for row in frame.collect())

    def run() -> None:
        frame = read_outbox(topic.stream(includeHeaders="true"), shelf.root)
        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    first = [shelf.file(b"%d" % n) for n in range(10)]
    shelf.publish(*first)
    run()
    shelf.publish(shelf.file(b"10"), shelf.inline(b"11"))
    run()
    assert sorted(got) == [(n, b"%d" % n) for n in range(12)]


def test_the_sweeper_learns_what_a_query_has_read(
    topic: Topic, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.publish(*(shelf.file(b"%d" % n) for n in range(5)), partition=1)
    group = f"{topic.name}-query"
    rules = SweepRules(retention_ms=0, orphan_age_ms=0, unreferenced_grace_ms=10**9)
    pointers = TopicPointers(shelf.client, topic.name, [group])
    sweeper = Sweeper(shelf.root, pointers=pointers, rules=rules, execute=True)
    assert sweeper.sweep().waiting == 5
    frame = read_outbox(topic.stream(includeHeaders="true", groupId=group), shelf.root)
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    removed = 0
    for _ in range(300):  # the listener hears of the batch a little later
        removed += sweeper.sweep().removed_payloads
        if removed:
            break
        threading.Event().wait(0.1)
    assert removed == 5


def test_records_without_headers_are_refused(topic: Topic, shelf: Shelf) -> None:
    with pytest.raises(InvalidOption, match="the column headers is missing"):
        read_outbox(topic.batch(), shelf.root)


def tree(shelf: Shelf) -> list[Pointer]:
    made = [
        shelf.file(
            json.dumps({"n": n}).encode(),
            partition_id=f"station={n % 2}" if n % 3 else "plain",
            at_ms=AT_MS + n * HOUR_MS,
        )
        for n in range(30)
    ]
    for pointer in made:
        (shelf.path(pointer).parent / temporary_name("abc", 1)).write_bytes(b"torn")
    return made


def test_the_tree_as_a_table(spark: SparkSession, shelf: Shelf) -> None:
    made = tree(shelf)
    frame = outbox_tree(spark, shelf.root)
    assert frame.columns[:6] == ["partition_id", "year", "month", "day", "hour", "batch_id"]
    rows = frame.collect()
    found = {(row.partition_id, row.batch_id): row for row in rows}
    assert len(rows) == len(found) == 30
    for number, pointer in enumerate(made):
        row = found[pointer.partition_id, pointer.batch_id]
        assert (row.year, row.month, row.day, row.hour) == (2026, 5, 24 + number // 24, number % 24)
        assert json.loads(bytes(row.content)) == {"n": number}


READING = """
import sys
from penstock.spark import outbox_tree, session

spark = session()
print(outbox_tree(spark, sys.argv[1], year=2026, month=5, day=24).count())
print(outbox_tree(spark, sys.argv[1], format="text", partition_ids=["plain"]).count())
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_reading_the_tree_prints_no_stack(shelf: Shelf) -> None:
    """In a process of its own, since its virtual machine writes to standard error itself."""
    tree(shelf)
    ran = subprocess.run(
        [sys.executable, "-c", READING, str(shelf.root)],
        capture_output=True,
        text=True,
        timeout=READING_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["24", "10"]
    assert "Exception" not in ran.stderr
    assert "\tat " not in ran.stderr


def test_parts_of_the_tree(spark: SparkSession, shelf: Shelf) -> None:
    tree(shelf)
    assert outbox_tree(spark, shelf.root, day=25).count() == 6
    assert outbox_tree(spark, shelf.root, year=2026, month=5, day=24, hour=3).count() == 1
    assert outbox_tree(spark, shelf.root, partition_ids=["plain", "station=1"]).count() == 20
    values = outbox_tree(spark, shelf.root, format="json", schema="n int", day=25)
    assert sorted(row.n for row in values.select("n").collect()) == list(range(24, 30))
    lines = outbox_tree(spark, shelf.root, format="text", hour=7)
    assert [row.value for row in lines.collect()] == ['{"n": 7}']
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        outbox_tree(spark, shelf.root, year=1999)
