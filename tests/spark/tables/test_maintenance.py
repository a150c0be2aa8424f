"""Compaction beside writers, and collection of what no commit needs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from penstock.spark.errors import InvalidOption
from penstock.spark.tables import DeltaSink, compact, read_table, remove_orphans

pytestmark = pytest.mark.spark

COMMITS = 12


def test_files_become_few_and_rows_stay(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(str(table), application="a", partition_by=["odd"])
    rows = spark.range(0, 40, 1, 2).selectExpr(
        "id", "id % 2 as odd", "array(named_struct('key', 'k', 'value', binary('v'))) as headers"
    )
    for number in range(3):
        sink.write(rows, number, marks={"reached": number})
    before = DeltaTable(str(table))
    done = compact(str(table))
    assert done is not None
    assert (done.files_removed, done.files_added, done.version) == (12, 2, 3)
    after = DeltaTable(str(table))
    assert len(after.file_uris()) == 2
    assert after.transaction_version("a") == after.transaction_version("reached") == 2
    assert sink.write(rows, 2).replayed
    newest = read_table(spark, str(table))
    oldest = read_table(spark, str(table), version=before.version())
    assert newest.schema == oldest.schema
    assert newest.exceptAll(oldest).count() == oldest.exceptAll(newest).count() == 0
    again = compact(str(table))
    assert again is not None
    assert again.files_removed == 0
    assert sink.write(rows, 3).rows == 40
    log = (table / "_delta_log" / f"{3:020}.json").read_text()
    assert '"dataChange":true' not in log


def test_no_table_is_no_work(table: Path) -> None:
    assert compact(str(table)) is None
    assert remove_orphans(str(table)).files == ()


def test_limits_are_named(table: Path) -> None:
    with pytest.raises(InvalidOption, match="target_bytes"):
        compact(str(table), target_bytes=10)
    with pytest.raises(InvalidOption, match="tasks_max"):
        compact(str(table), tasks_max=0)


def test_an_appender_beside_it_loses_nothing(table: Path) -> None:
    """Appends and compactions run against each other; each row is there once at the end."""

    def append(number: int) -> None:
        write_deltalake(
            table,
            pa.table({"id": list(range(number * 10, number * 10 + 10))}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("a", number)]),
        )

    append(0)
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(lambda: [append(number) for number in range(1, COMMITS)])
        compactions = 0
        while not appending.done():
            assert compact(str(table)) is not None
            compactions += 1
        appending.result()
    assert compactions
    read = DeltaTable(str(table))
    assert sorted(read.to_pyarrow_table()["id"].to_pylist()) == list(range(COMMITS * 10))
    assert read.transaction_version("a") == COMMITS - 1


def test_two_compactions_at_once_lose_nothing(table: Path) -> None:
    for number in range(6):
        write_deltalake(table, pa.table({"id": [number]}), mode="append")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(compact, str(table)) for _ in range(2)]
        assert all(future.result() is not None for future in both)
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist()) == list(range(6))


def test_what_attempts_left_goes_by_age(spark: SparkSession, table: Path) -> None:
    DeltaSink(str(table), application="a").write(spark.range(10), 0)
    dead = table / "batches" / "000000000001-dead" / "_temporary" / "0" / "task"
    empty = table / "batches" / "000000000002-dead" / "_temporary"
    own = table / "_penstock" / "checkpoint" / "offsets"
    for directory in (dead, empty, own):
        directory.mkdir(parents=True)
    piece, offsets = dead / "part-0.parquet", own / "0"
    for file in (piece, offsets):
        file.write_bytes(b"x")
        os.utime(file, (0, 0))
    assert remove_orphans(str(table), older_than_hours=1).directories == ()  # too young
    assert not piece.exists()
    for root, _, _ in os.walk(table / "batches", topdown=False):
        os.utime(root, (0, 0))
    shown = remove_orphans(str(table), older_than_hours=1, execute=False)
    assert shown.directories == ("batches/000000000001-dead", "batches/000000000002-dead")
    assert empty.exists()
    assert remove_orphans(str(table), older_than_hours=1).directories == shown.directories
    assert not empty.exists()
    assert offsets.exists()  # what begins with an underscore is not the table's
    assert read_table(spark, str(table)).count() == 10
    with pytest.raises(InvalidOption, match="at least 1"):
        remove_orphans(str(table), older_than_hours=0)
