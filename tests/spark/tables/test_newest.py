"""The newest row of each key: by columns as by the obvious loop, and as Spark finds it."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from penstock.spark.tables.newest import Newest, in_tasks

FLOATS = (0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, 5e-324)
MOMENTS = (
    datetime.datetime(1, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(9999, 12, 31),
)  # fmt: skip
VALUES: dict[pa.DataType, tuple[Any, ...]] = {
    pa.bool_(): (False, True),
    pa.int8(): (-128, 0, 127),
    pa.int64(): (-(2**63), -1, 0, 1, 2**63 - 1),
    pa.decimal128(5, 2): (Decimal("-999.99"), Decimal("0.00"), Decimal("999.99")),
    pa.decimal128(38, 0): (Decimal(-(10**38) + 1), Decimal(0), Decimal(10**38 - 1)),
    pa.string(): ("", "a", "A", "a ", "ä", "z", "\u2028", "😀", "\uffff"),
    pa.binary(): (b"", b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"\xff"),
    pa.date32(): (datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): tuple(moment.replace(tzinfo=datetime.UTC) for moment in MOMENTS),
}
ORDERS = VALUES | {pa.float64(): FLOATS, pa.float32(): (*FLOATS[:-1], 1e-45)}
LONG = T.LongType()
NAMES = ("first", "age_max", "0")


def rank(order: Any, removes: bool) -> tuple[Any, ...]:
    """Return the sink's order: null is the greatest, then NaN; of equal ones a removal wins."""
    if order is None:
        return (2, 0, removes)
    if isinstance(order, float) and math.isnan(order):
        return (1, 0, removes)
    return (0, order.encode() if isinstance(order, str) else order, removes)


def check(given_rows: list[dict[str, Any]], found: list[dict[str, Any]], keys: list[str]) -> None:
    """Check one existing row of each key, of which none is greater."""
    greatest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in given_rows:
        key = tuple(row[name] for name in keys)
        mine = rank(row["at"], row["removes"])
        greatest[key] = max(greatest.get(key, mine), mine)
    by_number = {row["number"]: row for row in given_rows}
    assert len(found) == len(greatest)
    for row in found:
        assert repr(by_number[row["number"]]) == repr(row)
        key = tuple(row[name] for name in keys)
        assert rank(row["at"], row["removes"]) == greatest.pop(key)


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[str]]:
    keys = list(NAMES[: draw(st.integers(1, len(NAMES)))])
    types = [draw(st.sampled_from(list(VALUES))) for _ in keys]
    order = draw(st.sampled_from(list(ORDERS)))
    columns = [st.sampled_from((*VALUES[kind], None)) for kind in types]
    columns += [st.sampled_from((*ORDERS[order], None)), st.booleans()]
    rows = draw(st.lists(st.tuples(*columns), max_size=60))
    kinds = [*types, order, pa.bool_()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    numbers = pa.array(range(len(rows)), pa.int64())
    table = pa.table([*arrays, numbers], names=[*keys, "at", "removes", "number"])
    return table, keys


@given(
    made=tables(), split=st.integers(1, 9), tasks=st.integers(1, 4), small=st.integers(0, 1_000),
    most=st.integers(0, 1_000),
)  # fmt: skip
def test_it_is_what_a_loop_finds(
    made: tuple[pa.Table, list[str]], split: int, tasks: int, small: int, most: int
) -> None:
    table, keys = made
    newest = Newest(
        keys=tuple(keys), order=("at", "removes"), reduced_bytes=small, kept_bytes_max=most
    )
    check(table.to_pylist(), newest.of(table).to_pylist(), keys)
    shares = [itertools.islice(table.to_batches(split), at, None, tasks) for at in range(tasks)]
    given_on = [batch for share in shares for batch in newest(share)]
    together = newest.of(pa.Table.from_batches(given_on, table.schema))
    check(table.to_pylist(), together.to_pylist(), keys)


def test_a_task_keeps_no_more_than_its_bound() -> None:
    newest = Newest(keys=("id",), order=("at",), reduced_bytes=1_000, kept_bytes_max=10_000)
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for start in range(0, 100_000, 100):
            taken += 100
            numbers = pa.array(range(start, start + 100), pa.int64())
            yield pa.RecordBatch.from_arrays([numbers, numbers], ["id", "at"])

    handed = 0
    for batch in newest(batches()):
        handed += batch.num_rows
        if batch.num_rows:
            assert (taken - handed) * 16 <= 2 * 10_000 + 1_600
    assert handed == taken == 100_000


def spark_rows(spark: SparkSession) -> DataFrame:
    """Every value of every type, nulls too, in rows of few keys."""
    width = max(map(len, ORDERS.values())) + 1
    columns: dict[str, pa.Array] = {}
    for kind, values in ORDERS.items():
        several = [*values, None]
        picked = [several[number * 7 % width % len(several)] for number in range(width * 8)]
        columns[str(kind)] = pa.array(picked, kind)
    numbers = pa.array(range(width * 8), pa.int64())
    frame = spark.createDataFrame(
        pa.table([*columns.values(), numbers], names=[*map(str, columns), "number"])
    )
    return frame.repartition(3).withColumn("removes", F.col("number") % 3 == 0)


@pytest.mark.spark
def test_spark_finds_the_same(spark: SparkSession) -> None:
    """Each type as a key, and each as an order: Spark's own grouping passes the same check."""
    frame = spark_rows(spark).cache()
    table = frame.toArrow()
    by_number = {row["number"]: row for row in table.to_pylist()}
    pairs = {key: ["int64"] for key in map(str, VALUES)} | {"int8": list(map(str, ORDERS))}
    for key, orders in pairs.items():
        columns = [F.col(f"`{order}`") for order in orders]
        ranks = [F.struct(column.isNull(), column, "removes") for column in columns]
        numbers = [F.max_by("number", rank).alias(str(at)) for at, rank in enumerate(ranks)]
        found = frame.groupBy(f"`{key}`").agg(*numbers).toArrow()
        for at, order in enumerate(orders):
            assert in_tasks(frame.schema, keys=[key], order=order)
            ours = Newest(keys=(key,), order=(order, "removes")).of(table)["number"].to_pylist()
            for picked in (ours, found[str(at)].to_pylist()):
                every, some = (
                    [row | {"at": row[order]} for row in rows]
                    for rows in (by_number.values(), [by_number[number] for number in picked])
                )
                check(every, some, [key])
    frame.unpersist()


@pytest.mark.parametrize(
    ("key", "order", "fits"),
    [
        (LONG, T.DoubleType(), True),
        (T.StringType(), T.StringType(), True),
        (T.DoubleType(), LONG, False),
        (T.FloatType(), LONG, False),
        (LONG, T.StructType([T.StructField("a", LONG)]), False),
        (T.ArrayType(LONG), LONG, False),
        (LONG, T.DayTimeIntervalType(), False),
    ],
)
def test_what_arrow_sees_otherwise_is_left_to_spark(
    key: T.DataType, order: T.DataType, fits: bool
) -> None:
    schema = T.StructType([T.StructField("k", key), T.StructField("o", order)])
    assert in_tasks(schema, keys=["k"], order="o") is fits
