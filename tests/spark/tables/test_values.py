"""Values of every type: each reader finds what was written, filtered or not, compacted or not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark import DeltaSink
from penstock.spark.tables import compact, read_table
from penstock.spark.tables.schemas import schema_of
from tests.formats.drawn import SPARK_EXAMPLES
from tests.sampling import sample
from tests.spark.tables.odd_values import COLUMNS, as_text, frame_of, plain, readings, rows_of

pytestmark = pytest.mark.spark

BATCHES: Final = 3
OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "is null", "is not null")
COMPARED: Final = tuple(
    name for name in COLUMNS if name not in {"nested", "list", "held", "deep", "b"}
)
PARTITIONS: Final = (("flag", "tiny", "at", "f"), ("day", "s", "dec38"), ("local", "d", "small"),
                     ("dec5", "big", "middle", "dec18"))  # fmt: skip
PARTITIONED_ROWS_MAX: Final = 500
SPARK_FILTERS: Final = 24
OTHERS_ROWS: Final = 40
FIT: Final = {
    "at": "unix_micros(at) between -62135596800000000 and 253402300799999999",
    "day": "year(day) between 1 and 9999",
    "local": "year(local) between 1 and 9999",
    "dec5": "(dec5 >= 0 or dec5 % 1 = 0)",
    "dec18": "(dec18 >= 0 or dec18 % 1 = 0)",
    "dec38": "(dec38 >= 0 or dec38 % 1 = 0)",
    "s": "octet_length(s) < 80 and not contains(s, char(0))",
}


@pytest.mark.usefixtures("berlin")
def test_readers_agree_on_every_value(spark: SparkSession, table: Path) -> None:
    names = list(COLUMNS)
    rows = rows_of(names)
    frame = frame_of(spark, rows)
    sink = DeltaSink(str(table), application="a")
    for number in range(BATCHES):
        sink.write(frame.where(f"id % {BATCHES} = {number}"), number)
    wanted = plain(as_text(rows))
    for _ in range(2):
        for reader, read in readings(spark, table, names).items():
            assert plain(read) == wanted, reader
        assert compact(str(table)) is not None


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    "partition_by",
    sample(PARTITIONS, 4),
    ids=" ".join,
)
def test_readers_agree_on_partition_values(
    spark: SparkSession, table: Path, partition_by: tuple[str, ...]
) -> None:
    frame = frame_of(spark, rows_of(partition_by, min(SPARK_EXAMPLES, PARTITIONED_ROWS_MAX)))
    for name in partition_by:
        frame = frame.where(f"{name} is null or {FIT.get(name, 'true')}")
        if name in {"d", "f"}:  # the two zeros are one partition
            frame = frame.withColumn(name, F.expr(f"if({name} = 0, abs({name}), {name})"))
    frame = frame.coalesce(1).cache()
    text = {"s": F.col("s").cast("binary")} if "s" in partition_by else {}
    rows = frame.withColumns(text).toArrow()
    sink = DeltaSink(str(table), application="a", partition_by=partition_by)
    sink.write(frame.where("id % 2 = 0"), 0)
    sink.write(frame.where("id % 2 = 1"), 1)
    frame.unpersist()
    if "s" in rows.column_names:
        none = [None if text in {"", "__HIVE_DEFAULT_PARTITION__"} else text
                for text in as_text(rows)["s"].to_pylist()]  # fmt: skip
        rows = rows.set_column(rows.column_names.index("s"), "s", pa.array(none, pa.string()))
    for _ in range(2):
        for reader, read in readings(spark, table, partition_by).items():
            assert plain(read) == plain(rows), reader
        assert compact(str(table)) is not None


def test_no_filter_loses_a_row(spark: SparkSession, table: Path) -> None:
    """Readers skip files by statistics; the oracle is each reader's own filter on all rows."""
    rows = frame_of(spark, rows_of(list(COLUMNS)))
    sink = DeltaSink(str(table), application="a")
    for number in range(BATCHES):
        # Sorted batches have narrow bounds.
        part = rows.where(f"id % {BATCHES} = {number}").orderBy(COMPARED[number + 5])
        sink.write(part, number)
    count = max(SPARK_EXAMPLES, len(COMPARED) * len(OPERATORS))
    for first in (0, count):
        opened = DeltaTable(str(table))
        whole = opened.to_pyarrow_table()
        dataset = opened.to_pyarrow_dataset()
        chosen = list(filters(whole, first, count))
        for name, operator, at in chosen:
            check_arrow(dataset, whole, name, operator, at)
            check_polars(opened, whole, name, operator, at)
        check_duckdb(dataset, whole, chosen)
        check_spark(spark, table, chosen, whole)
        assert compact(str(table)) is not None


@pytest.mark.long
@pytest.mark.parametrize(
    "properties",
    sample(
        [
            {"delta.dataSkippingStatsColumns": "id,tiny,dec15,nested.f"},
            {},
            {"delta.dataSkippingNumIndexedCols": "3"},
            {"delta.dataSkippingStatsColumns": "`id`,flag,d,day,dec15"},
        ],
        4,
    ),
    ids=str,
)
def test_no_filter_loses_a_row_of_tables_of_others(
    spark: SparkSession, table: Path, properties: dict[str, str | None]
) -> None:
    """Readers expect bounds of the columns that the table names, or of the first ones."""
    rows = frame_of(spark, rows_of(list(COLUMNS), OTHERS_ROWS)).coalesce(1).cache()
    schema = schema_of(rows.schema)
    write_deltalake(table, pa.schema(schema.to_arrow()).empty_table(), configuration=properties)
    sink = DeltaSink(str(table), application="a")
    sink.write(rows.where("id % 2 = 0"), 0)
    sink.write(rows.where("id % 2 = 1").drop("big", "d"), 1)
    rows.unpersist()
    for _ in range(2):
        opened = DeltaTable(str(table))
        whole = opened.to_pyarrow_table()
        assert whole.num_rows == OTHERS_ROWS
        for name, operator, at in filters(whole, 0, len(COMPARED) * len(OPERATORS)):
            check_arrow(opened.to_pyarrow_dataset(), whole, name, operator, at)
            check_polars(opened, whole, name, operator, at)
        assert compact(str(table)) is not None


def filters(whole: pa.Table, first: int, count: int) -> Iterator[tuple[str, str, int]]:
    """Column, operator and the row whose value is compared, in turn."""
    filled = {
        name: [at for at, value in enumerate(whole[name]) if value.is_valid] for name in COMPARED
    }
    for number in range(first, first + count):
        name = COMPARED[number % len(COMPARED)]
        turn = number // len(COMPARED)
        yield name, OPERATORS[turn % len(OPERATORS)], filled[name][turn % len(filled[name])]


def check_arrow(dataset: ds.Dataset, whole: pa.Table, name: str, operator: str, at: int) -> None:
    field, value = ds.field(name), ds.scalar(whole[name][at])
    condition = {
        "=": field == value, "!=": field != value, "<": field < value,
        "<=": field <= value, ">": field > value, ">=": field >= value,
        "is null": field.is_null(), "is not null": field.is_valid(),
    }[operator]  # fmt: skip
    found = dataset.to_table(["id"], filter=condition)
    wanted = whole.filter(condition)
    assert sorted(found["id"].to_pylist()) == sorted(wanted["id"].to_pylist()), (name, operator)


def check_polars(opened: DeltaTable, whole: pa.Table, name: str, operator: str, at: int) -> None:
    rows = pl.DataFrame(whole)
    field, value = pl.col(name), pl.lit(rows[name].slice(at, 1)).first()
    condition = {
        "=": field == value, "!=": field != value, "<": field < value,
        "<=": field <= value, ">": field > value, ">=": field >= value,
        "is null": field.is_null(), "is not null": field.is_not_null(),
    }[operator]  # fmt: skip
    found = pl.scan_delta(opened).filter(condition).select("id").collect()
    wanted = rows.filter(condition)
    assert sorted(found["id"]) == sorted(wanted["id"]), (name, operator, at)


def check_duckdb(dataset: ds.Dataset, whole: pa.Table, chosen: list[tuple[str, str, int]]) -> None:
    with duckdb.connect() as connection:
        connection.register("skipping", dataset)
        connection.register("whole", whole)
        for name, operator, at in chosen:
            value = in_python(whole[name][at])
            null = operator.startswith("is")
            if value is None and not null:
                continue
            condition = f'"{name}" {operator}' + (" ?" if not null else "")
            found = [
                connection.execute(
                    f"select id from {rows} where {condition} order by id",
                    [value] if not null else [],
                ).fetchall()
                for rows in ("skipping", "whole")
            ]
            assert found[0] == found[1], (name, operator, value)


def in_python(value: pa.Scalar) -> Any:
    """A value of Python; None for dates and times that it does not have."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return None


def check_spark(
    spark: SparkSession, table: Path, chosen: list[tuple[str, str, int]], whole: pa.Table
) -> None:
    """Filters in one job, and the same conditions as columns, which skip nothing, in another."""
    rows = read_table(spark, str(table))
    conditions = [
        f"{name} {operator}"
        + ("" if operator.startswith("is") else f" {in_spark(name, whole[name][at])}")
        for name, operator, at in islice(chosen, 0, None, len(chosen) // SPARK_FILTERS or 1)
    ]
    parts = [rows.where(condition).selectExpr(f"{number} as number", "id")
             for number, condition in enumerate(conditions)]  # fmt: skip
    found = {(row.number, row.id) for row in reduce(DataFrame.unionAll, parts).collect()}
    columns = [f"{condition} as c{number}" for number, condition in enumerate(conditions)]
    wanted = {
        (number, row.id)
        for row in rows.selectExpr("id", *columns).collect()
        for number in range(len(conditions))
        if row[f"c{number}"]
    }
    assert found == wanted, conditions


def in_spark(name: str, value: pa.Scalar) -> str:
    """A value as a literal in SQL, or what Spark makes one of."""
    if name == "day":
        return f"date_from_unix_date({value.cast(pa.int32()).as_py()})"
    if name == "at":
        return f"timestamp_micros({value.cast(pa.int64()).as_py()})"
    if name == "local":
        seconds, micros = divmod(value.cast(pa.int64()).as_py(), 1_000_000)
        return (
            f"cast(timestamp_seconds({seconds}) as timestamp_ntz) + interval {micros} microsecond"
        )
    if name == "s":
        return f"cast(X'{value.as_py().encode().hex()}' as string)"
    kind = {"f": "float", "d": "double"}.get(name)
    return f"cast('{value.as_py()}' as {kind})" if kind else str(value.as_py())
