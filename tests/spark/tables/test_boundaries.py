"""Values at the boundary of a table that stopped pipelines, or that readers did not find."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from penstock.spark import DeltaSink
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.tables import compact, read_table, remove_orphans
from penstock.spark.tables.files import written_files
from penstock.spark.tables.location import UnreadableTable

pytestmark = pytest.mark.spark

AUTUMN: Final = (1_761_436_800, 1_761_440_400)
"""02:00 in Berlin on 2025-10-26, before and after clocks are set back."""


@pytest.mark.usefixtures("berlin")
def test_times_of_partitions_are_the_batchs(spark: SparkSession, table: Path) -> None:
    """Both hours that clocks show as 02:00 have a partition of their own."""
    rows = spark.range(2).selectExpr(
        "id", f"timestamp_seconds(element_at(array{AUTUMN}, cast(id + 1 as int))) as at"
    )
    DeltaSink(str(table), application="a", partition_by=["at"]).write(rows.coalesce(1), 0)
    read = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert [value.value // 1_000_000 for value in read["at"]] == list(AUTUMN)
    assert pl.scan_delta(str(table)).sort("id").collect()["at"].dt.epoch("s").to_list() == [*AUTUMN]
    seconds = read_table(spark, str(table)).selectExpr("unix_seconds(at) as at").orderBy("at")
    assert [row["at"] for row in seconds.collect()] == list(AUTUMN)


def test_nan_is_found_before_and_after_compaction(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(str(table), application="a")
    for number, value in enumerate(("1", "nan", "inf", "-0")):
        sink.write(
            spark.sql(f"select {number}L as id, double('{value}') as x, true as flag"), number
        )
    for _ in range(2):
        assert read_table(spark, str(table)).where("x > 1").count() == 2
        assert pl.scan_delta(str(table)).filter(pl.col("x") > 1).collect().height == 2
        found = DeltaTable(table).to_pyarrow_dataset().to_table(filter=ds.field("x") >= 0)
        assert sorted(found["id"].to_pylist()) == [0, 2, 3]
        found = DeltaTable(table).to_pyarrow_dataset().to_table(filter=ds.field("flag"))
        assert found.num_rows == 4
        assert compact(str(table)) is not None


def test_odd_years_are_kept_and_found(spark: SparkSession, table: Path) -> None:
    """The zero time of Go and .NET, times BC, and milliseconds taken for seconds."""
    texts = ["0001-01-01", "0999-12-31", "-0044-03-15", "+55873-01-01", "9999-12-31"]
    sink = DeltaSink(str(table), application="a")
    for number, text in enumerate(texts):
        row = f"select {number}L as id, date'{text}' as day, timestamp'{text} 00:00:00' as at"
        assert sink.write(spark.sql(row), number).rows == 1
    for _ in range(2):
        whole = DeltaTable(table).to_pyarrow_table()
        assert whole.num_rows == 5
        for name in ("day", "at"):
            for value in whole[name]:
                condition = ds.field(name) == value
                found = DeltaTable(table).to_pyarrow_dataset().to_table(filter=condition)
                assert found.num_rows == 1
        early = read_table(spark, str(table)).where("day < date'1000-01-01'")
        assert sorted(row["id"] for row in early.select("id").collect()) == [0, 1, 2]
        assert compact(str(table)) is not None


def test_settings_of_a_session_change_no_value(spark: SparkSession, table: Path) -> None:
    """Settings for old readers would have Delta's readers find other dates."""
    others = {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.writeLegacyFormat": "true",
    }
    before = {name: str(spark.conf.get(name)) for name in others}
    row = "select {}L as id, date'0044-03-15' as day, timestamp'9000-01-01' as at, array(1) as list"
    try:
        for name, value in others.items():
            spark.conf.set(name, value)
        sink = DeltaSink(str(table), application="a")
        for number in range(2):
            sink.write(spark.sql(row.format(number)), number)
        assert {name: spark.conf.get(name) for name in others} == others
        for _ in range(2):
            read = DeltaTable(table).to_pyarrow_table()
            assert [str(day) for day in read["day"]] == ["0044-03-15"] * 2
            assert [at.value // 1_000_000 for at in read["at"]] == [221_845_392_000] * 2
            where = "day = date'0044-03-15' and at = timestamp'9000-01-01' and list = array(1)"
            assert read_table(spark, str(table)).where(where).count() == 2
            assert compact(str(table)) is not None
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_old_timestamps_stay_when_files_are_compacted(table: Path) -> None:
    """Files of other tools may have timestamps of 96 bits."""
    rows = pa.table(
        {"id": [1], "at": pa.array([221_845_392_000_000_000], pa.timestamp("us", "UTC"))}
    )
    write_deltalake(table, rows)
    write_deltalake(table, rows, mode="append")
    for uri in DeltaTable(table).file_uris():
        pq.write_table(rows, uri, use_deprecated_int96_timestamps=True)
    assert compact(str(table)) is not None
    read = pq.read_table(DeltaTable(table).file_uris()[0])
    assert [at.value for at in read["at"]] == [221_845_392_000_000_000] * 2


def test_an_added_column_without_a_zone_is_read_by_all(spark: SparkSession, table: Path) -> None:
    sink = DeltaSink(str(table), application="a", add_columns=True)
    sink.write(spark.sql("select 1L as id"), 0)
    sink.write(spark.sql("select 2L as id, timestamp_ntz'2026-01-02 03:04:05.5' as local"), 1)
    found = DeltaTable(table).to_pyarrow_table().sort_by("id")["local"]
    assert [str(local) for local in found] == ["None", "2026-01-02 03:04:05.500000"]
    protocol = DeltaTable(table).protocol()
    assert "timestampNtz" in (protocol.reader_features or [])
    assert read_table(spark, str(table)).where("local is not null").count() == 1


def test_files_beside_the_data_are_not_removed(table: Path) -> None:
    """`clean` does not know of deletion vectors."""
    write_deltalake(table, pa.table({"id": [1]}))
    first = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    features = ["deletionVectors"]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
    first.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(UnreadableTable, match="deletionVectors"):
        remove_orphans(str(table), older_than_hours=1)


def test_strings_of_other_bytes_are_replaced(spark: SparkSession, table: Path) -> None:
    row = """select 1L as id, cast(X'61ff' as string) as s, array(cast(X'80' as string)) as list,
        map(cast(X'ff' as string), 1, cast(X'fe' as string), 2) as held,
        named_struct('a`b', cast(X'ff' as string)) as inner"""
    DeltaSink(str(table), application="a").write(spark.sql(row), 0)
    assert DeltaTable(table).to_pyarrow_table().to_pylist() == [
        {
            "id": 1,
            "s": "a\ufffd",
            "list": ["\ufffd"],
            "held": [("\\xFF", 1), ("\\xFE", 2)],
            "inner": {"a`b": "\ufffd"},
        }
    ]


def test_strings_longer_than_bounds_are_found(spark: SparkSession, table: Path) -> None:
    """Bounds are cut, and a file whose long strings have none keeps the others of its bounds."""
    rows = spark.range(3).selectExpr(
        "id", "concat(repeat('é', 31), '😀', repeat('x', id)) as s", "repeat('z', 5000) as long"
    )
    DeltaSink(str(table), application="a").write(rows, 0)
    for _ in range(2):
        dataset = DeltaTable(table).to_pyarrow_dataset()
        whole = dataset.to_table()
        for value in whole["s"]:
            assert dataset.to_table(filter=ds.field("s") == value).num_rows == 1
        assert dataset.to_table(filter=ds.field("long") > "z").num_rows == 3
        actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
        assert actions["min.id"].null_count == 0
        assert compact(str(table)) is not None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("date'-0044-03-15'", r"p allows the years 1 to 9999, but 2 rows .*'-0044-03-15'"),
        ("timestamp_micros(253402300800000000)", "p allows the years 1 to 9999"),
        ("-1.5", "p allows no negative values with a fraction"),
        ("cast('-0.0000000001' as decimal(38, 10))", "p allows no negative values"),
        ("repeat('/', 90)", "p allows at most 253 bytes"),
        ("concat('a', char(0))", "no zero byte"),
    ],
)
def test_values_that_no_partition_can_have_are_named(
    spark: SparkSession, table: Path, value: str, said: str
) -> None:
    rows = spark.range(2).selectExpr("id", f"{value} as p")
    with pytest.raises(TableMismatch, match=said):
        DeltaSink(str(table), application="a", partition_by=["p"]).write(rows, 0)
    assert not list(table.rglob("*.parquet"))


def test_bytes_are_no_partition(spark: SparkSession, table: Path) -> None:
    rows = spark.sql("select 1L as id, X'ff' as p")
    with pytest.raises(InvalidOption, match="partition_by"):
        DeltaSink(str(table), application="a", partition_by=["p"]).write(rows, 0)


def test_bounds_are_those_of_all_row_groups(table: Path) -> None:
    """Decimals are signed, whatever their bytes are compared as."""
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "price": pa.array([Decimal("-1.50"), Decimal("2.50"), None], pa.decimal128(5, 2)),
            "text": ["é" * 40, "a", None],
        }
    )
    (table / "part").mkdir(parents=True)
    for integers in (False, True):
        file = table / "part" / "0.parquet"
        pq.write_table(rows, file, row_group_size=1, store_decimal_as_integer=integers)
        (written,) = written_files(pa_fs.LocalFileSystem(), str(table), "part", ())
        assert json.loads(written.action(rows.column_names).stats) == {
            "numRecords": 3,
            "nullCount": {"id": 0, "price": 1, "text": 1},
            "minValues": {"id": 1, "price": -1.5, "text": "a"},
            "maxValues": {"id": 3, "price": 2.5, "text": "é" * 32 + "\U0010ffff"},
        }
