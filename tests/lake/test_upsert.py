"""Upserts: the newest row of each key over many batches, as DuckDB computes it; files pruned."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from penstock.lake.commits import EXPIRE_COMMITS, LakeTable, Mark, catalog_of
from penstock.lake.target import LakeMismatch, LakeUnavailable
from penstock.lake.upsert import Upsert, check_keys, newest
from tests.lake.oracle import assert_files_once, assert_same, stored, target
from tests.lake.test_commits import batch_of

KEYS = ("id", "word", "at", "amount")
SCHEMA = pa.schema([
    ("id", pa.int64()), ("word", pa.string()), ("at", pa.timestamp("us", "UTC")),
    ("amount", pa.decimal128(9, 2)), ("seq", pa.int64()), ("gone", pa.bool_()),
    ("list", pa.list_(pa.int32())),
])  # fmt: skip


def changes(drawn: random.Random, count: int) -> pa.Table:
    rows = []
    for _ in range(count):
        key = drawn.randrange(30)
        rows.append({
            "id": key % 5, "word": f"ä{key % 3}", "amount": Decimal(key).scaleb(-2),
            "at": datetime(2025, 1, 1, tzinfo=UTC) + timedelta(hours=key % 2),
            "seq": drawn.randrange(10**9), "gone": drawn.random() < 0.15, "list": [key, None],
        })  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def upsert(lake: LakeTable, rows: pa.Table, batch: int, **options: Any) -> None:
    lake.prepare(rows.schema)
    change = Upsert(name=lake.name, rows=rows, **options).change(lake.writer())
    lake.commit(Mark(batch=batch), lambda mark: True, change)


@pytest.mark.parametrize(
    ("partition_by", "batches"),
    [((), EXPIRE_COMMITS + 1), (("bucket(3, word)", "hour(at)"), 4)],
    ids=["whole", "partitioned"],
)
def test_the_newest_row_of_each_key_is_kept(
    tmp_path: Path, partition_by: tuple[str, ...], batches: int
) -> None:
    drawn = random.Random(7)
    lake = LakeTable(target(tmp_path), application="a", partition_by=partition_by)
    given = []
    for batch in range(batches):
        rows = changes(drawn, 12)
        given.append(rows)
        rows = rows.take(newest("t", rows, KEYS, "seq"))
        upsert(lake, rows, batch, keys=KEYS, order_by="seq")
    source = pa.concat_tables(given)
    columns = ", ".join(f'"{name}"' for name in KEYS)
    with duckdb.connect() as connection:
        connection.register("source", source)
        kept = connection.sql(
            f"select * from source qualify row_number() over"
            f" (partition by {columns} order by seq desc) = 1"
        ).to_arrow_table()
    assert_same(kept.cast(SCHEMA), stored(lake).scan().to_arrow())
    assert_files_once(lake)
    snapshot = stored(lake).current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(stored(lake).io)) < 16  # merged once


def test_rows_that_delete_their_key(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    upsert(lake, pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}), 0, keys=("id",))
    change = pa.table({"id": [2, 3, 4, 5], "v": ["B", "C", "D", "E"]})
    removes = np.array([True, False, True, False])
    upsert(lake, change, 1, keys=("id",), removes=removes)
    assert_same(pa.table({"id": [1, 3, 5], "v": ["a", "C", "E"]}), stored(lake).scan().to_arrow())


def test_columns_that_the_rows_lack_keep_their_values(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a", partition_by=("truncate(2, id)",))
    inner = [[{"a": number}] for number in range(5)]
    rows = pa.table({"id": range(5), "v": list("abcde"), "inner": inner})
    upsert(lake, rows, 0, keys=("id",))
    change = pa.table({"id": [4, 1, 9], "v": ["E", "B", "I"]})
    upsert(lake, change, 1, keys=("id",), keep_others=True)
    upsert(lake, change.slice(0, 1), 2, keys=("id",), order_by="v", keep_others=True)
    expected = pa.table({
        "id": [0, 1, 2, 3, 4, 9], "v": ["a", "B", "c", "d", "E", "I"], "inner": [*inner, None],
    })  # fmt: skip
    assert_same(expected, stored(lake).scan().to_arrow())
    upsert(lake, change.slice(0, 1), 3, keys=("id",))
    assert stored(lake).scan("id = 4").to_arrow()["inner"].to_pylist() == [None]


def test_files_without_the_keys_are_not_written_again(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a", partition_by=("truncate(100, id)",))
    upsert(lake, pa.table({"id": range(1000), "v": ["old"] * 1000}), 0, keys=("id",))
    before = {task.file.file_path for task in stored(lake).scan().plan_files()}
    assert len(before) == 10
    upsert(lake, pa.table({"id": range(250, 480), "v": ["new"] * 230}), 1, keys=("id",))
    after = {task.file.file_path for task in stored(lake).scan().plan_files()}
    assert len(before & after) == 7
    values = ["new" if 250 <= number < 480 else "old" for number in range(1000)]
    assert_same(pa.table({"id": range(1000), "v": values}), stored(lake).scan().to_arrow())


def test_keys_that_cannot_be_compared_are_refused() -> None:
    rows = pa.schema([("f", pa.float64()), ("l", pa.list_(pa.int8())), ("i", pa.int8())])
    for keys, order_by in ((("f",), None), (("l",), None), (("i",), "l"), (("x",), None)):
        with pytest.raises(LakeMismatch, match=r"cannot be compared|is not in the rows"):
            check_keys("t", rows, keys, order_by)
    check_keys("t", rows, ("i",), "f")
    with pytest.raises(LakeMismatch, match="column i, a key or the order, is null"):
        newest("t", pa.table({"i": [None, 1]}), ("i",), None)


def test_files_of_other_partitions_are_not_committed(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    lake.prepare(batch_of(0).schema)
    files = lake.writer().write(batch_of(0))
    with catalog_of(target(tmp_path)).load_table("db.orders").update_spec() as spec:
        spec.add_identity("batch")
    lake.open(fresh=True)
    with pytest.raises(LakeUnavailable, match="its partitions changed while a batch was written"):
        lake.commit(Mark(batch=0), lambda mark: True, lambda table: (files, ()))
