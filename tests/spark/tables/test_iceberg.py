"""Iceberg sinks of batches: each batch once, no value changed, upserts merged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.commits import LakeTable
from penstock.lake.target import LakeMismatch
from penstock.spark.errors import TableMismatch
from penstock.spark.tables.iceberg import IcebergAppend, IcebergUpsert
from tests.lake.oracle import assert_files_once, assert_same, assert_stored, stored, target
from tests.spark.tables.odd_values import COLUMNS, frame_of, rows_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 100, 1, 2).select(
        "id",
        F.timestamp_millis(F.col("id") * 1_000).alias("at"),
        (F.col("id") % 2).cast("string").alias("word`.x"),
    )


def lake(folder: Path, **options: Any) -> LakeTable:
    return LakeTable(target(folder), application="tests", **options)


def append(folder: Path, **options: Any) -> IcebergAppend:
    return IcebergAppend(lake(folder, **options), "tests")


def test_a_batch_is_written_once(rows: DataFrame, tmp_path: Path) -> None:
    first = append(tmp_path, partition_by=("bucket(2, id)",)).stage(rows, 0)
    assert stored(lake(tmp_path)).current_snapshot() is None  # staged files are invisible
    done = first.commit()
    assert (done.rows, done.files, done.replayed) == (100, 4, False)
    assert first.commit().replayed  # as a second driver that staged the same batch
    assert append(tmp_path).stage(rows, 0).replayed
    assert append(tmp_path).stage(rows.limit(10), 1).commit().rows == 10
    assert append(tmp_path).stage(rows, 0).replayed  # an older batch too
    assert append(tmp_path).stage(rows.limit(0), 2).commit().files == 0
    expected = pa.concat_tables([rows.toArrow(), rows.limit(10).toArrow()])
    assert_stored(lake(tmp_path), expected)
    assert_files_once(lake(tmp_path))


def test_discarded_files_are_deleted(rows: DataFrame, tmp_path: Path) -> None:
    append(tmp_path).stage(rows, 0).discard()
    assert not list(tmp_path.rglob("*.parquet"))
    assert append(tmp_path).stage(rows, 0).commit().rows == 100


def test_odd_values_of_every_type_are_unchanged(
    spark: SparkSession, tmp_path: Path, berlin: None
) -> None:
    given = rows_of(list(COLUMNS), count=60)
    frame = frame_of(spark, given)
    append(tmp_path).stage(frame, 0).commit()
    found = stored(lake(tmp_path)).scan().to_arrow()
    # Text that is not UTF-8 is repaired, as in Delta tables.
    plain = [name for name in given.column_names if name not in {"s", "nested", "held", "deep"}]
    assert_same(given.select(plain), found.select(plain))
    back = frame.selectExpr("id", "make_valid_utf8(s) as s").toArrow()
    assert_same(back, found.select(["id", "s"]))


def test_checks_and_rejections(rows: DataFrame, tmp_path: Path) -> None:
    append(tmp_path).stage(rows, 0).commit()
    wider = rows.withColumn("more", F.lit(1))
    for sink in (append(tmp_path).check, lambda batch: append(tmp_path).stage(batch, 1)):
        with pytest.raises(LakeMismatch, match="Set add_columns = true"):
            sink(wider)
    append(tmp_path, add_columns=True).check(wider)
    assert append(tmp_path, add_columns=True).stage(wider, 1).commit().rows == 100
    with pytest.raises(LakeMismatch, match="other types"):
        append(tmp_path).check(rows.withColumn("id", F.lit("text")))
    with pytest.raises(TableMismatch, match="have the same name"):
        append(tmp_path).check(rows.withColumn("ID ", F.lit(1)).toDF("id", "at", "x", "ID"))
    with pytest.raises(LakeMismatch, match="column v is a variant"):
        append(tmp_path).check(rows.select(F.expr("parse_json('1') as v")))
    with pytest.raises(LakeMismatch, match="cannot be compared"):
        IcebergUpsert(lake(tmp_path), "tests", keys=["f"]).check(rows.select(F.lit(1.5).alias("f")))


def test_upserts_keep_the_newest_row_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    drawn = random.Random(5)
    changes = [
        [(drawn.randrange(40), drawn.randrange(1000), drawn.random() < 0.2) for _ in range(60)]
        for _ in range(6)
    ]
    newest: dict[int, tuple[int, bool]] = {}
    for batch, part in enumerate(changes):
        frame = spark.createDataFrame(
            [(key, batch * 1000 + order, gone, f"v{order}") for key, order, gone in part],
            "key bigint, seq bigint, gone boolean, value string",
        )
        sink = IcebergUpsert(
            lake(tmp_path, partition_by=("bucket(3, key)",)), "tests", keys=["key"],
            order_by="seq", delete_when="gone",
        )  # fmt: skip
        staged = sink.stage(frame, batch)
        assert not staged.commit().replayed
        assert staged.commit().replayed
        for key, order, gone in part:
            rank = (batch * 1000 + order, gone)
            newest[key] = max(newest.get(key, rank), rank)
    found = stored(lake(tmp_path)).scan().to_arrow().select(["key", "seq"])
    kept = [(key, order) for key, (order, gone) in newest.items() if not gone]
    assert_same(pa.table({"key": [k for k, _ in kept], "seq": [s for _, s in kept]}), found)
