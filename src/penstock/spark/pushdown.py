"""Filters of a batch query that narrow what is read: topic, partition, offset, timestamp.

Each filter narrows a `Selection`. Those on topic, partition and offset are met exactly, so Spark
need not test them again. Those on timestamp only raise the start (the first record of that time
or later; everything before it is older) and stay with Spark, because times need not rise with
offsets.

Spark knows no conditional push-down: a reader that overrides `pushFilters` fails when
`spark.sql.python.filterPushdown.enabled` is off. The flag reaches a reader only through the
environment that `penstock.spark.session` sets, and `source` picks the reader class by it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import datasource as spark

from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is left to read: offsets in [offset_min, offset_end), and the words allowed."""

    offset_min: int = 0
    offset_end: int = LONG_MAX
    timestamp_min_ms: int | None = None
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def keeps(self, at: TopicPartition) -> bool:
        """Whether anything of this partition can be wanted."""
        return (self.topics is None or at.topic in self.topics) and (
            self.partitions is None or at.partition in self.partitions
        )


def narrow(
    selection: Selection, filters: Iterable[spark.Filter]
) -> tuple[Selection, list[spark.Filter]]:
    """The narrower selection, and the filters that Spark still has to test."""
    left: list[spark.Filter] = []
    for item in filters:
        narrowed = _one(selection, item)
        selection = narrowed[0]
        if not narrowed[1]:
            left.append(item)
    return selection, left


def _one(selection: Selection, item: spark.Filter) -> tuple[Selection, bool]:
    attribute: tuple[str, ...] = getattr(item, "attribute", ())
    if len(attribute) != 1:
        return selection, False
    column = attribute[0]
    if isinstance(item, spark.IsNotNull):
        return selection, column in {"topic", "partition", "offset"}
    if column == "offset":
        return _offset(selection, item)
    if column in {"topic", "partition"}:
        return _words(selection, column, item)
    if column == "timestamp":
        return _timestamp(selection, item), False
    return selection, False


def _offset(selection: Selection, item: spark.Filter) -> tuple[Selection, bool]:
    bounds = list(_integer_bounds(item))
    for low, end in bounds:
        selection = replace(
            selection,
            offset_min=max(selection.offset_min, low),
            offset_end=min(selection.offset_end, end),
        )
    return selection, bool(bounds) and not isinstance(item, spark.In)


def _integer_bounds(item: Any) -> Iterator[tuple[int, int]]:
    if isinstance(item, spark.In):
        numbers = [number for number in item.value if isinstance(number, int)]
        if numbers:
            yield min(numbers), max(numbers) + 1
        return
    number = getattr(item, "value", None)
    if not isinstance(number, int):
        return
    if isinstance(item, spark.EqualTo | spark.EqualNullSafe):
        yield number, number + 1
    elif isinstance(item, spark.GreaterThan):
        yield number + 1, LONG_MAX
    elif isinstance(item, spark.GreaterThanOrEqual):
        yield number, LONG_MAX
    elif isinstance(item, spark.LessThan):
        yield 0, number
    elif isinstance(item, spark.LessThanOrEqual):
        yield 0, number + 1


def _words(selection: Selection, column: str, item: Any) -> tuple[Selection, bool]:
    if isinstance(item, spark.EqualTo | spark.EqualNullSafe):
        allowed = frozenset([item.value])
    elif isinstance(item, spark.In):
        allowed = frozenset(item.value)
    else:
        return selection, False
    if column == "topic":
        before = selection.topics
        return replace(selection, topics=allowed if before is None else before & allowed), True
    known = selection.partitions
    return replace(selection, partitions=allowed if known is None else known & allowed), True


def _timestamp(selection: Selection, item: Any) -> Selection:
    lower = spark.EqualTo | spark.EqualNullSafe | spark.GreaterThan | spark.GreaterThanOrEqual
    value = getattr(item, "value", None)
    if not isinstance(item, lower) or not isinstance(value, datetime.datetime):
        return selection
    # A time without a zone is in the machine's own zone, as everywhere in PySpark.
    low = max(0, (value.astimezone(datetime.UTC) - _EPOCH) // _MILLISECOND)
    known = selection.timestamp_min_ms
    return replace(selection, timestamp_min_ms=low if known is None else max(known, low))
