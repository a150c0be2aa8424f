"""Compaction beside writers, and collection of what no commit needs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.spark.errors import InvalidOption
from penstock.spark.tables import (
    DeltaSink,
    DeltaUpsert,
    Written,
    compact,
    read_table,
    remove_orphans,
)
from penstock.spark.tables.compaction import TableFile, plan

pytestmark = pytest.mark.spark

COMMITS = 12


def test_files_become_few_and_rows_stay(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(str(table), application="a", partition_by=["odd"])
    rows = spark.range(0, 40, 1, 2).selectExpr(
        "id", "id % 2 as odd", "array(named_struct('key', 'k', 'value', binary('v'))) as headers"
    )
    for number in range(3):
        sink.write(rows, number, app_transactions={"reached": number})
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
        for number in range(1, COMMITS):
            appending = pool.submit(append, number)
            assert compact(str(table)) is not None
            appending.result()
    read = DeltaTable(str(table))
    assert sorted(read.to_pyarrow_table()["id"].to_pylist()) == list(range(COMMITS * 10))
    assert read.transaction_version("a") == COMMITS - 1


def test_two_compactions_at_once_lose_nothing(table: Path) -> None:
    for number in range(6):
        write_deltalake(table, pa.table({"id": [number]}), mode="append")

    class Late:
        """Names directories; another compaction comes in between reading and commit."""

        def uuid(self) -> UUID:
            other = compact(str(table))
            assert other is not None
            removed.append(other.files_removed)
            return SYSTEM_RANDOMNESS.uuid()

    removed: list[int] = []
    late = compact(str(table), randomness=Late())  # type: ignore[arg-type]
    assert removed == [6]
    assert late is not None
    assert late.files_removed == 0  # it began anew, and nothing was left to do
    assert len(list((table / "compactions").iterdir())) == 1
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


def test_an_upsert_beside_a_compaction_wins(spark: SparkSession, table: Path) -> None:
    merging = DeltaUpsert(str(table), application="a", keys=["id"])
    for number in range(4):
        write_deltalake(table, pa.table({"id": [number], "name": ["old"]}), mode="append")
    upserts: list[Written] = []

    class Late:
        def uuid(self) -> UUID:
            if not upserts:
                upserts.append(merging.write(spark.sql("select 2L as id, 'new' as name"), 0))
            return SYSTEM_RANDOMNESS.uuid()

    done = compact(str(table), randomness=Late())  # type: ignore[arg-type]
    assert done is not None
    assert (done.files_removed, done.files_added) == (4, 1)
    read = DeltaTable(str(table)).to_pyarrow_table().sort_by("id")
    assert read["name"].to_pylist() == ["old", "old", "new", "old"]


def in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("id", "ascending"), ("more", "ascending")])


@pytest.mark.parametrize("partition_by", [("day", "word"), ("at",), ("odd",)])
def test_partition_values_stay(
    spark: SparkSession, table: Path, partition_by: tuple[str, ...]
) -> None:
    sink = DeltaSink(str(table), application="a", partition_by=partition_by, add_columns=True)
    rows = spark.range(0, 12, 1, 1).selectExpr(
        "id",
        "if(id % 4 > 0, concat('a b:é%/', id % 4), null) as word",
        "timestamp_micros(id % 2 * 1500001) as at",
        "date_add(date'2026-01-01', cast(id % 2 as int)) as day",
        "if(id % 3 > 0, id % 3 = 1, null) as odd",
        "cast(id as decimal(10, 2)) as price",
    )
    sink.write(rows, 0)
    sink.write(rows.selectExpr("*", "'x' as more"), 1)
    before = in_order(read_table(spark, str(table)).toArrow())
    done = compact(str(table))
    assert done is not None
    assert done.files_removed == 2 * done.files_added > 0
    after = in_order(read_table(spark, str(table)).toArrow())
    assert after.to_pylist() == before.to_pylist()
    mine = in_order(DeltaTable(str(table)).to_pyarrow_table())
    assert mine.to_pylist() == before.to_pylist()


def test_bins_are_of_one_partition_and_size() -> None:
    def file(name: str, size: int, day: str) -> TableFile:
        return TableFile(path=name, size_bytes=size, partition=(("day", day),))

    files = [
        file("a", 40, "1"), file("b", 40, "1"), file("c", 30, "1"), file("d", 10, "1"),
        file("large", 75, "1"), file("e", 1, "2"), file("f", 1, "3"), file("g", 1, "3"),
    ]  # fmt: skip
    names = [[item.path for item in found] for found in plan(files, 100)]
    assert names == [["a", "b"], ["c", "d"], ["f", "g"]]
