"""Cost of `schema.validation.value`: time to read the ids of a batch, and CPU time of a broker.

Predictions were set down after a first look at single calls, before whole brokers were measured.
The kernel that reads the ids replaces the one that checks the records: it takes 9 ns a record
instead of 8, and 8 more for an id in a header. Around it are 3 µs a batch, and 4 µs in the handler.
Decompressing zstd takes 65 ns a record. A broker takes 200 ns of CPU for a record in batches of a
thousand, and 500 in small ones, which have a hundred or so. So ids cost 4 % of the first, and 14 %
of the second. With zstd they cost 40 %, because a broker decompresses no batch otherwise.

The references are the same without the setting, in the same run.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from compat.servers import PenstockProcess
from tests.ports import free_port

from benchmarks.harness import Row
from benchmarks.peers.load import Shape, create_topic, produce
from penstock.apps.loads.figures import interleaved
from penstock.broker.requests.opening import reader_of
from penstock.client.schemas import SchemaClient, StoredSchema
from penstock.records import Codec
from penstock.records.columnar import encode_batches
from penstock.storage import LogConfig
from penstock.storage.log.validation import validate_batches

VALUE_BYTES: Final = 100
NOW_MS: Final = 1_700_000_000_000
PASS_RECORDS: Final = 50_000
SUBJECT: Final = "bench-value"
SENT_ID: Final = 0x01020304
"""Id at the start of the values that `benchmarks.peers.load` sends."""
OFF: Final = "off"

# Nanoseconds a record: records in a batch, place of the id, codec, reference, prediction.
CASES: Final = (
    (1, "value", Codec.NONE, "chain", 7_500.0),
    (100, "value", Codec.NONE, "chain", 95.0),
    (1_000, "value", Codec.NONE, "chain", 20.0),
    (1_000, "header", Codec.NONE, "chain", 33.0),
    (1_000, "value", Codec.LZ4, "full", 45.0),
    (1_000, "value", Codec.ZSTD, "full", 90.0),
)

# CPU seconds per gigabyte: records in a batch at most, milliseconds of linger, codec, predictions
# without and with validation, with ids of the topic's own subject.
BROKERS: Final = (
    (1_000, 50, "none", (2.0, 2.1, 2.1)),
    (10_000, 0, "none", (5.0, 5.7, 5.7)),
    (1_000, 50, "zstd", (1.8, 2.6, 2.6)),
)


def batch(count: int, place: str, codec: Codec) -> memoryview:
    """Return a batch of records of 100 bytes with an id in their value or a header."""
    framed = b"\0" + struct.pack(">I", SENT_ID)
    payload = bytes(range(256))[: VALUE_BYTES - len(framed)]
    columns = {"value": pa.array([framed + payload] * count)}
    if place == "header":
        header = [{"key": "__value_schema_id", "value": b"\1" + bytes(16)}]
        columns["headers"] = pa.array([header] * count)
    (made,) = encode_batches(pa.table(columns), codec=codec, now_ms=NOW_MS, records_per_batch=count)
    return memoryview(bytearray(made.data))


def validation(data: memoryview, count: int, config: LogConfig) -> Callable[[], float]:
    """Return a contender: this thread's CPU nanoseconds a record for validating the batch."""
    rounds = max(10, PASS_RECORDS // (count + 50))

    def once() -> float:
        start = time.thread_time()
        for _ in range(rounds):
            validate_batches(data, config, NOW_MS, ids=reader_of(config))
        return (time.thread_time() - start) * 1e9 / rounds / count

    return once


def validations(runs: int) -> Iterator[Row]:
    for count, place, codec, reference, prediction in CASES:
        data = batch(count, place, codec)
        contenders = {
            reference: validation(data, count, LogConfig(record_validation=reference)),
            "ids": validation(data, count, LogConfig(schema_validation_value=True)),
        }
        found = interleaved(contenders, runs=runs)
        name = codec.name.lower()
        yield Row(
            name=f"read ids: {count:,} × 100 B a batch, in the {place}, {name}",
            value=found["ids"],
            unit="ns/record",
            prediction=prediction,
            reference=found[reference],
            reference_name=f"record.validation={reference} alone",
            lower_is_better=True,
        )


def brokers(records: int, runs: int) -> Iterator[Row]:
    """Yield a broker's CPU per gigabyte without validation and with it."""
    registry = f"127.0.0.1:{free_port()}"
    configs = {"registry.enable": "true", "registry.listener": registry}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        process = PenstockProcess(Path(directory), configs=configs).start()
        try:
            with SchemaClient(f"http://{registry}") as client:
                client.request("PUT", ("mode",), {"mode": "IMPORT"})
                for setting in SETTINGS:
                    client.register(
                        f"{setting}-value", StoredSchema(schema='"bytes"'), schema_id=SENT_ID,
                        version=1,
                    )  # fmt: skip
            for setting, configs_ in SETTINGS.items():
                create_topic(process.bootstrap, setting, 1, {**configs_, "retention.bytes": "1"})
            for batch_records, linger_ms, codec, predictions in BROKERS:
                shape = Shape(
                    records=records, value_bytes=VALUE_BYTES, partitions=1, linger_ms=linger_ms,
                    batch_records=batch_records,
                )  # fmt: skip
                yield from _broker(process, shape, codec, predictions, runs)
        finally:
            process.stop()


SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    OFF: {},
    "any": {"schema.validation.value": "true"},
    "topic": {
        "schema.validation.value": "true",
        "schema.validation.subject.strategy": "topic",
    },
}
"""Topics by name, with their settings."""


def _broker(
    process: PenstockProcess, shape: Shape, codec: str, predictions: tuple[float, ...], runs: int
) -> Iterator[Row]:
    options = {"compression.type": codec}

    def cpu_of(topic: str) -> float:
        load = produce(process.bootstrap, process.pid, topic, shape, options)
        return load.cpu_seconds_per_gigabyte

    contenders = {topic: partial(cpu_of, topic) for topic in SETTINGS}
    interleaved(contenders, runs=1)  # compiled code is loaded
    cpu = interleaved(contenders, runs=runs)
    for topic, prediction in zip(SETTINGS, predictions, strict=True):
        yield Row(
            name=f"broker CPU, validation {topic}: produce {shape.name}, {codec}",
            value=cpu[topic],
            unit="s/GB",
            prediction=prediction,
            reference=cpu[OFF],
            reference_name="validation off",
            lower_is_better=True,
        )


def measure(quick: bool) -> list[Row]:
    """The check alone, then whole brokers; a minute or two."""
    rows = list(validations(runs=3 if quick else 7))
    rows += brokers(records=500_000 if quick else 2_000_000, runs=1 if quick else 5)
    return rows
