"""Spark with its own Kafka connector, behind the line protocol of `drivers/remote.py`.

A process of its own, because a Java machine takes its jars at its start: a Spark session that
another suite has started in the test process could not be given the connector any more.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession


def _session(jars: str, directory: str) -> Any:
    return (
        SparkSession.builder.master("local[2]")
        .appName("compat")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(bytes(value)).decode()


def version(spark: Any) -> str:
    """Spark's version."""
    return str(spark.version)


def read(
    spark: Any, *, brokers: dict[str, str], topic: str, options: dict[str, str]
) -> list[object]:
    """Every record of a batch read: partition, offset, milliseconds, key, value, headers."""
    reader = spark.read.format("kafka").options(**brokers)
    reader = reader.option("subscribe", topic).option("includeHeaders", "true").options(**options)
    return [
        {
            "partition": row.partition,
            "offset": row.offset,
            "timestamp": round(row.timestamp.timestamp() * 1000),
            "key": _text(row.key),
            "value": _text(row.value),
            "headers": [[header.key, _text(header.value)] for header in row.headers or []],
        }
        for row in reader.load().collect()
    ]


def write(spark: Any, *, brokers: dict[str, str], topic: str, count: int, codec: str) -> None:
    """Write `count` numbered records, dealt out over six partitions."""
    frame = spark.range(count).selectExpr(
        "cast(id as string) as key",
        "concat('value ', id) as value",
        "cast(id % 6 as int) as partition",
    )
    writer = frame.write.format("kafka").options(**brokers)
    writer.option("kafka.compression.type", codec).option("topic", topic).save()


def stream(
    spark: Any, *, brokers: dict[str, str], topic: str, target: str, checkpoint: str, per_batch: int
) -> bool:
    """Copy what is new in a topic to another one, in batches of limited size, then end."""
    frame = (
        spark.readStream.format("kafka")
        .options(**brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(per_batch))
        .load()
    )
    query = (
        frame.selectExpr("key", "value")
        .writeStream.format("kafka")
        .options(**brokers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    return bool(query.awaitTermination(100))


OPERATIONS: dict[str, Callable[..., object]] = {
    "version": version,
    "read": read,
    "write": write,
    "stream": stream,
}


def main() -> None:
    """Answer calls until standard input ends."""
    # Spark's Java machine inherits the standard output: answers go through a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = _session(*sys.argv[1:3])
    for line in sys.stdin:
        call = json.loads(line)
        answer: dict[str, Any] = {"id": call.pop("id")}
        try:
            answer["result"] = OPERATIONS[call.pop("op")](spark, **call)
        except Exception as error:
            answer |= {"error": type(error).__name__, "message": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
