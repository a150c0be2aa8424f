"""Writing a batch from Spark: to the log, to a Delta table, by the connector, and plain Parquet.

A part of `spark_pipelines`. The same rows (key and value, from Parquet files, a quarter of the
data) go through every writer into a topic or a table of its own, which is checked for its number of
rows and deleted before the next turn. Everything that waits to reach the disk is synced before
every turn, so that none pays for the one before it.

The writers promise different things. `LogSink` and `DeltaSink` write every batch exactly once,
and what the log acknowledges is on the disk. The connector writes at least once; Apache Kafka
acknowledges from the page cache, as plain Parquet does, which promises nothing when it is repeated.

Prediction. The sink's tasks get Arrow batches (2.8 to 4.7 M rows/s on two cores), encode at 5 to
10 M records/s per core and write a file; the broker copies it once: 1.3 M rows/s of 100 B, 0.45 M
of 1 KiB, where 0.5 GB/s go to the disk twice. Kafka's producer costs 1 µs a record and the
connector's row code 0.5, and the broker a tenth of that: 0.8 M rows/s of 100 B, 0.3 M of 1 KiB.
Parquet with random text is 0.7 µs a row of 100 B and 2.5 of 1 KiB (snappy, copies): 2.5 M and
0.7 M rows/s; Delta adds a commit, about 0.3 s in all.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.harness import Row
from benchmarks.peers import spark_connector
from benchmarks.spark_bed import PARTITIONS, Bed, Work, in_turns
from benchmarks.spark_scans import APACHE, CONNECTOR, PEERS, comparison
from penstock.client import Client
from penstock.spark import DeltaSink, LogSink

LOG, DELTA, PARQUET = "log sink", "Delta sink", "plain Parquet"
SHARE: Final = 4
FILES: Final = 4
PREDICTED: Final = {(LOG, 100): 1.3, (LOG, 1024): 0.45, (DELTA, 100): 2.2, (DELTA, 1024): 0.65}


def measure(bed: Bed) -> list[Row]:
    """The writers in turns, each row compared with the connector, Delta with Parquet as well."""
    count = _prepare(bed, "input", bed.scale.records // SHARE)
    small = _prepare(bed, "input-warm", min(count, bed.scale.pool_records))
    for contender in _contenders(bed, "input-warm", small).values():
        contender()
    found = in_turns(_contenders(bed, "input", count), runs=bed.scale.runs)
    return list(_rows(bed, found))


def _prepare(bed: Bed, name: str, wanted: int) -> int:
    """Write the input as plain Parquet files; returns its number of rows."""
    directory = bed.directory / name
    directory.mkdir()
    pool = bed.pool.select(["key", "value"])
    piece = pool.slice(0, max(1, min(pool.num_rows, wanted // FILES)))
    times = max(1, wanted // FILES // piece.num_rows)
    for number in range(FILES):
        with pq.ParquetWriter(directory / f"{number}.parquet", piece.schema) as writer:
            for _ in range(times):
                writer.write_table(piece)
    return sum(pq.read_metadata(file).num_rows for file in directory.iterdir())


def _contenders(bed: Bed, name: str, count: int) -> dict[str, Callable[[], Work]]:
    numbers = itertools.count()

    def frame() -> DataFrame:
        return bed.spark.read.parquet(str(bed.directory / name))

    def to_topic(bootstrap: str, write: Callable[[str], object]) -> Callable[[], Work]:
        def work() -> Work:
            topic = f"{name}-{next(numbers)}"
            with Client(bootstrap) as client:
                client.create_topic(topic, partitions=PARTITIONS)
                os.sync()
                done = bed.measured(count, lambda: write(topic), broker=bootstrap)
                found = sum(client.list_offsets(topic, "latest").values())
                client.delete_topic(topic)
            return _checked(done, found)

        return work

    def to_directory(write: Callable[[str], object]) -> Callable[[], Work]:
        def work() -> Work:
            directory = bed.directory / f"{name}-{next(numbers)}"
            os.sync()
            done = bed.measured(count, lambda: write(str(directory)), broker=None)
            found = sum(pq.read_metadata(file).num_rows for file in directory.rglob("*.parquet"))
            shutil.rmtree(directory)
            return _checked(done, found)

        return work

    def log_sink(topic: str) -> object:
        sink = LogSink(
            application=topic,
            topic=topic,
            bootstrap=bed.penstock.bootstrap,
            admin_url=bed.penstock.admin_url,
        )
        return sink.write(frame(), 0)

    ours, theirs = bed.penstock.bootstrap, bed.kafka.bootstrap
    return {
        LOG: to_topic(ours, log_sink),
        CONNECTOR: to_topic(ours, lambda topic: spark_connector.write(frame(), ours, topic)),
        APACHE: to_topic(theirs, lambda topic: spark_connector.write(frame(), theirs, topic)),
        DELTA: to_directory(lambda path: DeltaSink(path, application=path).write(frame(), 0)),
        PARQUET: to_directory(lambda path: frame().write.parquet(path)),
    }


def _checked(done: Work, found: int) -> Work:
    if found != done.rows:
        raise RuntimeError(f"{found} rows arrived of {done.rows}")
    return Work(
        rows=done.rows,
        seconds=done.seconds,
        client_cpu_seconds=done.client_cpu_seconds,
        broker_cpu_seconds=done.broker_cpu_seconds,
        answer=found,
    )


def _rows(bed: Bed, found: Mapping[str, list[Work]]) -> Iterator[Row]:
    for name in (LOG, DELTA):
        predicted = PREDICTED[name, bed.scale.value_bytes]
        what = f"write, {bed.scale.size_name}, {name}"
        peers = {PARQUET: PARQUET, **PEERS} if name == DELTA else PEERS
        yield from comparison(what, found, name, predicted, peers=peers, costs=name == LOG)
