"""What the benchmarks of Spark share: two brokers with the same bytes, one session, and a meter.

The data are JSON values of one size with keys of 8 bytes, in 4 partitions, not compressed, written
once into Penstock and into Apache Kafka by the same client: the same record batches, the same
offsets, the same timestamps. The part of a value that is padding is random text (6 bits a byte), so
that a table's compression has to earn what it gains.

Every contender answers with a count and a sum of hashes over all the bytes that it should have
read; contenders that disagree stop the benchmark.

The scale is chosen by environment:

    PENSTOCK_BENCH_SCALE   quick (1 M records of 100 B, 0.2 M of 1 KiB), middle (5 M, 1 M; the
                           default), full (20 M, 20 M), or a number of records
    PENSTOCK_BENCH_RUNS    runs of every contender: 1 quick, 3 otherwise
    PENSTOCK_BENCH_PARTS   of `scans,streams,sinks`: what to measure; all of it by default
    PENSTOCK_BENCH_DIR     where brokers and tables keep their data; a temporary directory by
                           default. The full scale of 1 KiB needs 65 GB there.

CPU seconds are those of whole process trees: the client is this process, Spark's Java machine and
its Python workers; the broker is the broker. Both share the machine's cores.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import psutil
import pyarrow as pa
from compat.parts import PartMissing
from compat.servers import PenstockProcess
from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers import spark_connector
from benchmarks.peers.apache_kafka import ApacheKafka
from penstock.client import Client

CORES: Final = 2
PARTITIONS: Final = 4
JAVA_MEMORY: Final = "3g"
POOL_BYTES: Final = 50_000_000
USERS: Final = 100_000
KINDS: Final = 8
DATA, WARM = "data", "warm"
SCALES: Final = {
    "quick": {100: 1_000_000, 1024: 200_000},
    "middle": {100: 5_000_000, 1024: 1_000_000},
    "full": {100: 20_000_000, 1024: 20_000_000},
}
PARTS: Final = ("scans", "streams", "sinks")
# Two logs, a table of random text, and what one sink writes, in sizes of the data.
DISK_FACTOR: Final = 3.1
# Deleted topics are gone at once: the next contender needs the disk.
BROKER_CONFIGS: Final = {"log.segment.delete.delay.ms": "1"}
TEMPLATE: Final = '{"id":00000000,"user":"u0000000","amount":00000,"kind":"k0","note":""}'
ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8
)
VALUE_SCHEMA: Final = "id bigint, user string, amount int, kind string, note string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured, and which parts."""

    records: int
    value_bytes: int
    runs: int
    parts: tuple[str, ...]

    @property
    def size_name(self) -> str:
        """As the tables say it."""
        return "1 KiB" if self.value_bytes == 1024 else f"{self.value_bytes} B"

    @property
    def pool_records(self) -> int:
        """Records that are made; the data are these again and again."""
        wanted = min(self.records, POOL_BYTES // self.value_bytes // 1000 * 1000)
        return next(size for size in range(wanted, 0, -1) if self.records % size == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One run of a contender."""

    rows: int
    seconds: float
    client_cpu_seconds: float
    broker_cpu_seconds: float
    answer: object = None

    @property
    def million_rows_a_second(self) -> float:
        """Throughput."""
        return self.rows / self.seconds / 1e6

    @property
    def million_rows_a_core_second(self) -> float:
        """Throughput per core that is kept busy, the broker's included."""
        return self.rows / (self.client_cpu_seconds + self.broker_cpu_seconds) / 1e6


AnyWork = TypeVar("AnyWork", bound=Work)


@dataclass(frozen=True, kw_only=True)
class Brokers:
    """Penstock and Apache Kafka, running, and a directory for what a benchmark makes."""

    penstock: PenstockProcess
    kafka: ApacheKafka
    directory: Path

    def clients(self) -> Iterator[Client]:
        """A client of each broker in turn."""
        for bootstrap in (self.penstock.bootstrap, self.kafka.bootstrap):
            with Client(bootstrap) as client:
                yield client


@dataclass(frozen=True, kw_only=True)
class Bed(Brokers):
    """Both brokers, and a session of this process."""

    spark: SparkSession
    scale: Scale

    @cached_property
    def pool(self) -> pa.Table:
        """The records that the data repeat."""
        return records(self.scale.pool_records, self.scale.value_bytes)

    def fill(self) -> None:
        """Write the data and the small topic that warms everything up, into both brokers."""
        for client in self.clients():
            for topic, times in ((WARM, 1), (DATA, self.scale.records // self.scale.pool_records)):
                client.create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})
                batches = self.pool.to_batches()
                repeated = (piece for _ in range(times) for piece in batches)
                client.write_arrow(
                    topic, pa.RecordBatchReader.from_batches(self.pool.schema, repeated)
                )
        os.sync()

    def empty(self) -> None:
        """Delete the data of both brokers."""
        for client in self.clients():
            client.delete_topic(DATA)

    def ours(self, topic: str, *, by_fetch: bool = False, **options: str) -> DataFrame:
        """The whole of a topic of Penstock by our source.

        Args:
            by_fetch: read through the broker, as from another machine, not from its files.
            options: further options of the source.
        """
        given = self.our_options(topic) | options
        if by_fetch:
            del given["penstock.admin.url"]
        return self.spark.read.format("penstock").options(**given).load()

    def our_options(self, topic: str) -> dict[str, str]:
        """What our source needs for a topic of Penstock."""
        return {
            "bootstrap": self.penstock.bootstrap,
            "penstock.admin.url": self.penstock.admin_url,
            "subscribe": topic,
        }

    def measured(self, rows: int, work: Callable[[], object], *, broker: str | None) -> Work:
        """Time and CPU seconds of one call that uses the broker of this address, or none."""
        before = self._cpu_seconds(broker)
        begun = time.perf_counter()
        answer = work()
        seconds = time.perf_counter() - begun
        after = self._cpu_seconds(broker)
        return Work(
            rows=rows,
            seconds=seconds,
            client_cpu_seconds=after[0] - before[0],
            broker_cpu_seconds=after[1] - before[1],
            answer=answer,
        )

    def _cpu_seconds(self, broker: str | None) -> tuple[float, float]:
        """Of the client, and of the broker; what the other broker does meanwhile is nobody's."""
        brokers = {
            running.bootstrap: tree_cpu_seconds(running.pid)
            for running in (self.penstock, self.kafka)
        }
        return tree_cpu_seconds(os.getpid()) - sum(brokers.values()), brokers.get(broker or "", 0)


def scale(value_bytes: int, *, quick: bool) -> Scale:
    """The scale that the environment asks for, or the quick one.

    Raises:
        ValueError: a variable is not what this module's text says.
    """
    name = "quick" if quick else os.environ.get("PENSTOCK_BENCH_SCALE", "middle")
    if not name.isdecimal() and name not in SCALES:
        raise ValueError(f"PENSTOCK_BENCH_SCALE is {name!r}; it is a number or of {list(SCALES)}")
    parts = tuple(os.environ.get("PENSTOCK_BENCH_PARTS", ",".join(PARTS)).split(","))
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"PENSTOCK_BENCH_PARTS has {unknown.pop()!r}; there are {PARTS}")
    runs = int(os.environ.get("PENSTOCK_BENCH_RUNS", "1" if quick else "3"))
    if runs < 1:
        raise ValueError(f"PENSTOCK_BENCH_RUNS is {runs}; one is the least")
    return Scale(
        records=int(name) if name.isdecimal() else SCALES[name][value_bytes],
        value_bytes=value_bytes,
        runs=runs,
        parts=parts,
    )


@contextmanager
def brokers(needed_bytes: float) -> Iterator[Brokers]:
    """Both brokers, started now, gone with all their data at the end.

    Raises:
        ConnectorMissing: the jars of the connector or of Apache Kafka cannot be had.
        RuntimeError: the disk is too small.
    """
    parent = os.environ.get("PENSTOCK_BENCH_DIR")
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=parent))
        )
        _check_disk(directory, needed_bytes)
        spark_connector.connector_jars()  # says what is missing before anything is started
        penstock = PenstockProcess(directory / "penstock", configs=BROKER_CONFIGS).start()
        stack.callback(penstock.stop)
        (directory / "kafka").mkdir()
        try:
            kafka = ApacheKafka(directory / "kafka", configs=BROKER_CONFIGS)
            stack.enter_context(kafka)
        except PartMissing as error:
            raise spark_connector.ConnectorMissing(
                f"Apache Kafka cannot be fetched (profile `kafka` of compat/jars/pom.xml): {error}"
            ) from error
        yield Brokers(penstock=penstock, kafka=kafka, directory=directory)


@contextmanager
def bed(wanted: Scale) -> Iterator[Bed]:
    """Brokers and session; raises as `brokers` does."""
    needed = wanted.records * (wanted.value_bytes + 40) * DISK_FACTOR
    with (
        brokers(needed) as both,
        spark_connector.connector_session(both.directory, cores=CORES, memory=JAVA_MEMORY) as spark,
    ):
        yield Bed(
            spark=spark,
            penstock=both.penstock,
            kafka=both.kafka,
            directory=both.directory,
            scale=wanted,
        )


def in_turns(
    contenders: Mapping[str, Callable[[], AnyWork]], *, runs: int, agree: bool = True
) -> dict[str, list[AnyWork]]:
    """Every contender's runs, taken in turns: A B A B.

    Raises:
        RuntimeError: contenders that have to `agree` gave different answers.
    """
    found: dict[str, list[AnyWork]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            found[name].append(contender())
    answers = {name: works[0].answer for name, works in found.items()}
    if agree and any(
        work.answer != answers[name] for name, works in found.items() for work in works
    ):
        raise RuntimeError(f"a contender's answers differ between runs: {answers}")
    if agree and len(set(map(str, answers.values()))) > 1:
        raise RuntimeError(f"the contenders read different records: {answers}")
    return found


def middle(works: Sequence[AnyWork], of: Callable[[AnyWork], float]) -> float:
    """The median of one figure."""
    return statistics.median(of(work) for work in works)


def tree_cpu_seconds(pid: int) -> float:
    """What a process, its children and those of them that have ended used of the cores."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended just now, and counts among its parent's ended ones
        total += times.user + times.system + times.children_user + times.children_system
    return total


def records(count: int, value_bytes: int) -> pa.Table:
    """JSON records: the key is the user, the value has exactly `value_bytes` bytes."""
    random = np.random.default_rng(value_bytes)
    values = np.tile(np.frombuffer(TEMPLATE.encode(), dtype=np.uint8), (count, 1))
    padding = ALPHABET[random.integers(0, len(ALPHABET), (count, value_bytes - len(TEMPLATE)))]
    values = np.concatenate([values[:, :-2], padding, values[:, -2:]], axis=1)
    users = random.integers(0, USERS, count)
    for mark, width, numbers in (
        ('"id":', 8, np.arange(count) + 10_000_000),
        ('"user":"u', 7, users),
        ('"amount":', 5, random.integers(10_000, 99_999, count)),
        ('"kind":"k', 1, random.integers(0, KINDS, count)),
    ):
        place = TEMPLATE.index(mark) + len(mark)
        values[:, place : place + width] = _digits(numbers, width)
    keys = np.concatenate([np.full((count, 1), ord("u"), np.uint8), _digits(users, 7)], axis=1)
    newest_ms = int(time.time() * 1000)
    return pa.table(
        {
            "key": _binary(keys),
            "value": _binary(values),
            "timestamp": pa.array(newest_ms - count + np.arange(count)),
        }
    )


def _digits(numbers: np.ndarray, width: int) -> np.ndarray:
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _binary(cells: np.ndarray) -> pa.Array:
    count, width = cells.shape
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    data = np.ascontiguousarray(cells)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _check_disk(directory: Path, needed_bytes: float) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise RuntimeError(
            f"these records need {needed_bytes / 1e9:.0f} GB in {directory.parent}, and "
            f"{free / 1e9:.0f} GB are free: choose a smaller PENSTOCK_BENCH_SCALE, or another "
            "PENSTOCK_BENCH_DIR"
        )
