"""Tables of other tools as sinks: what is written is what was sent, or it is refused at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from penstock.base.errors import PenstockError
from penstock.spark import DeltaSink, DeltaUpsert
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.tables.location import UnwritableTable
from penstock.spark.tables.schemas import schema_of
from tests.formats.drawn import SPARK_EXAMPLES
from tests.sampling import sample
from tests.spark.tables.foreign_tables import foreign
from tests.spark.tables.odd_values import as_text, frame_of, plain, readings, rows_of
from tests.spark.tables.test_values import FIT, PARTITIONED_ROWS_MAX, PARTITIONS

pytestmark = pytest.mark.spark

Sink = Callable[[Path], DeltaSink | DeltaUpsert]
ONLY_ID: Final = {"delta.dataSkippingStatsColumns": "id"}
LEGACY: Final = (1, 2)
NUMBER: Final = {"name": "id", "type": "long"}
TEXT: Final = {"name": "v", "type": "string"}
AT: Final = {"name": "at", "type": "timestamp"}
READ_BY_ALL: Final = "abs({0}) between 1e-100D and 1e100D or {0} = 0 or isnan({0})"


def appending(table: Path, **more: Any) -> DeltaSink:
    return DeltaSink(str(table), application="a", **more)


def upserting(table: Path, **more: Any) -> DeltaUpsert:
    return DeltaUpsert(str(table), application="a", keys=["id"], **more)


def refused(sink: DeltaSink | DeltaUpsert, batch: DataFrame, words: str) -> None:
    """A sink refuses a batch when it is checked, and when it is written, before any commit."""
    before = DeltaTable(sink_table(sink)).version()
    for attempt in (lambda: sink.check(batch), lambda: sink.write(batch, 99)):
        with pytest.raises(PenstockError, match=words) as caught:
            attempt()
        assert isinstance(caught.value, (TableMismatch, UnwritableTable, InvalidOption))
    assert DeltaTable(sink_table(sink)).version() == before


def sink_table(sink: DeltaSink | DeltaUpsert) -> str:
    return sink.table if isinstance(sink, DeltaSink) else sink._sink.table


def rows_in(table: Path) -> list[dict[str, Any]]:
    """The rows, which deltalake and Polars read alike."""
    found: list[dict[str, Any]] = pl.scan_delta(str(table)).collect().to_dicts()
    assert sorted(map(repr, DeltaTable(table).to_pyarrow_table().to_pylist())) == sorted(
        map(repr, found)
    )
    return found


@pytest.mark.parametrize("partition_by", sample(PARTITIONS, 6), ids=" ".join)
def test_merges_put_rows_into_partitions_that_all_readers_find(
    spark: SparkSession, table: Path, partition_by: tuple[str, ...]
) -> None:
    """The second merge moves each row to the partition of another one."""
    rows = rows_of(partition_by, min(SPARK_EXAMPLES, PARTITIONED_ROWS_MAX))
    frame = frame_of(spark, rows)
    for name in partition_by:
        frame = frame.where(f"{name} is null or {FIT.get(name, 'true')}")
        if name in {"d", "f"}:
            frame = frame.where(f"{name} is null or {READ_BY_ALL.format(name)}")
    frame = frame.coalesce(1).cache()
    fields = json.loads(schema_of(frame.schema).to_json())["fields"]
    ntz = ["timestampNtz"] if "local" in partition_by else []
    foreign(table, fields, reader=ntz, protocol=(3, 7) if ntz else LEGACY,
            properties=ONLY_ID, partition_by=partition_by)  # fmt: skip
    sink = upserting(table)
    for number, shift in enumerate((1, 0)):
        moved = frame.selectExpr(f"id + {shift} as id", *partition_by)
        assert sink.write(moved, number).rows == frame.count()
    wanted = as_text(frame.selectExpr("*").toArrow()) if "s" not in partition_by else None
    read = readings(spark, table, partition_by)
    for reader, found in read.items():
        assert plain(found) == plain(read["spark"]), reader
    if wanted is not None:
        there = read["spark"].filter(pc.is_in(read["spark"]["id"], wanted["id"]))
        assert plain(there) == plain(wanted)
    frame.unpersist()


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("decimal(10,2)", "cast(-1.5 as decimal(10,2))", "no negative values with a fraction"),
        ("date", "date'+10000-01-01'", "allows the years 1 to 9999"),
        ("double", "1e300D", "allows absolute values from 1e-100"),
        ("float", "cast(1e-44 as float)", None),
        ("string", "repeat('x', 300)", "allows at most 253 bytes"),
    ],
)
def test_partition_values_that_no_reader_takes_are_refused_by_merges(
    spark: SparkSession, table: Path, kind: str, value: str, words: str | None
) -> None:
    foreign(table, [NUMBER, {"name": "p", "type": kind}], protocol=LEGACY, partition_by=["p"])
    sink = upserting(table, delete_when="id < 0")
    batch = spark.sql(f"select 1L as id, {value} as p")
    if words is None:
        sink.write(batch, 0)
        assert len(rows_in(table)) == 1
        return
    with pytest.raises(TableMismatch, match=words):
        sink.write(batch, 0)
    assert DeltaTable(table).version() == 0
    assert sink.write(spark.sql(f"select -1L as id, {value} as p"), 0).rows == 1  # it is not stored


def test_texts_that_stand_for_null_are_null_in_merges(spark: SparkSession, table: Path) -> None:
    foreign(table, [NUMBER, TEXT], protocol=LEGACY, partition_by=["v"])
    batch = "values (1L, ''), (2L, '__HIVE_DEFAULT_PARTITION__'), (3L, 'a'), (4L, null) as t(id, v)"
    upserting(table).write(spark.sql(f"select * from {batch}"), 0)
    assert {row["id"]: row["v"] for row in rows_in(table)} == {1: None, 2: None, 3: "a", 4: None}


def test_bytes_are_no_partition_of_merges(spark: SparkSession, table: Path) -> None:
    foreign(table, [NUMBER, {"name": "p", "type": "binary"}], protocol=LEGACY, partition_by=["p"])
    refused(upserting(table), spark.sql("select 1L as id, X'ff00' as p"), "has type binary")


@pytest.mark.parametrize(
    "condition", ["year(at) > 2000", "v rlike '^a'", "V <> 'b'", "size(l) > 0"]
)
def test_checks_that_merges_cannot_evaluate_are_refused_and_appends_keep_them(
    spark: SparkSession, table: Path, condition: str
) -> None:
    words = {"name": "l", "type": {"type": "array", "elementType": "long", "containsNull": True}}
    foreign(table, [NUMBER, AT, TEXT, words], protocol=(1, 3),
            properties={"delta.constraints.c": condition})  # fmt: skip
    rows = spark.sql("select 1L as id, timestamp'2026-01-01 00:00:00' as at, 'a' as v, array(1L) l")
    refused(upserting(table), rows, "constraint c is .* which deltalake cannot evaluate")
    assert appending(table).write(rows, 0).rows == 1
    bad = spark.sql("select 1L as id, timestamp'1999-01-01 00:00:00' as at, 'b' as v, array() l")
    with pytest.raises(TableMismatch, match="constraint c is"):
        appending(table).write(bad.selectExpr("id", "at", "v", "cast(l as array<bigint>) l"), 1)


def test_rules_that_spark_cannot_evaluate_are_refused(spark: SparkSession, table: Path) -> None:
    foreign(table, [NUMBER, TEXT], protocol=(1, 3),
            properties={"delta.constraints.c": "regexp_match(v, 'a') is not null"})  # fmt: skip
    rows = spark.sql("select 1L as id, 'a' as v")
    refused(appending(table), rows, "constraint c is .* which Spark cannot evaluate")
    assert upserting(table).write(rows, 0).rows == 1


@pytest.mark.parametrize("partition_by", [(), ("day",)], ids=["plain", "partitioned"])
def test_generated_columns_follow_their_rows(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    made = {"delta.generationExpression": "CAST(at AS DATE)"}
    day = {"name": "day", "type": "date", "nullable": False, "metadata": made}
    for sink in (appending(tmp_path / "appended", partition_by=partition_by),
                 upserting(tmp_path / "merged")):  # fmt: skip
        table = Path(sink_table(sink))
        foreign(table, [NUMBER, AT, day], protocol=(1, 4), partition_by=partition_by)
        for number, text in enumerate(("2026-01-01 23:59:59", "2026-02-03 00:00:00")):
            rows = spark.sql(f"select 1L as id, timestamp'{text}' as at")
            sink.check(rows)
            sink.write(rows, number)
        days = sorted(str(row["day"]) for row in rows_in(table))
        assert days == ["2026-01-01", "2026-02-03"][isinstance(sink, DeltaUpsert) :]
        wrong = spark.sql(
            "select 2L as id, timestamp'2026-01-01 00:00:00' as at, date'2026-01-02' day"
        )
        with pytest.raises(TableMismatch):
            sink.write(wrong, 9)


@pytest.mark.parametrize("sink", [appending, upserting])
def test_lengths_of_varchar_are_kept(spark: SparkSession, table: Path, sink: Sink) -> None:
    length = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    foreign(table, [NUMBER, TEXT | {"metadata": length}], protocol=LEGACY)
    made = sink(table)
    with pytest.raises(TableMismatch, match=r"column v is varchar\(3\), but 1 rows .* 'äöüß'"):
        made.write(spark.sql("select 1L as id, 'äöüß' as v"), 0)
    assert made.write(spark.sql("select 1L as id, 'äöü' as v"), 0).rows == 1


@pytest.mark.parametrize("sink", [appending, upserting])
@pytest.mark.parametrize("protocol", [LEGACY, (1, 3), (1, 7)], ids=str)
def test_times_without_a_zone_are_added_with_their_feature(
    spark: SparkSession, table: Path, sink: Callable[..., DeltaSink | DeltaUpsert],
    protocol: tuple[int, int],
) -> None:  # fmt: skip
    foreign(table, [NUMBER], ["invariants"], protocol=protocol,
            properties=ONLY_ID)  # fmt: skip
    made = sink(table, add_columns=True)
    for number in range(2):
        made.write(
            spark.sql(f"select {number}L as id, timestamp_ntz'2026-01-01 00:00:00' as t"), number
        )
    assert [str(row["t"]) for row in rows_in(table)] == ["2026-01-01 00:00:00"] * 2


@pytest.mark.parametrize("reader", [(), ("timestampNtz",)], ids=["writer", "reader"])
def test_merges_give_a_table_no_features(
    spark: SparkSession, table: Path, reader: tuple[str, ...]
) -> None:
    """The first odd day ends bounds of days, which the properties of such a table cannot say."""
    day = {"name": "day", "type": "date"}
    protocol = (3 if reader else 1, 7)
    foreign(table, [NUMBER, day], ["appendOnly", "invariants"], reader=reader, protocol=protocol)
    rows = spark.sql("select 0L as id, date'2026-01-01' as day")
    refused(upserting(table), rows, r"Set delta.dataSkippingStatsColumns = '`id`,`day`' with")
    shutil.rmtree(table)
    foreign(table, [NUMBER, day], ["appendOnly", "invariants"], reader=reader, protocol=protocol,
            properties=ONLY_ID)  # fmt: skip
    before = DeltaTable(table).protocol()
    for number, text in enumerate(("2026-01-01", "+10000-01-01", "2026-01-02")):
        rows = spark.sql(f"select {number}L as id, date'{text}' as day")
        assert upserting(table).write(rows, number).rows == 1
    after = DeltaTable(table).protocol()
    assert (after.min_reader_version, after.reader_features, set(after.writer_features or ())) == (
        before.min_reader_version, before.reader_features, set(before.writer_features or ())
    )  # fmt: skip
    found = readings(spark, table, ["day"])
    assert all(plain(rows) == plain(found["spark"]) for rows in found.values())
    assert found["spark"].num_rows == 3


@pytest.mark.parametrize("added", [False, True], ids=["made with", "added"])
def test_merges_into_an_own_table_with_local_times_lose_nothing(
    spark: SparkSession, table: Path, added: bool
) -> None:
    """An odd day in a later batch, by every reader, and filtered."""
    sink = upserting(table, add_columns=True)
    for number, text in enumerate(("2026-01-01", "+10000-01-01", "2026-01-02", "0000-01-01")):
        local = "timestamp_ntz'2026-01-01 00:00:00' as local"
        rows = spark.sql(f"select {number}L as id, date'{text}' as day, {local}")
        rows = rows.drop("local") if added and not number else rows
        sink.check(rows)
        assert sink.write(rows, number).rows == 1
    assert DeltaTable(table).protocol().reader_features == ["timestampNtz"]
    found = readings(spark, table, ["day", "local"])
    assert all(plain(rows) == plain(found["spark"]) for rows in found.values())
    for day in (0, 20_454, 2_932_897):
        kept = pc.field("day") >= pa.scalar(day, pa.int32()).cast(pa.date32())
        there = DeltaTable(table).to_pyarrow_dataset().to_table(filter=kept).num_rows
        assert there == found["spark"].filter(kept).num_rows > 0


FEATURES: Final = (
    "identityColumns", "typeWidening", "clustering", "rowTracking", "inCommitTimestamp",
    "allowColumnDefaults", "variantType", "checkpointProtection", "icebergCompatV2",
    "domainMetadata", "materializePartitionColumns", "notYetThere",
)  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
def test_features_that_are_not_kept_are_refused(
    spark: SparkSession, tmp_path: Path, feature: str
) -> None:
    rows = spark.range(3)
    for sink in (appending(tmp_path / "one"), upserting(tmp_path / "two")):
        reads = feature in {"typeWidening", "variantType"}
        foreign(Path(sink_table(sink)), [NUMBER], [] if reads else [feature],
                reader=[feature] if reads else [], protocol=(3 if reads else 1, 7))  # fmt: skip
        refused(sink, rows, feature)


@pytest.mark.parametrize("mode", ["id", "name"])
def test_mapped_columns_are_refused(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    properties = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "1"}
    for sink in (appending(tmp_path / "one"), upserting(tmp_path / "two")):
        foreign(Path(sink_table(sink)), [NUMBER | {"metadata": mapped}], protocol=(2, 5),
                properties=properties)  # fmt: skip
        refused(sink, spark.range(3), "column mapping")


@pytest.mark.parametrize("batch", ["named_struct('a', 1L, 'b', 2L)", "named_struct('b', 2L)"])
def test_fields_that_columns_lack_are_refused(
    spark: SparkSession, tmp_path: Path, batch: str
) -> None:
    """Readers do not agree on files that lack a field: a new column takes it."""
    field = {"name": "a", "type": "long", "nullable": True, "metadata": {}}
    column = {"name": "s", "type": {"type": "struct", "fields": [field]}}
    for sink in (appending(tmp_path / "one", add_columns=True),
                 upserting(tmp_path / "two", add_columns=True)):  # fmt: skip
        foreign(Path(sink_table(sink)), [NUMBER, column], protocol=LEGACY)
        refused(sink, spark.sql(f"select 1L as id, {batch} as s"), "has type struct<a: long> in")
