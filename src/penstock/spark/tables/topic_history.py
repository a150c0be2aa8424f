"""History of a topic: records from its table, and newer ones from the log, each exactly once.

    history(spark, topic="orders", table="lake/orders", bootstrap="localhost:9092",
            admin_url="http://localhost:9644").where("offset >= 0")

The call fixes one version of the table and the ends of the log. The version contains its own end
offsets (see `positions.py`), so the read of the log begins exactly where the table ends. If the log
starts above the table's end, the records between them are lost. That is an error of this call or,
if retention deletes records later, of the query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.records.positions import READ_COMMITTED
from penstock.spark.errors import DataLoss, InvalidOption, OffsetWentBack
from penstock.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS, spark_schema
from penstock.spark.tables.location import absolute, open_table
from penstock.spark.tables.positions import LogStartsAfterTable, check_topic
from penstock.spark.tables.reading import scan

RANGES_MAX: Final = 1_000

Offsets = Mapping[int, int]


def history(
    spark: SparkSession,
    *,
    topic: str,
    table: str,
    bootstrap: str,
    admin_url: str | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    start: Offsets | None = None,
    end: Offsets | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a topic's records with offsets in [start, end), with the source's columns.

    Args:
        spark: session that has the data source `penstock`.
        topic: name of the topic.
        table: location of the topic's table. If it does not exist yet, only the log is read.
        bootstrap, admin_url: addresses of the brokers.
        columns: columns of the source to read.
        start: first offset by partition; partitions without one are read from their first record.
        end: offset after the last by partition; others are read to the present end of the log.
        version: version of the table; None is the latest.
        storage_options: options of an object store, as `deltalake` names them.

    Raises:
        InvalidOption: an unknown column or partition, or a range that ends before it starts.
        TableOfAnotherTopic: the table's records are from another topic, or a deleted one.
        LogStartsAfterTable, DataLoss: requested records are in neither the table nor the log.
        OffsetWentBack: the log ends before the table does.
    """
    from penstock.client import Client

    if unknown := [name for name in columns if name not in COLUMN_NAMES]:
        raise InvalidOption("columns", unknown[0], f"must be one of {', '.join(COLUMN_NAMES)}")
    opened = open_table(table, storage_options, version)
    with Client(bootstrap, client_id="penstock-history") as client:
        topic_id = str(client.describe_topic(topic).topic_id)
        first = client.list_offsets(topic, "earliest")
        last = client.list_offsets(topic, "latest", isolation=READ_COMMITTED)
    _check_ranges(last, start or {}, end or {})
    parts: list[DataFrame] = []
    reached: dict[int, int] | None = None
    if opened is not None:
        reached = check_topic(opened, absolute(table), topic, topic_id, sorted(last))
        rows = scan(spark, opened, absolute(table))
        wanted = _within(sorted(last), start or {}, end or {})
        parts.append((rows if wanted is None else rows.where(wanted)).select(*columns))
    ranges = log_ranges(topic, table, first, last, reached, start or {}, end or {})
    if ranges:
        parts.append(_from_log(spark, topic, ranges, columns, bootstrap, admin_url))
    if not parts:
        return spark.createDataFrame([], spark_schema(columns))
    return reduce(DataFrame.unionByName, parts)


def log_ranges(
    topic: str,
    table: str,
    first: Offsets,
    last: Offsets,
    reached: Offsets | None,
    start: Offsets,
    end: Offsets,
) -> dict[int, tuple[int, int]]:
    """Return the offsets [low, high) to read from the log, by partition.

    Args:
        topic, table: names for messages.
        first, last: start and end offsets of the log.
        reached: end offsets of the table; None if the table does not exist.
        start, end: the requested range, for the partitions that have one.

    Raises:
        LogStartsAfterTable, DataLoss: requested records are in neither the table nor the log.
        OffsetWentBack: the log ends before the table does.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for partition, log_end in sorted(last.items()):
        in_table = (reached or {}).get(partition, 0)
        if log_end < in_table:
            raise OffsetWentBack(topic, partition, in_table, log_end)
        open_start = first[partition] if reached is None else 0
        low = max(start.get(partition, open_start), in_table)
        high = min(end.get(partition, log_end), log_end)
        if low >= high:
            continue
        log_start = first[partition]
        if low < log_start and low == in_table and reached is not None:
            raise LogStartsAfterTable(table, topic, partition, low, log_start)
        if low < log_start:
            raise DataLoss(topic, partition, low, log_start)
        ranges[partition] = (low, high)
    return ranges


def _from_log(
    spark: SparkSession,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    columns: Sequence[str],
    bootstrap: str,
    admin_url: str | None,
) -> DataFrame:
    options = {
        "bootstrap": bootstrap,
        "assign": json.dumps({topic: sorted(ranges)}),
        "startingOffsets": _as_option(topic, {at: low for at, (low, _) in ranges.items()}),
        "endingOffsets": _as_option(topic, {at: high for at, (_, high) in ranges.items()}),
        "columns": ",".join(columns),
    }
    if admin_url is not None:
        options["penstock.admin.url"] = admin_url
    return spark.read.format("penstock").options(**options).load().select(*columns)


def _check_ranges(last: Offsets, start: Offsets, end: Offsets) -> None:
    for name, given in (("start", start), ("end", end)):
        if len(given) > RANGES_MAX:
            raise InvalidOption(name, f"{len(given)} partitions", f"at most {RANGES_MAX}")
        for partition, offset in given.items():
            if partition not in last:
                raise InvalidOption(
                    name, partition, f"the topic has only partitions 0 to {max(last)}"
                )
            if offset < 0:
                raise InvalidOption(name, offset, f"partition {partition}: must not be negative")
    for partition in start.keys() & end.keys():
        if start[partition] > end[partition]:
            raise InvalidOption(
                "end",
                end[partition],
                f"partition {partition}: must not be below its start {start[partition]}",
            )


def _within(partitions: Sequence[int], start: Offsets, end: Offsets) -> Column | None:
    given = sorted(start.keys() | end.keys())
    if not given:
        return None
    partition, offset = F.col("partition"), F.col("offset")
    whole = [number for number in partitions if number not in given]
    wanted = partition.isin(whole)
    for number in given:
        part = (partition == number) & (offset >= start.get(number, 0))
        if number in end:
            part &= offset < end[number]
        wanted |= part
    return wanted


def _as_option(topic: str, offsets: Offsets) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
