"""Settings for every Spark session: local, on a cluster, or with Spark Connect.

Settings of the caller take precedence. The source's parallelism is passed in an environment
variable, because Spark passes only its options to a Python source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.spark.listener import GroupCommitListener

PARALLELISM_VARIABLE: Final = "PENSTOCK_SPARK_PARALLELISM"

SETTINGS: Final = {
    # Workers: no loopback TCP, our code pre-imported, never a new process per task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.spark.daemon",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Tables: forms that all Delta readers support.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOOPBACK_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def listen(spark: SparkSession) -> None:
    """Add the listener that commits consumer group offsets, once per session."""
    if "_penstock_listener" not in vars(spark):
        listener = GroupCommitListener()
        spark.streams.addListener(listener)
        spark._penstock_listener = listener  # type: ignore[attr-defined]


def facts(slots: int) -> dict[str, str]:
    return {PARALLELISM_VARIABLE: str(slots)}


def built(chosen: Mapping[str, Any]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
