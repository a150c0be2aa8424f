"""What `record.validation` costs a broker: the check alone, and all of a broker's CPU with it.

Predictions, in nanoseconds a record of 100 bytes, were set down after a first look at the check
alone, and before whole brokers were measured. Reading the five fields takes some fourteen gathers
of 3 ns; finding the records 3 where they are of one size and 25 where they are not; NumPy's calls
a fixed 80 µs a batch, so that up to 32 records are stepped through for 1,500 each instead. Opening
zstd adds 65, lz4 22. Admission without it takes 1.5 µs a batch and 10 ns a record for the checksum.
A broker takes 70 ns of CPU for a record in batches of 1,000 and 2 µs in batches of 10: the walk
adds a tenth.

The reference is the same with `record.validation = headers`, in the same run.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from compat.servers import PenstockProcess

from benchmarks.harness import Row
from benchmarks.peers.load import cpu_seconds, create_topic, resident_mebibytes
from benchmarks.peers.log_clients import KafkaClient, in_flight
from penstock.apps.loads.figures import interleaved
from penstock.records import Codec
from penstock.records.columnar import encode_batches
from penstock.storage import LogConfig
from penstock.storage.log.validation import validate_batches

VALUE_BYTES: Final = 100
NOW_MS: Final = 1_700_000_000_000
PASS_RECORDS: Final = 20_000
SETTINGS: Final = ("headers", "chain", "full")
AIM_RATIO: Final = 1 / 1.1
"""The check costs at most a tenth of a broker's CPU."""
AIM_MEBIBYTES: Final = 10.0
LOADS: Final = ((1_000, 1.0, (0.7, 0.8, 0.8)), (10, 0.05, (20.0, 22.0, 22.0)))
"""Records of a batch, gigabytes of a run, and predicted CPU seconds per gigabyte by setting."""

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


def brokers(scale: float, runs: int) -> Iterator[Row]:
    """Measure a broker's CPU per gigabyte with each setting, and its memory after that."""
    with ExitStack() as stack:
        running = {}
        for setting in SETTINGS:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
            running[setting] = PenstockProcess(Path(directory)).start()
            stack.callback(running[setting].stop)
        for count, gigabytes, predictions in LOADS:
            contenders = {
                setting: partial(_cpu, process, setting, count, gigabytes * scale)
                for setting, process in running.items()
            }
            interleaved(contenders, runs=1)  # compiled code is loaded
            cpu = interleaved(contenders, runs=runs)
            for setting, prediction in zip(SETTINGS, predictions, strict=True):
                yield Row(
                    name=f"broker CPU, {setting}: produce 100 B in batches of {count:,}",
                    value=cpu[setting],
                    unit="s/GB",
                    prediction=prediction,
                    reference=cpu[SETTINGS[0]],
                    reference_name=SETTINGS[0],
                    lower_is_better=True,
                    aim_ratio=AIM_RATIO if setting == "chain" else None,
                )
        memory = {name: resident_mebibytes(process.pid) for name, process in running.items()}
    yield Row(
        name="memory that chain adds to a broker",
        value=memory["chain"] - memory["headers"],
        unit="MiB",
        prediction=5.0,
        lower_is_better=True,
        aim_value=AIM_MEBIBYTES,
        note=f"after the load, headers: {memory['headers']:.0f} MiB, chain: {memory['chain']:.0f}",
    )


def _cpu(process: PenstockProcess, setting: str, count: int, gigabytes: float) -> float:
    """Produce to a new topic; return the broker's CPU seconds per gigabyte."""
    client, topic = KafkaClient(int(process.bootstrap.rpartition(":")[2])), f"load-{count}"
    configs = {"record.validation": setting, "retention.bytes": "1"}
    create_topic(process.bootstrap, topic, 1, configs)
    request = client.request(topic, count, VALUE_BYTES)
    requests = int(gigabytes * 1e9 / count / VALUE_BYTES)
    before = cpu_seconds(process.pid)
    in_flight(client, topic, request, count, requests)
    used = cpu_seconds(process.pid) - before
    client.delete(topic)
    return used / gigabytes


def measure(quick: bool) -> list[Row]:
    """The check alone, then whole brokers; a minute or two."""
    rows = list(validations(runs=3 if quick else 7))
    rows += brokers(scale=0.2 if quick else 1.0, runs=1 if quick else 5)
    return rows
