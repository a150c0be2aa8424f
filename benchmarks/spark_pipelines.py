"""Spark pipelines at 100 B: our source and sinks beside Spark's own Kafka connector.

One run on the same data: written once into Penstock and into Apache Kafka, read by our source and
by the connector in turns, from the log and from a table, in batches and as a stream; and the
same rows written by every writer. What is measured and predicted, and why, is said in the parts:
`spark_scans`, `spark_streams`, `spark_sinks`; the scale is chosen as `spark_bed` says. The aim is
three times the connector's rows per core, and ten times where history comes from a table.

    make bench ARGS="--quick spark_pipelines"
    PENSTOCK_BENCH_SCALE=full make bench ARGS="spark_pipelines spark_pipelines_1kib"
"""

from __future__ import annotations

from benchmarks import spark_scans, spark_sinks, spark_streams
from benchmarks.harness import Row
from benchmarks.spark_bed import bed, scale

VALUE_BYTES = 100
READERS = {"scans": spark_scans.measure, "streams": spark_streams.measure}


def measure(*, quick: bool = False) -> list[Row]:
    """Every part with values of 100 bytes."""
    return measure_size(VALUE_BYTES, quick=quick)


def measure_size(value_bytes: int, *, quick: bool) -> list[Row]:
    """Every part with values of one size."""
    wanted = scale(value_bytes, quick=quick)
    rows: list[Row] = []
    with bed(wanted) as running:
        if readers := [READERS[name] for name in wanted.parts if name in READERS]:
            running.fill()
            for reader in readers:
                rows += reader(running)
            running.empty()
        if "sinks" in wanted.parts:
            rows += spark_sinks.measure(running)
    return rows
