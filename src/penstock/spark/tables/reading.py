"""Reader of a Delta table with Spark's own Parquet reader, without extra jars.

    orders = read_table(spark, "lake/orders")

On the driver, `deltalake` reads the table's log and lists the Parquet files of one version. Spark's
Parquet reader then scans these files with the table's schema. The list of files is fixed by the
call; only `remove_orphans` could delete one of them later.

Partition columns are not stored in the files. Their values come from the log and are joined to the
rows by file name, so a filter on them applies only after the scan. A row whose file is not in the
log is an error. A table with unsupported features (deletion vectors, column mapping) is rejected;
the error names the feature.

Source: the Delta transaction protocol, "Add File", "Protocol Evolution", "Partition Value
Serialization".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.errors import InvalidOption
from penstock.spark.schema import quoted
from penstock.spark.tables.features import check_readable
from penstock.spark.tables.location import absolute, open_table

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
