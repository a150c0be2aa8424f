"""What a table's codec costs and saves: bytes, writing by `DeltaSink`, and reading every value.

Snappy is the reference, as what Spark writes when nobody says anything. The data are those of
`spark_bed`: JSON of 100 B of which a third is random text, and of 1 KiB that is nearly all random
text (6 bits a byte), so that a codec has to earn what it saves. Files are read from memory: from a
disk that is slower than the codec, the bytes alone decide.

Prediction, after a first trial by hand. Reading a value of 100 B costs Spark about 0.14 µs of CPU
without a codec; Snappy adds 0.06, LZ4 0.02, Zstandard 0.04. Writing costs 0.9 µs, of which Snappy
and LZ4 are little and Zstandard's lowest level 0.1. Random text of 6 bits a byte is what only
Zstandard can pack, to three quarters; that costs it 0.8 µs a KiB in both directions.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.harness import Row, seconds
from benchmarks.spark_bed import records
from penstock.spark import DeltaSink, session
from penstock.spark.tables import read_table

REFERENCE: Final = "snappy"
CODECS: Final = (REFERENCE, "zstd", "lz4", "none")
FILES: Final = 4
_TITLES: Final = {"table": "size of the table", "write": "write", "read": "read"}
RECORDS: Final = {100: 4_000_000, 1024: 400_000}
RECORDS_QUICK: Final = {100: 1_000_000, 1024: 100_000}
RUNS, RUNS_QUICK = 5, 1
PREDICTED: Final = {
    (100, "zstd"): (165, 1.9, 9.5), (100, "lz4"): (255, 2.0, 11.0), (100, "none"): (500, 2.1, 12.0),
    (1024, "zstd"): (300, 0.35, 0.8), (1024, "lz4"): (405, 0.38, 1.0),
    (1024, "none"): (425, 0.42, 1.2),
}  # fmt: skip
"""Megabytes, million rows/s written, million rows/s read, by bytes of a value and codec."""

Figures = tuple[float, float, float]


def measure(*, quick: bool = False) -> list[Row]:
    """Size of the table, and rows a second in both directions, by codec."""
    runs = RUNS_QUICK if quick else RUNS
    spark = session(application="benchmark", cores=2, settings={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory(
            prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")
        ) as place:
            rows: list[Row] = []
            for value_bytes, count in (RECORDS_QUICK if quick else RECORDS).items():
                rows += _rows(spark, Path(place), value_bytes, count, runs)
            return rows
    finally:
        spark.stop()


def _rows(
    spark: SparkSession, place: Path, value_bytes: int, count: int, runs: int
) -> Iterator[Row]:
    source = place / f"source-{value_bytes}"
    source.mkdir()
    for number in range(FILES):
        pool = records(count // FILES, value_bytes)
        pq.write_table(pool, source / f"{number}.parquet", compression="none")
    frame = spark.read.parquet(str(source))
    found: dict[str, list[Figures]] = {codec: [] for codec in CODECS}
    for run in range(runs + 1):
        for codec in CODECS:
            figures = _once(spark, frame, place / "table", codec, count)
            if run:  # the first warms everything up
                found[codec].append(figures)
    shutil.rmtree(source)
    middle = {
        codec: [statistics.median(column) for column in zip(*taken, strict=True)]
        for codec, taken in found.items()
    }
    size = "1 KiB" if value_bytes == 1024 else f"{value_bytes} B"
    for codec in CODECS[1:]:
        for at, (what, unit) in enumerate(
            (("table", "MB"), ("write", "M rows/s"), ("read", "M rows/s"))
        ):
            scaled = count / RECORDS[value_bytes] if what == "table" else 1
            yield Row(
                name=f"{_TITLES[what]}, {size}, {codec}",
                value=middle[codec][at],
                unit=unit,
                prediction=PREDICTED[value_bytes, codec][at] * scaled,
                reference=middle[REFERENCE][at],
                reference_name=REFERENCE,
                lower_is_better=what == "table",
            )


def _once(spark: SparkSession, frame: DataFrame, table: Path, codec: str, count: int) -> Figures:
    """Megabytes, million rows a second written, and read."""
    shutil.rmtree(table, ignore_errors=True)
    sink = DeltaSink(str(table), application="bench", codec=codec)
    written = seconds(lambda: sink.write(frame, 0))
    size_bytes = DeltaTable(str(table)).get_add_actions(flatten=True)["size_bytes"]
    read = seconds(_reading(spark, table, count))
    return sum(size_bytes.to_pylist()) / 1e6, count / written / 1e6, count / read / 1e6


def _reading(spark: SparkSession, table: Path, count: int) -> Callable[[], None]:
    def action() -> None:
        upper = F.shiftrightunsigned(F.xxhash64("value"), 32)
        rows = read_table(spark, str(table)).agg(F.count("*"), F.sum(upper)).collect()
        if rows[0][0] != count:
            raise RuntimeError(f"the table has {rows[0][0]} rows of {count}")

    return action
