"""Tables read by Spark without jars: the rows, types and order that `deltalake` itself reads."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.errors import InvalidOption
from penstock.spark.tables import DeltaSink, read_table, table_version
from penstock.spark.tables.location import UnreadableTable

pytestmark = pytest.mark.spark

STRANGE = "a b:é%+#?[{*}]\\'\"="


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Twelve rows: words with every character that a path treats specially, and nulls."""
    return spark.range(0, 12, 1, 1).select(
        F.when(F.col("id") % 4 > 0, F.concat(F.lit(STRANGE), F.col("id") % 4)).alias("word"),
        "id",
        F.timestamp_millis(F.col("id") * 1_500).alias("at"),
        F.array(F.struct(F.lit("k").alias("key"), F.lit(b"v").alias("value"))).alias("headers"),
        F.when(F.col("id") % 3 > 0, F.date_add(F.lit("2026-01-01").cast("date"), 3)).alias("day"),
        (F.col("id") % 2).cast("int").alias("odd"),
    )


def as_others_read(table: Path, version: int | None = None) -> list[dict[str, object]]:
    read = DeltaTable(str(table), version=version).to_pyarrow_table()
    return sorted(read.to_pylist(), key=lambda row: int(row["id"]))


def as_spark_reads(frame: DataFrame) -> list[dict[str, object]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: int(row["id"]))


@pytest.mark.parametrize("partition_by", [(), ("word",), ("day", "word", "odd"), ("at",)])
def test_rows_types_and_order_are_the_tables(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    table = tmp_path / "ta ble {1} é% *?#"
    DeltaSink(str(table), application="a", partition_by=partition_by).write(rows, 0)
    read = read_table(spark, str(table))
    assert read.columns == rows.columns
    assert read.schema.simpleString() == rows.schema.simpleString()
    assert as_spark_reads(read) == as_others_read(table) == as_spark_reads(rows)
    assert read.where("word is null").count() == 3


def test_tables_of_others_are_read(spark: SparkSession, table: Path) -> None:
    given = pa.table(
        {"id": [1, 2, 3], "part": ["x/y", None, "z%"], "price": pa.array([1, 2, None], pa.int8())}
    )
    write_deltalake(table, given, partition_by=["part"])
    assert as_spark_reads(read_table(spark, str(table))) == given.to_pylist()


def test_a_version_is_pinned(spark: SparkSession, rows: DataFrame, table: Path) -> None:
    assert table_version(str(table)) is None
    with pytest.raises(InvalidOption, match="is not a Delta table"):
        read_table(spark, str(table))
    sink = DeltaSink(str(table), application="a")
    sink.write(rows, 0)
    before = read_table(spark, str(table))
    sink.write(rows, 1)
    assert table_version(str(table)) == 1
    assert before.count() == 12
    assert read_table(spark, str(table)).count() == 24
    assert read_table(spark, str(table), version=0).count() == 12


def test_a_new_column_is_null_in_old_files(
    spark: SparkSession, rows: DataFrame, table: Path
) -> None:
    sink = DeltaSink(str(table), application="a", partition_by=["odd"], add_columns=True)
    sink.write(rows, 0)
    sink.write(rows.withColumn("more", F.lit(7)).withColumn("id", F.col("id") + 100), 1)
    read = read_table(spark, str(table))
    assert read.columns == [*rows.columns, "more"]
    assert read.where("more = 7").count() == 12
    assert read.where("more is null and id < 100").count() == 12


def test_an_empty_table_has_its_columns(spark: SparkSession, table: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    write_deltalake(table, schema.empty_table())
    read = read_table(spark, str(table))
    assert (read.columns, read.count()) == (["id", "word"], 0)


def test_filters_reach_the_files(spark: SparkSession, rows: DataFrame, table: Path) -> None:
    DeltaSink(str(table), application="a", partition_by=["odd"]).write(rows, 0)
    read = read_table(spark, str(table)).where("id < 3")
    plan = read._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters" in plan
    assert "LessThan(id,3)" in plan
    assert read.count() == 3


@pytest.mark.parametrize(
    ("protocol", "configuration", "named"),
    [
        (
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
             "writerFeatures": ["deletionVectors"]},
            {"delta.enableDeletionVectors": "true"},
            "deletionVectors",
        ),
        (
            {"minReaderVersion": 2, "minWriterVersion": 5},
            {"delta.columnMapping.mode": "name"},
            "column mapping",
        ),
    ],
)  # fmt: skip
def test_what_would_be_read_wrongly_is_refused(
    spark: SparkSession,
    table: Path,
    protocol: dict[str, object],
    configuration: dict[str, str],
    named: str,
) -> None:
    write_deltalake(table, pa.table({"id": [1]}))
    first = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": f"col-{number}",
                }
            action["metaData"]["schemaString"] = json.dumps(schema)
    first.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(UnreadableTable, match=named):
        read_table(spark, str(table))


def test_a_place_that_cannot_be_opened_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a[1]", "a%20b"):
        with pytest.raises(InvalidOption, match="cannot open paths"):
            read_table(spark, str(tmp_path / name))
