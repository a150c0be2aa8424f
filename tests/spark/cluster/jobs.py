"""Jobs that the tests run on the cluster, in a driver process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.spark import DeltaSink, LogSink, session
from penstock.spark.sessions.workers import ship

TESTED = str(Path(penstock.__file__).parents[1])
"""Where the code is that is tested; an installed penstock may be that of another tree."""
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": FAST,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": FAST,
    "spark.executorEnv.PYTHONPATH": TESTED,
}
_SPARK: list[SparkSession] = []


def open_session(
    master: str,
    python: str | None = None,
    settings: Mapping[str, str] | None = None,
    wait_seconds: float = 240.0,
) -> None:
    """Open the session of this process."""
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    given = {**({} if master.startswith("sc://") else SETTINGS), **(settings or {})}
    _SPARK.append(session(master=master, settings=given, wait_seconds=wait_seconds))


def close_session() -> None:
    while _SPARK:
        _SPARK.pop().stop()


def slots() -> int:
    return _SPARK[-1].sparkContext.defaultParallelism


def batch(options: dict[str, str], *, where: str = "true") -> list[bytes]:
    frame = _SPARK[-1].read.format("penstock").options(**options).load()
    return _values(frame.where(where))


def batch_tasks(options: dict[str, str]) -> int:
    frame = _SPARK[-1].read.format("penstock").options(**options).load()
    return frame.rdd.getNumPartitions()


def code_of_workers() -> set[str]:
    """The files that the workers have imported penstock from."""

    def imported(_: Iterable[int]) -> Iterator[str]:
        import penstock

        yield str(penstock.__file__)

    tasks = _SPARK[-1].sparkContext.range(4, numSlices=4)
    return set(tasks.mapPartitions(imported).collect())


def shipped(file: str) -> int:
    """Call a function of a module that only the driver's path has, on the workers."""
    spark = _SPARK[-1]
    module = _imported(file)
    ship(spark, [file])
    ship(spark, [file])
    return spark.range(10, numPartitions=4).mapInArrow(module.doubled, "id long").count()


def stream(
    options: dict[str, str], sink: dict[str, Any], folder: str, held_by: str | None = None
) -> None:
    """Run a stream to its end; `held_by` is a file with a `held` that its batches go through."""
    spark = _SPARK[-1]
    frame = spark.readStream.format("penstock").options(**options).load()
    frame = frame.select("key", "value")
    if held_by is not None:
        module = _imported(held_by)
        ship(spark, [held_by])
        frame = frame.mapInArrow(module.held, "key binary, value binary")
    writer = frame.writeStream.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    if sink["kind"] == "table":
        writer = writer.foreachBatch(DeltaSink(sink["table"], application=sink["application"]))
    elif sink["kind"] == "log":
        writer = writer.foreachBatch(
            LogSink(
                application=sink["application"],
                topic=sink["topic"],
                bootstrap=options["bootstrap"],
                admin_url=options["penstock.admin.url"],
            )
        )
    else:
        writer = writer.format("penstock").options(
            **{name: options[name] for name in ("bootstrap", "penstock.admin.url")},
            topic=sink["topic"],
        )
    writer.trigger(availableNow=True).start().awaitTermination()


def _imported(file: str) -> Any:
    folder, name = str(Path(file).parent), Path(file).stem
    if folder not in sys.path:
        sys.path.append(folder)
    return __import__(name)


def _values(frame: DataFrame) -> list[bytes]:
    found: list[bytes] = frame.select("value").toArrow()["value"].to_pylist()
    return found
