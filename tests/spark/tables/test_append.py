"""Appends to tables: each batch once, however often it is tried, and clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark import DeltaSink
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.tables import compact
from penstock.spark.tables.compaction import TARGET_BYTES_MIN
from penstock.spark.tables.files import CODECS, codec_of, written_files
from tests.spark.conftest import Topic

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 100, 1, 2).select(
        "id",
        F.timestamp_millis(F.col("id") * 1_000).alias("at"),
        F.concat(F.lit("a b:"), (F.col("id") % 2).cast("string")).alias("word"),
        F.when(F.col("id") > 10, F.col("id") / 2).alias("half"),
    )


def sink(table: Path, **more: object) -> DeltaSink:
    return DeltaSink(str(table), application="tests", **more)  # type: ignore[arg-type]


def test_a_batch_is_written_once(rows: DataFrame, table: Path) -> None:
    first = sink(table).write(rows, 0)
    assert (first.rows, first.version, first.replayed) == (100, 0, False)
    assert sink(table).write(rows, 0).replayed
    assert sink(table).write(rows, 1).version == 1
    assert sink(table).write(rows, 0).replayed  # an older batch too
    read = DeltaTable(str(table))
    assert read.to_pyarrow_table().num_rows == 200
    assert read.transaction_version("tests") == 1


def test_an_abort_after_the_commit_leaves_the_batch_in(rows: DataFrame, table: Path) -> None:
    writing = sink(table)

    def fails_late(batch: DataFrame, batch_id: int) -> None:
        writing(batch, batch_id)
        raise RuntimeError("after the commit")

    with pytest.raises(RuntimeError):
        fails_late(rows, 5)
    assert writing.write(rows, 5).replayed
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 100


def test_others_read_it_and_skip_by_statistics(rows: DataFrame, table: Path) -> None:
    sink(table, partition_by=["word"]).write(rows, 0)
    found = pl.scan_delta(str(table)).filter(pl.col("id") < 3).collect().sort("id")
    assert found["word"].to_list() == ["a b:0", "a b:1", "a b:0"]
    actions = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
    assert {"min.id", "max.id", "min.at", "max.at", "null_count.id"} <= set(actions.column_names)
    read = DeltaTable(str(table)).to_pyarrow_table(filters=[("word", "=", "a b:1")])
    assert pc.sum(read["id"]).as_py() == sum(range(1, 100, 2))


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_files_have_the_codec_that_was_asked_for(
    rows: DataFrame, table: Path, codec: str | None
) -> None:
    files = pa_fs.LocalFileSystem()
    for batch_id in range(2):
        sink(table, codec=codec).write(rows, batch_id)
    expected = codec or "snappy"
    assert {codec_of(files, uri) for uri in DeltaTable(str(table)).file_uris()} == {expected}
    compacted = compact(str(table), target_bytes=TARGET_BYTES_MIN)
    assert compacted is not None
    assert compacted.files_added == 1
    (whole,) = DeltaTable(str(table)).file_uris()
    assert codec_of(files, whole) == expected
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 2 * rows.count()


def test_a_codec_that_does_not_exist_is_refused(table: Path) -> None:
    with pytest.raises(InvalidOption, match=r"codec.*lzo.*none, gzip, snappy, lz4, zstd"):
        sink(table, codec="lzo")


def test_an_empty_batch_commits_nothing(rows: DataFrame, table: Path) -> None:
    assert sink(table).write(rows.limit(0), 0).version is None
    assert sink(table).open() is None
    assert list((table / "batches").iterdir()) == []


def test_two_attempts_at_once_commit_once(rows: DataFrame, table: Path) -> None:
    sink(table).write(rows, 0)
    handles = [DeltaTable(str(table)) for _ in range(2)]

    def commit(handle: DeltaTable, path: str) -> None:
        handle.create_write_transaction(
            [AddAction(path, 1, {}, 0, True, "{}")],
            mode="append",
            schema=handle.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction("tests", 1)]),
        )

    commit(handles[0], "first.parquet")
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        commit(handles[1], "second.parquet")


@pytest.mark.parametrize("first", [0, 1], ids=["new table", "table"])
def test_of_two_that_staged_the_same_batch_one_commits(
    rows: DataFrame, table: Path, first: int
) -> None:
    for batch_id in range(first):
        sink(table).write(rows, batch_id)
    winner, loser = (sink(table).stage(rows, first) for _ in range(2))
    another = DeltaSink(str(table), application="another").stage(rows, 0)
    done = [batch.commit() for batch in (winner, another, loser)]
    assert [(batch.rows, batch.replayed) for batch in done] == [
        (100, False),
        (100, False),
        (0, True),
    ]
    read = DeltaTable(str(table))
    assert read.to_pyarrow_table().num_rows == 100 * (first + 2)
    kept = {Path(file).name for file in read.file_uris()}
    assert {file.name for file in (table / "batches").rglob("*.parquet")} == kept


def test_columns_must_fit(rows: DataFrame, table: Path) -> None:
    sink(table).write(rows, 0)
    wider = rows.withColumn("more", F.lit(1))
    with pytest.raises(TableMismatch, match="has no column more"):
        sink(table).write(wider, 1)
    with pytest.raises(TableMismatch, match="column half has type"):
        sink(table).write(rows.withColumn("half", F.lit("x")), 1)
    with pytest.raises(TableMismatch, match="is partitioned by no column"):
        sink(table, partition_by=["word"]).write(rows, 1)
    with pytest.raises(TableMismatch, match="partition column nope"):
        sink(table, partition_by=["nope"]).write(rows, 1)
    sink(table, add_columns=True).write(wider, 1)
    read = DeltaTable(str(table)).to_pyarrow_table()
    assert read["more"].null_count == 100
    sink(table).write(rows, 2)  # a narrower batch has nulls there


def test_orphans_go_by_age(rows: DataFrame, table: Path) -> None:
    writing = sink(table)
    writing.write(rows, 0)
    orphan = table / "batches" / "000000000001-dead" / "part-0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"left behind")
    assert writing.remove_orphans(older_than_hours=1) == []
    assert orphan.exists()
    import os

    os.utime(orphan, (0, 0))
    assert [Path(path).name for path in writing.remove_orphans(older_than_hours=1)] == [
        "part-0.parquet"
    ]
    assert not orphan.exists()
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 100
    with pytest.raises(InvalidOption, match="at least 1"):
        writing.remove_orphans(older_than_hours=0)


@pytest.mark.long
def test_a_deleted_checkpoint_is_refused(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.write(20)
    writing = DeltaSink(str(tmp_path / "table"), application="tests")

    def run(checkpoint: str) -> None:
        query = (
            topic.stream(maxRecordsPerTrigger=10)
            .writeStream.foreachBatch(writing)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("first")
    topic.write(10, first=20)
    run("first")
    assert DeltaTable(writing.table).to_pyarrow_table().num_rows == 30
    with pytest.raises(StreamingQueryException, match="committed with another checkpoint"):
        run("second")
    assert DeltaTable(writing.table).to_pyarrow_table().num_rows == 30
    # Outside of a query there is no id to compare, and the mark of the last query stays.
    assert writing.has(2)
    assert writing.write(topic.batch().limit(1), 0).replayed
    writing.write(topic.batch().limit(1), 7)
    with pytest.raises(StreamingQueryException, match="committed with another checkpoint"):
        run("third")


def test_a_commit_has_app_transactions_and_metadata(rows: DataFrame, table: Path) -> None:
    writing = sink(table)
    before = writing.write(rows.limit(0), 0, app_transactions={"reached": 5})
    assert before.version is None, "there is no table yet"
    writing.write(rows, 1, app_transactions={"reached": 7}, metadata={"why": {"because": 1}})
    empty = writing.write(rows.limit(0), 2, app_transactions={"reached": 9})
    assert (empty.rows, empty.version, empty.replayed) == (0, 1, False)
    assert writing.write(rows.limit(0), 2, app_transactions={"reached": 9}).replayed
    assert DeltaTable(str(table)).transaction_version("reached") == 9
    assert DeltaTable(str(table)).history()[1]["why"] == {"because": 1}


def test_rows_that_are_not_where_the_driver_looks_are_noticed(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on other machines have a directory of their own at the same path."""

    def fewer(*arguments: Any) -> list[Any]:
        return written_files(*arguments)[1:]

    monkeypatch.setattr("penstock.spark.tables.append.written_files", fewer)
    sink = DeltaSink(str(table), application="a")
    with pytest.raises(TableMismatch, match=r"tasks wrote 10 rows, but the driver finds \d"):
        sink.write(spark.range(10).repartition(2), 0)
    assert sink.open() is None
