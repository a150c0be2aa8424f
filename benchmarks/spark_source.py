"""Spark batch scans of a topic, beside what Spark takes from any Python source at all.

Prediction. A scan decodes by columns (about 7 M records/s per core at 100 bytes) and hands Arrow
batches to the JVM over a Unix socket; earlier measurements put that transport at 2.8 to 4.7 M
rows/s on two cores for key, value and the numbers. The transport is the narrower of the two, and
both share the cores, so about 2.5 M rows/s are expected for all columns, and 4 M when only the
value is asked for.

The reference of the same run is a source that hands out one prepared Arrow batch again and again:
the same bytes through the same transport, without reading or decoding.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.harness import Row, seconds
from benchmarks.prepared_source import NAME, TASKS, PreparedSource
from penstock.apps.loads.figures import interleaved
from penstock.spark import session
from penstock.spark.schema import DEFAULT_COLUMNS
from penstock.testing import Broker

VALUE_BYTES = 100
PARTITIONS = 4
ROWS, ROWS_QUICK = 8_000_000, 1_000_000
WRITE_ROWS = 500_000
ALL_COLUMNS = ",".join(DEFAULT_COLUMNS)
PREDICTIONS = {"value": 4.0, ALL_COLUMNS: 2.5}


def fill(broker: Broker, rows: int) -> None:
    """Write the topic: keys of 8 bytes, values of 100."""
    table = pa.table(
        {
            "key": pa.array([f"{n:08}".encode() for n in range(WRITE_ROWS)]),
            "value": pa.array([f"{n:0{VALUE_BYTES}}".encode() for n in range(WRITE_ROWS)]),
        }
    )
    with broker.client() as client:
        client.create_topic("bench", partitions=PARTITIONS)
        for _ in range(rows // WRITE_ROWS):
            client.write_arrow("bench", table)


def scan(frame: DataFrame, rows: int) -> float:
    """Million rows a second through one scan that looks at every value."""
    found: list[Any] = []
    action = frame.agg(F.count("*"), F.sum(F.length("value"))).collect
    took = seconds(lambda: found.extend(action()))
    if found[0][0] != rows:
        raise RuntimeError(f"the scan saw {found[0][0]} rows of {rows}")
    return rows / took / 1e6


def measure(*, quick: bool = False) -> list[Row]:
    """Rows a second of batch scans, all columns and values alone."""
    rows = ROWS_QUICK if quick else ROWS
    spark = session(application="benchmark", cores=TASKS, settings={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(PreparedSource)
    try:
        with Broker() as broker:
            fill(broker, rows)
            return [_row(spark, broker, columns, rows, quick) for columns in PREDICTIONS]
    finally:
        spark.stop()


def _row(spark: SparkSession, broker: Broker, columns: str, rows: int, quick: bool) -> Row:
    log = (
        spark.read.format("penstock")
        .option("bootstrap", broker.bootstrap)
        .option("penstock.admin.url", broker.admin_url)
        .option("subscribe", "bench")
        .option("columns", columns)
        .load()
    )
    ceiling = (
        spark.read.format(NAME).options(columns=columns, rows=rows, valueBytes=VALUE_BYTES).load()
    )
    contenders = {"log": lambda: scan(log, rows), "ceiling": lambda: scan(ceiling, rows)}
    interleaved(contenders, runs=1)  # the first scan of each starts workers and compiles
    figures = interleaved(contenders, runs=3 if quick else 5)
    what = "value" if columns == "value" else "all columns"
    return Row(
        name=f"Spark batch scan, {VALUE_BYTES} B, {what}",
        value=figures["log"],
        unit="M rows/s",
        prediction=PREDICTIONS[columns],
        reference=figures["ceiling"],
        reference_name="prepared Arrow batches",
        note=f"{rows:,} rows in {PARTITIONS} partitions, {TASKS} tasks; count, sum(length)",
    )
