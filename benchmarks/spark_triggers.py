"""What one trigger costs a stream when there is next to nothing to read: 2, 8 and 32 partitions.

A query with the trigger `availableNow` takes one record of every partition a trigger, some dozens
of times over, and throws it away (Spark's sink `noop`). The figure is the median of Spark's own
`triggerExecution`: asking for the log's ends, planning, running the tasks, writing the checkpoint.

Prediction. Spark's checkpoint costs two small files with their renames, about 30 ms; the ends of a
topic and the plan come from a Python process, about 10 ms; a Python task costs 32 to 80 ms however
little it reads, and tiny ranges are packed into one: about 100 ms, for 2 partitions as for 32. The
connector's tasks cost about 5 ms each, two at a time, but it needs one for every partition: 60 ms
at 2, 75 at 8, 130 at 32.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Callable
from typing import Final

from pyspark.sql.streaming.readwriter import DataStreamReader

from benchmarks.harness import Row
from benchmarks.peers import spark_connector
from benchmarks.spark_bed import Bed, Scale, Work, bed, in_turns, middle
from benchmarks.spark_scans import APACHE, CONNECTOR, PEERS, SOURCE, address

PREDICTED: Final = {2: 100.0, 8: 100.0, 32: 110.0}
TRIGGERS, TRIGGERS_QUICK = 40, 12
WARM_TRIGGERS: Final = 3  # at the start of every query: its first plan, its first connections
RUNS, RUNS_QUICK = 5, 1
VALUE_BYTES: Final = 100
QUERY_SECONDS: Final = 300
MILLISECONDS: Final = 1_000


def measure(*, quick: bool = False) -> list[Row]:
    """Milliseconds a trigger, and CPU milliseconds of client and broker, by partitions."""
    triggers = TRIGGERS_QUICK if quick else TRIGGERS
    runs = RUNS_QUICK if quick else RUNS
    small = Scale(records=triggers, value_bytes=VALUE_BYTES, runs=runs, parts=())
    rows: list[Row] = []
    with bed(small) as running:
        for partitions in PREDICTED:
            rows += _rows(running, partitions, triggers)
    return rows


def _rows(bed: Bed, partitions: int, triggers: int) -> list[Row]:
    topic = f"triggers-{partitions}"
    for client in bed.clients():
        client.create_topic(topic, partitions=partitions)
        for partition in range(partitions):
            client.write_arrow(topic, bed.pool, partition=partition)

    def ours() -> DataStreamReader:
        return bed.spark.readStream.format("penstock").options(**bed.our_options(topic))

    def theirs(name: str) -> Callable[[], DataStreamReader]:
        return lambda: spark_connector.stream(bed.spark, address(bed, name), topic)

    streams = {SOURCE: ours, CONNECTOR: theirs(CONNECTOR), APACHE: theirs(APACHE)}
    contenders = {
        name: _query(bed, name, make, partitions, triggers) for name, make in streams.items()
    }
    in_turns(contenders, runs=1, agree=False)
    found = in_turns(contenders, runs=bed.scale.runs, agree=False)
    return [
        Row(
            name=f"{what}, {partitions} partitions",
            value=middle(found[SOURCE], figure),
            unit="ms",
            prediction=PREDICTED[partitions] if figure is _trigger_ms else None,
            reference=middle(found[peer], figure),
            reference_name=called,
            lower_is_better=True,
        )
        for (what, figure), (peer, called) in itertools.product(
            (("trigger", _trigger_ms), ("CPU of a trigger", _cpu_ms)), PEERS.items()
        )
    ]


def _query(
    bed: Bed, name: str, make: Callable[[], DataStreamReader], partitions: int, triggers: int
) -> Callable[[], Work]:
    """One query of so many triggers; its answer is the median trigger, in milliseconds."""

    def work() -> float:
        frame = make().option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", partitions)
        checkpoint = bed.directory / "checkpoint"
        try:
            query = (
                frame.load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            if not query.awaitTermination(QUERY_SECONDS):
                query.stop()
                raise RuntimeError(f"{triggers} triggers were not through in {QUERY_SECONDS} s")
            taken = [
                progress.durationMs["triggerExecution"]
                for progress in query.recentProgress
                if progress.numInputRows
            ]
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)
        if len(taken) != triggers:
            raise RuntimeError(f"there were {len(taken)} triggers with rows, not {triggers}")
        return statistics.median(taken[WARM_TRIGGERS:])

    return lambda: bed.measured(triggers, work, broker=address(bed, name))


def _trigger_ms(work: Work) -> float:
    assert isinstance(work.answer, int | float)
    return float(work.answer)


def _cpu_ms(work: Work) -> float:
    spent = work.client_cpu_seconds + work.broker_cpu_seconds
    return spent * MILLISECONDS / work.rows
