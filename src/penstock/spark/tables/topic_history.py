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
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from penstock.records.extents import READ_COMMITTED
from penstock.spark.errors import DataLoss, InvalidOption, OffsetWentBack
from penstock.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS, quoted, spark_schema
from penstock.spark.tables.location import absolute, check_readable, open_table
from penstock.spark.tables.positions import LogStartsAfterTable, check_topic

# Reader of a Delta table with Spark's own Parquet reader, without extra jars.
#
#     orders = read_table(spark, "lake/orders")
#
# On the driver, `deltalake` reads the table's log and lists the Parquet files of one version.
# Spark's Parquet reader then scans these files with the table's schema. The list of files is fixed
# by the call; only `remove_orphans` could delete one of them later.
#
# Partition columns are not stored in the files. Their values come from the log and are joined to
# the rows by file name, so a filter on them applies only after the scan. A row whose file is not in
# the log is an error. A table with unsupported features (deletion vectors, column mapping) is
# rejected; the error names the feature.
#
# Source: the Delta transaction protocol, "Add File", "Protocol Evolution", "Partition Value
# Serialization".


_FILE: Final = "_penstock_file"
_SCANNED: Final = "_penstock_scanned"
_CALENDAR: Final = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}
"""Options that read dates as Gregorian: Spark before 3.0, which used another calendar, wrote none
of the files.
"""
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
_OUTSIDE_URI: Final = re.compile(
    r"[^A-Za-z0-9_\-!.~'()*:@&=+$,;/\xa1-\U0010ffff]|[\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


def read_table(
    spark: SparkSession,
    table: str,
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a table at one version, with the columns in the table's order.

    Args:
        spark: session whose file system settings can read the table's data files.
        table: directory or URI.
        version: version of the table; None is the latest at the time of the call.
        storage_options: options for the log of a table in an object store, as `deltalake` names
            them.

    Raises:
        InvalidOption: the table does not exist.
        UnreadableTable: the table has a feature that this scan does not support.
    """
    opened = open_table(table, storage_options, version)
    if opened is None:
        raise InvalidOption("table", table, "is not a Delta table")
    return scan(spark, opened, absolute(table))


def scan(spark: SparkSession, opened: DeltaTable, root: str) -> DataFrame:
    """Return the rows of an opened table at its version, as `read_table` does."""
    check_readable(opened, root)
    schema = StructType.fromJson(json.loads(opened.schema().to_json()))
    partition_columns = list(opened.metadata().partition_columns)
    actions = pa.table(opened.get_add_actions(flatten=True))
    paths = [_file_path(root, path) for path in actions["path"].to_pylist()]
    if not paths:
        return spark.createDataFrame([], schema)
    stored = StructType([field for field in schema if field.name not in partition_columns])
    reader = spark.read.schema(stored).options(**_CALENDAR)
    rows = reader.parquet(*(_as_name(path) for path in paths))
    if partition_columns:
        values = _partition_values(spark, actions, paths, schema, partition_columns)
        rows = rows.withColumn(_SCANNED, F.col("_metadata.file_path"))
        found = rows.join(F.broadcast(values), rows[_SCANNED] == values[_FILE], "left")
        rows = found.where(
            F.col(_FILE).isNotNull()
            | F.raise_error(
                F.concat(F.lit(f"table {root}: no commit names the file "), F.col(_SCANNED))
            ).cast("boolean")
        )
    return rows.select(*(F.col(quoted(name)) for name in schema.names))


def _partition_values(
    spark: SparkSession,
    actions: pa.Table,
    paths: Sequence[str],
    schema: StructType,
    partition_columns: Sequence[str],
) -> DataFrame:
    """Return one row per file: the file's name as Spark reports it, and its partition values."""
    columns: dict[str, Any] = {_FILE: pa.array([_spark_name(path) for path in paths], pa.string())}
    for name in partition_columns:
        columns[name] = actions[f"partition.{name}"]
    fields = [StructField(_FILE, StringType()), *(schema[name] for name in partition_columns)]
    return spark.createDataFrame(pa.table(columns), StructType(fields))


def _file_path(root: str, path: str) -> str:
    """Return a file's path without URL encoding; in the log it is usually relative to the table."""
    return path if "://" in path else f"{root}/{unquote(path)}"


def _as_name(path: str) -> str:
    return _PATTERN.sub(r"\\\g<0>", path)


def _spark_name(path: str) -> str:
    """Return a file's name as Spark's `_metadata.file_path` has it: a URI quoted by Java.

    Source: the class documentation of `java.net.URI`. It leaves "other" characters unquoted: they
    are neither ASCII nor controls nor spaces.
    """
    scheme, colon, rest = path.partition("://")
    if not colon:
        return "file:" + _quote(path)
    authority, slash, rest = rest.partition("/")
    return f"{scheme}://{authority}{slash}{_quote(rest)}"


def _quote(path: str) -> str:
    return _OUTSIDE_URI.sub(_percent, path)


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


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
