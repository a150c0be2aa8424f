"""Filters that narrow a batch read."""

from __future__ import annotations

import datetime

from pyspark.sql import datasource as spark

from penstock.base.ids import TopicPartition
from penstock.spark.pushdown import Selection, narrow

WHEN = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)


def test_offsets_are_met_exactly() -> None:
    filters: list[spark.Filter] = [
        spark.IsNotNull(("offset",)),
        spark.GreaterThan(("offset",), 10),
        spark.LessThanOrEqual(("offset",), 20),
        spark.GreaterThanOrEqual(("offset",), 5),
    ]
    selection, left = narrow(Selection(), filters)
    assert (selection.offset_min, selection.offset_end) == (11, 21)
    assert left == []
    assert narrow(Selection(), [spark.EqualTo(("offset",), 7)])[0].offset_end == 8


def test_words_are_met_exactly() -> None:
    filters: list[spark.Filter] = [
        spark.In(("partition",), (0, 2)),
        spark.EqualTo(("partition",), 2),
        spark.EqualTo(("topic",), "a"),
    ]
    selection, left = narrow(Selection(), filters)
    assert left == []
    assert selection.keeps(TopicPartition("a", 2))
    assert not selection.keeps(TopicPartition("a", 0))
    assert not selection.keeps(TopicPartition("b", 2))


def test_times_raise_the_start_and_stay_with_spark() -> None:
    filters: list[spark.Filter] = [
        spark.GreaterThanOrEqual(("timestamp",), WHEN),
        spark.LessThan(("timestamp",), WHEN),
    ]
    selection, left = narrow(Selection(), filters)
    assert selection.timestamp_min_ms == int(WHEN.timestamp() * 1_000)
    assert left == filters


def test_the_rest_stays_with_spark() -> None:
    filters: list[spark.Filter] = [
        spark.EqualTo(("value",), b"x"),
        spark.Not(spark.EqualTo(("offset",), 1)),
        spark.In(("offset",), (3, 9)),
        spark.StringStartsWith(("topic",), "a"),
        spark.EqualTo(("headers", "key"), "k"),
        spark.IsNotNull(("key",)),
    ]
    selection, left = narrow(Selection(), filters)
    assert left == filters
    assert (selection.offset_min, selection.offset_end) == (3, 10)
