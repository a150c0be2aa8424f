"""Streaming a backlog in micro-batches: our source beside Spark's own Kafka connector.

A part of `spark_pipelines`. A query with the trigger `availableNow` reads the whole topic in
batches of a fifth of it (option `maxOffsetsPerTrigger`), and `foreachBatch` hashes every column of
every batch. The time to the first row is that from `start()` of a query to the first row on
the driver, with the backlog there.

Prediction. A micro-batch costs what a scan of the same rows does and about 0.3 s more for its log,
its plan and the ends of the topic: 2.0 M rows/s of all columns at 100 B, 1.2 M at 1 KiB. A query
starts in about 0.5 s for either source, most of it Spark's own checkpoint files; the Python source
starts a process for its planner on top: 0.9 s.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamReader

from benchmarks.harness import Row
from benchmarks.peers import spark_connector
from benchmarks.prepared_source import NAME, PreparedSource
from benchmarks.spark_bed import DATA, WARM, Bed, Work, in_turns
from benchmarks.spark_scans import (
    APACHE,
    CONNECTOR,
    PEERS,
    READY,
    SOURCE,
    address,
    comparison,
    hashed,
    ready_options,
)
from penstock.spark.schema import DEFAULT_COLUMNS

BATCHES: Final = 5
QUERY_SECONDS: Final = 1_800
FIRST_ROW_SECONDS: Final = 120
FIRST_ROW_RUNS: Final = 5
PREDICTED: Final = {100: 2.0, 1024: 1.2}
FIRST_ROW_PREDICTED: Final = 0.9

Streams = dict[str, Callable[[str], DataStreamReader]]


def measure(bed: Bed) -> list[Row]:
    """Throughput of a backlog, and the time to the first row of a query."""
    streams = _streams(bed)
    for name in streams:
        _backlog(bed, name, WARM, bed.scale.pool_records)()
    found = in_turns(
        {name: _backlog(bed, name, DATA, bed.scale.records) for name in streams},
        runs=bed.scale.runs,
    )
    what = f"stream of all columns, {bed.scale.size_name}, {SOURCE}"
    rows = list(comparison(what, found, SOURCE, PREDICTED[bed.scale.value_bytes]))
    bed.spark.dataSource.register(PreparedSource)
    least = ready_options(bed, DATA, DEFAULT_COLUMNS)
    streams |= {READY: lambda topic: bed.spark.readStream.format(NAME).options(**least)}
    return [*rows, *_first_rows(bed, streams)]


def _streams(bed: Bed) -> Streams:
    def ours(topic: str) -> DataStreamReader:
        reader = bed.spark.readStream.format("penstock").options(**bed.our_options(topic))
        return reader.option("startingOffsets", "earliest")

    return {
        SOURCE: ours,
        CONNECTOR: lambda topic: spark_connector.stream(bed.spark, bed.penstock.bootstrap, topic),
        APACHE: lambda topic: spark_connector.stream(bed.spark, bed.kafka.bootstrap, topic),
    }


def _backlog(bed: Bed, name: str, topic: str, count: int) -> Callable[[], Work]:
    action, stream = hashed(DEFAULT_COLUMNS), _streams(bed)[name]

    def work() -> object:
        totals = [0, 0]

        def add(batch: DataFrame, _: int) -> None:
            answer = action(batch)
            assert isinstance(answer, tuple)
            rows, hashes = answer
            totals[0] += rows
            totals[1] += hashes or 0

        frame = stream(topic).option("maxOffsetsPerTrigger", -(-count // BATCHES)).load()
        checkpoint = bed.directory / "checkpoint"
        try:
            query = (
                frame.writeStream.foreachBatch(add)
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            if not query.awaitTermination(QUERY_SECONDS):
                query.stop()
                raise RuntimeError(f"the stream was not through within {QUERY_SECONDS} s")
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)
        if totals[0] != count:
            raise RuntimeError(f"the stream saw {totals[0]} rows of {count}")
        return tuple(totals)

    return lambda: bed.measured(count, work, broker=address(bed, name))


def _first_rows(bed: Bed, streams: Streams) -> list[Row]:
    # By hand: only the way to the first row is timed, and stopping the query is not.
    figures: dict[str, list[float]] = {name: [] for name in streams}
    for run in range(1 + FIRST_ROW_RUNS):
        for name, stream in streams.items():
            taken = _first_row(bed, stream)
            if run:  # the first one warms up
                figures[name].append(taken)
    middles = {name: statistics.median(values) for name, values in figures.items()}
    return [
        Row(
            name=f"first row of a stream, {bed.scale.size_name}",
            value=middles[SOURCE],
            unit="s",
            prediction=FIRST_ROW_PREDICTED,
            reference=middles[peer],
            reference_name=called,
            lower_is_better=True,
        )
        for peer, called in (PEERS | {READY: READY}).items()
    ]


def _first_row(bed: Bed, stream: Callable[[str], DataStreamReader]) -> float:
    seen = threading.Event()
    at: list[float] = []

    def look(batch: DataFrame, _: int) -> None:
        if not seen.is_set() and batch.limit(1).collect():
            at.append(time.perf_counter())
            seen.set()

    checkpoint = bed.directory / "checkpoint"
    frame = stream(DATA).load()
    begun = time.perf_counter()
    query = (
        frame.writeStream.foreachBatch(look).option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        if not seen.wait(FIRST_ROW_SECONDS):
            raise RuntimeError(f"no row within {FIRST_ROW_SECONDS} s: {query.exception()}")
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    return at[0] - begun
