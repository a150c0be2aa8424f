"""Rows that workers write as JSON are those of Spark's `to_json`."""

from __future__ import annotations

import itertools
import json
import math
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.formats.json.writing import json_rows
from penstock.spark.sink.options import is_json_value

pytestmark = pytest.mark.spark
ROWS = 210
EPOCH = datetime(1970, 1, 1)
TIMES = [
    EPOCH, None, EPOCH - timedelta(microseconds=1), datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59), datetime(2026, 5, 6, 7, 8, 9, 123_999),
]  # fmt: skip
REALS = [1.0, 0.1, -0.0, 1e10, 1e-7, 5e-324, math.nan, math.inf, -math.inf, None, 12.5]
TEXTS = ["", "plain", 'a "b" \\ c', "\x00\x01\x1f\x7f\t\n\b\f\r/", "é € 𝄞 \u2028", None]
DAYS = [date(1970, 1, 1), None, date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4)]
PARTS = [{"a b": 1, "x": None}, {"a b": None, "x": None}, None]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [1, None, -128, 127]),
    "id": (pa.int64(), [0, -(2**63), 2**63 - 1, None, 5]),
    "flag": (pa.bool_(), [True, None, False]),
    "real": (pa.float64(), REALS),
    "half": (pa.float32(), [1.0, None, 0.1, 3.4e38, 1e-7]),
    "amount": (pa.decimal128(12, 2), [Decimal("12.50"), None, Decimal("-0.01"), Decimal("0.00")]),
    "fine": (pa.decimal128(38, 18), [Decimal("0"), Decimal("1E-18"), Decimal("12.5"), None]),
    "text": (pa.string(), TEXTS),
    "day": (pa.date32(), DAYS),
    "at": (pa.timestamp("us", "UTC"), TIMES),
    "wall": (pa.timestamp("us"), TIMES),
    "list": (pa.list_(pa.string()), [[], ["a", None, '"'], None]),
    "deep": (pa.list_(pa.list_(pa.int32())), [[[1, None], None, []], None]),
    "map": (
        pa.map_(pa.string(), pa.date32()), [[], [("k\n", date(2026, 1, 1)), ("j", None)], None],
    ),
    "part": (pa.struct({"a b": pa.int32(), "x": pa.string()}), PARTS),
    'od"d': (pa.int32(), [1, None]),
}  # fmt: skip


MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""With them Spark writes all that a time has, six digits always."""


def both_ways(frame: DataFrame) -> tuple[list[str], list[str]]:
    """The rows of a frame as workers write them, and as Spark does."""
    row = F.struct("*")
    both = frame.select(row.alias("row"), F.to_json(row, MICROSECONDS).alias("text")).toArrow()
    theirs = [re.sub(r"(:\d\d\.\d{3})000", r"\1", text) for text in both["text"].to_pylist()]
    return json_rows(both["row"].combine_chunks()).to_pylist(), theirs


@pytest.mark.parametrize("first", ["tiny", "text"])
def test_as_spark_writes_them(spark: SparkSession, first: str) -> None:
    names = sorted(VALUES, key=lambda name: name != first)
    columns = [
        pa.array([*itertools.islice(itertools.cycle(VALUES[name][1]), ROWS)], VALUES[name][0])
        for name in names
    ]
    frame = spark.createDataFrame(pa.table(columns, names))
    assert is_json_value(frame.schema)
    found, wanted = both_ways(frame)
    assert len(found) == ROWS
    if first == "tiny":
        assert '"at":"2026-05-06T07:08:09.123999Z"' in found[5]
    for ours, theirs in zip(found, wanted, strict=True):
        assert repr(json.loads(ours)) == repr(json.loads(theirs))


def test_far_years_have_a_sign(spark: SparkSession) -> None:
    frame = spark.sql(
        "select timestamp_seconds(id) as at, date_from_unix_date(id div 86400) as day"
        " from values (253402300800), (1700000000000), (-62198755200), (-99999999999), (0) as t(id)"
    )
    both = frame.select(
        F.struct("*").alias("row"), F.to_json(F.struct("*")).alias("text")
    ).toArrow()
    assert json_rows(both["row"].combine_chunks()).to_pylist() == both["text"].to_pylist()


@pytest.mark.parametrize("kind", ["binary", "variant", "map<int,int>", "array<binary>"])
def test_what_workers_leave_to_spark(spark: SparkSession, kind: str) -> None:
    assert not is_json_value(spark.createDataFrame([], f"x struct<y:{kind}>").schema)
