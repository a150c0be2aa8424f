"""What `record.validation` costs a broker: the check alone, and all of a broker's CPU with it.

Predictions, in nanoseconds a record of 100 bytes, were set down after a first look at the check
alone, and before whole brokers were measured. Reading the five fields takes some fourteen gathers
of 3 ns; finding the records 3 where they are of one size and 25 where they are not; NumPy's calls
a fixed 80 µs a batch, so that up to 32 records are stepped through for 1,500 each instead. Opening
zstd adds 65, lz4 22. Admission without it takes 1.5 µs a batch and 10 ns a record for the checksum.
A broker takes 200 ns of CPU for a record in large batches and 500 in small ones, whose batches are
of a hundred or so: the walk adds a third there, and more than doubles the other.

The reference is the same with `record.validation = headers`, in the same run.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from compat.servers import PenstockProcess

from benchmarks.harness import Row
from benchmarks.peers.load import Shape, create_topic, produce
from penstock.apps.loads.figures import interleaved
from penstock.records import Codec
from penstock.records.columnar import encode_batches
from penstock.storage import LogConfig
from penstock.storage.log.validation import validate_batches

VALUE_BYTES: Final = 100
NOW_MS: Final = 1_700_000_000_000
PASS_RECORDS: Final = 20_000
SETTINGS: Final = ("headers", "chain", "full")

# Nanoseconds a record, from the costs above: records in a batch, shape, codec, setting.
CASES: Final = (
    (1, "one size", Codec.NONE, "chain", 3_000.0),
    (10, "one size", Codec.NONE, "chain", 1_660.0),
    (100, "one size", Codec.NONE, "chain", 880.0),
    (1_000, "one size", Codec.NONE, "chain", 150.0),
    (5_000, "one size", Codec.NONE, "chain", 71.0),
    (5_000, "sizes vary", Codec.NONE, "chain", 93.0),
    (5_000, "two headers", Codec.NONE, "chain", 160.0),
    (5_000, "sizes vary", Codec.LZ4, "full", 115.0),
    (5_000, "sizes vary", Codec.ZSTD, "full", 158.0),
)


def batch(count: int, shape: str, codec: Codec) -> memoryview:
    """One batch of records of about 100 bytes."""
    dice = random.Random(f"{count} {shape}")
    low, high = (50, 150) if shape == "sizes vary" else (VALUE_BYTES, VALUE_BYTES)
    columns = {
        "value": pa.array([dice.randbytes(dice.randint(low, high)) for _ in range(count)]),
        "timestamp": pa.array(np.arange(count) // 10 + NOW_MS),
    }
    if shape == "two headers":
        pair = [{"key": "trace", "value": b"0123456789abcdef"}, {"key": "kind", "value": b"a"}]
        columns["headers"] = pa.array([pair] * count)
    (one,) = encode_batches(pa.table(columns), codec=codec, now_ms=0, records_per_batch=count)
    return memoryview(bytearray(one.data))


def validation(data: memoryview, count: int, setting: str) -> Callable[[], float]:
    """A contender: this thread's CPU nanoseconds a record for validating the batch."""
    config = LogConfig(record_validation=setting)
    rounds = max(3, PASS_RECORDS // (count + 50))

    def once() -> float:
        start = time.thread_time()
        for _ in range(rounds):
            validate_batches(data, config, NOW_MS, internal=False)
        return (time.thread_time() - start) * 1e9 / rounds / count

    return once


def validations(runs: int) -> Iterator[Row]:
    for count, shape, codec, setting, prediction in CASES:
        data = batch(count, shape, codec)
        contenders = {name: validation(data, count, name) for name in ("headers", setting)}
        found = interleaved(contenders, runs=runs)
        yield Row(
            name=f"validate, {setting}: {count:,} × 100 B a batch, {shape}, {codec.name.lower()}",
            value=found[setting],
            unit="ns/record",
            prediction=prediction,
            reference=found["headers"],
            reference_name="headers",
            lower_is_better=True,
        )


def brokers(records: int, runs: int) -> Iterator[Row]:
    """A broker's CPU per gigabyte with each setting, for large batches and small ones."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        process = PenstockProcess(Path(directory)).start()
        try:
            for linger_ms, predictions in ((50, (2.0, 2.7, 2.7)), (0, (5.0, 12.0, 12.0))):
                shape = Shape(
                    records=records, value_bytes=VALUE_BYTES, partitions=1, linger_ms=linger_ms
                )
                yield from _broker(process, shape, predictions, runs)
        finally:
            process.stop()


def _broker(
    process: PenstockProcess, shape: Shape, predictions: tuple[float, ...], runs: int
) -> Iterator[Row]:
    for setting in SETTINGS:
        configs = {"record.validation": setting, "retention.bytes": "1"}
        create_topic(process.bootstrap, f"{setting}-{shape.linger_ms}", 1, configs)

    def load(setting: str) -> float:
        topic = f"{setting}-{shape.linger_ms}"
        return produce(process.bootstrap, process.pid, topic, shape).cpu_seconds_per_gigabyte

    found: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    for _ in range(runs + 1):
        for setting in SETTINGS:
            found[setting].append(load(setting))
    cpu = {name: statistics.median(values[1:]) for name, values in found.items()}
    for setting, prediction in zip(SETTINGS, predictions, strict=True):
        yield Row(
            name=f"broker CPU, {setting}: produce {shape.name}",
            value=cpu[setting],
            unit="s/GB",
            prediction=prediction,
            reference=cpu["headers"],
            reference_name="headers",
            lower_is_better=True,
        )


def measure(quick: bool) -> list[Row]:
    """The check alone, then whole brokers; a minute or two."""
    rows = list(validations(runs=3 if quick else 7))
    rows += brokers(records=200_000 if quick else 1_000_000, runs=1 if quick else 3)
    return rows
