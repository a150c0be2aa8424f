"""Spark's own Kafka connector as a peer: one session that has it and our source side by side.

A Java machine takes its jars at its start, so a session with the connector needs a Java machine of
its own; one that an earlier benchmark left behind is ended first. Both sources then run in the same
one, with the same memory, compiled by the same compiler, and read in turns.

The connector gets what its guide says and nothing else: a bootstrap server, a topic, offsets. Its
writer has the defaults of Kafka's producer with `acks=all`, which are the producer's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat.parts import PartMissing, jars
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock.spark import session

JAVA_END_SECONDS = 20
FORMAT: Final = "kafka"


class ConnectorMissing(Exception):
    """The connector's jars cannot be had here, so there is nothing to compare with."""


def connector_jars() -> list[Path]:
    """The connector and what it needs beside Spark.

    Raises:
        ConnectorMissing: Maven is not installed, or reaches no repository that has them.
    """
    return _fetched("spark", "Kafka")


def delta_jars() -> list[Path]:
    """Spark's connector for Delta tables.

    Raises:
        ConnectorMissing: as `connector_jars` does.
    """
    return _fetched("delta", "Delta")


def _fetched(profile: str, called: str) -> list[Path]:
    try:
        return [path for path in jars(profile) if path.suffix == ".jar"]
    except PartMissing as error:
        raise ConnectorMissing(
            f"Spark's {called} connector cannot be fetched (profile `{profile}` of "
            f"compat/jars/pom.xml), so this benchmark has no peer: {error}"
        ) from error


@contextmanager
def connector_session(directory: Path, *, cores: int, memory: str) -> Iterator[SparkSession]:
    """A session of ours, with the connector on its class path; its Java machine ends with it."""
    settings = {
        "spark.jars": ",".join(str(path) for path in connector_jars()),
        "spark.driver.memory": memory,
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    end_java()
    spark = session(application="benchmark", cores=cores, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
        end_java()


def end_java() -> None:
    """End the Java machine that PySpark keeps for the next session."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # A new Java machine must not be told of the port of the one that ended.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        os.environ.pop(name, None)
    if process is not None:
        process.stdin.close()  # Spark's Java process ends when its standard input does
        process.wait(JAVA_END_SECONDS)


def batch(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """The whole of a topic by the connector."""
    reader = spark.read.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).load()


def stream(spark: SparkSession, bootstrap: str, topic: str) -> DataStreamReader:
    """A stream of a topic from its start, by the connector."""
    reader = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest")


def write(frame: DataFrame, bootstrap: str, topic: str) -> None:
    """Write a frame's key and value, acknowledged by every replica; at least once."""
    writer = frame.write.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic).save()
