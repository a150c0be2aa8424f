"""Readers of Iceberg tables that are not ours: DuckDB's extension, and Iceberg's runtime for Spark.

Each runs in a process with Python packages of its own, and writes what it has read as Parquet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from compat.parts import PartMissing, duckdb_with_iceberg, iceberg_spark, spark_with_iceberg
from pyiceberg.table import Table

from tests.machine import lacking

READER_SECONDS: Final = 300
_DUCKDB: Final = """
import glob, os, sys
import duckdb
metadata, out, columns, packages = sys.argv[1:]
connection = duckdb.connect()
for name in ("icu", "avro", "iceberg"):
    [path] = glob.glob(f"{packages}/duckdb_extension_{name}/extensions/*/{name}.duckdb_extension")
    connection.execute(f"load '{path}'")
connection.execute("set timezone = 'UTC'")
columns = ", ".join(f'"{name}"' for name in columns.split(","))
rows = f"select {columns} from iceberg_scan('{metadata}')"
connection.execute(f"copy ({rows}) to '{out}' (format parquet)")
"""
_SPARK: Final = """
import sys
from pyspark.sql import SparkSession
metadata, out, columns, jars = sys.argv[1:]
options = {
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false", "spark.driver.memory": "600m", "spark.jars": jars,
    "spark.sql.session.timeZone": "UTC", "spark.local.dir": out + ".scratch",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
}
builder = SparkSession.builder.master("local[1]")
for name, value in options.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.format("iceberg").load(metadata).select(*columns.split(","))
rows.coalesce(1).write.parquet(out)
"""


def by_duckdb(table: Table, columns: Sequence[str]) -> pa.Table:
    """Return columns of a table as DuckDB's extension reads them."""
    try:
        packages = duckdb_with_iceberg()
    except PartMissing as error:
        lacking(f"there is no DuckDB with its extension for Iceberg: {error}")
    return _read(_DUCKDB, packages, table, columns, str(packages))


def by_spark(table: Table, columns: Sequence[str]) -> pa.Table:
    """Return columns of a table as Spark reads them with Iceberg's runtime."""
    try:
        packages, jars = spark_with_iceberg(), iceberg_spark()
    except PartMissing as error:
        lacking(f"there is no Spark with Iceberg's runtime: {error}")
    return _read(_SPARK, packages, table, columns, ",".join(map(str, jars)))


def _read(
    program: str, packages: Path, table: Table, columns: Sequence[str], more: str
) -> pa.Table:
    # Sessions of other tests have set variables of their own Spark.
    kept = {name: text for name, text in os.environ.items() if "SPARK" not in name}
    with tempfile.TemporaryDirectory(prefix="iceberg-") as folder:
        out = f"{folder}/rows"
        done = subprocess.run(
            [sys.executable, "-c", program, table.metadata_location, out, ",".join(columns), more],
            env={**kept, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            timeout=READER_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return pq.read_table(out)
