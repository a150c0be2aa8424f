"""Compaction beside Apache Kafka's cleaner: the same records, one thread each, on one machine.

Both brokers get the same records of a topic that is not dirty enough to be compacted, five for each
key on average. Then `min.cleanable.dirty.ratio` is lowered, and what is measured is the time until
`cleaner-offset-checkpoint` says that the log is clean: a pass over all of its closed segments, from
the wait for the next look on (0.1 s at both) to the last swap. Both compact with one thread and
128 MiB for keys, as they come.

Predicted: ours takes 60 ns to parse and hash a record, 80 to look its key up, and 1 for 10 bytes
that are read and checked. Every round of updates has all keys, so four of five batches have no
newest record and are not read again: 0.16 µs for a record of 100 bytes, 0.25 µs for one of 1 KiB,
0.3 µs for a compressed one. Where every batch keeps a record, ours reads all of them twice. Kafka's
takes an MD5 of the key twice (0.3 µs), makes an object of each record twice and writes those that
stay with all of their fields: 1.5 and 3 µs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from compat.servers import PenstockProcess
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.harness import Row
from benchmarks.peers.apache_kafka import ApacheKafka
from benchmarks.peers.load import cpu_seconds, create_topic

PENSTOCK, APACHE = "Penstock", "Apache Kafka"
VERSIONS = 5
"""Records of each key."""
RATIO = "min.cleanable.dirty.ratio"
OFFSETS = "cleaner-offset-checkpoint"
CONFIGS = {"cleanup.policy": "compact", RATIO: "1.0"}
BROKER = {"log.cleaner.backoff.ms": "100"}
TIMEOUT_SECONDS = 300
AIM = 3.0


class Shape(NamedTuple):
    """What is produced."""

    name: str
    records: int
    value_bytes: int
    codec: str
    predicted: float
    """Records a second."""
    segment_bytes: int = 32 << 20


class Pass(NamedTuple):
    """One compaction: what it went over, and what it took."""

    seconds: float
    cpu_seconds: float
    size_bytes: int
    records: float


class Place(NamedTuple):
    """A running broker and where it keeps its files."""

    bootstrap: str
    pid: int
    directory: Path


def measure(*, quick: bool) -> list[Row]:
    """Records and bytes a second of a pass, and its processor time."""
    scale = 4 if quick else 1
    shapes = [
        Shape("100 B", 4_000_000 // scale, 100, "none", 5e6),
        Shape("1 KiB", 600_000 // scale, 1000, "none", 2e6),
        Shape("100 B, lz4", 4_000_000 // scale, 100, "lz4", 3.5e6, 4 << 20),
    ]
    found: dict[tuple[str, str], list[Pass]] = defaultdict(list)
    runs = 1 if quick else 3
    with places() as brokers:
        for shape in shapes:
            for _ in range(runs):
                for name, place in brokers.items():
                    found[shape.name, name].append(compacted(place, shape))
    return [row for shape in shapes for row in _rows(shape, found)]


@contextmanager
def places() -> Iterator[Mapping[str, Place]]:
    """Both brokers, each over a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        ours = PenstockProcess(
            root / "penstock", configs={**BROKER, "log.checkpoint.interval.ms": "500"}
        ).start()
        kafka = ApacheKafka(root / "kafka", configs=BROKER)
        try:
            (root / "kafka").mkdir()
            kafka.start()
            yield {
                PENSTOCK: Place(ours.bootstrap, ours.pid, root / "penstock"),
                APACHE: Place(kafka.bootstrap, kafka.pid, root / "kafka"),
            }
        finally:
            kafka.stop()
            ours.stop()


_topics = iter(range(1 << 30))


def compacted(place: Place, shape: Shape) -> Pass:
    """Fill a topic of its own, and have it compacted."""
    topic = f"compacted-{next(_topics)}"
    configs = {**CONFIGS, "segment.bytes": str(shape.segment_bytes)}
    create_topic(place.bootstrap, topic, 1, configs)
    _fill(place.bootstrap, topic, shape)
    time.sleep(2)  # a checkpoint syncs what is closed
    (directory,) = place.directory.glob(f"**/{topic}-0")
    sizes = [segment.stat().st_size for segment in sorted(directory.glob("*.log"))]
    size_bytes = sum(sizes[:-1])
    begun, cpu = time.perf_counter(), cpu_seconds(place.pid)
    _lower_ratio(place.bootstrap, topic)
    while not any(f"{topic} 0 " in text for text in _offsets(place.directory)):
        if time.perf_counter() - begun > TIMEOUT_SECONDS:
            raise TimeoutError(f"{topic} was not compacted in {TIMEOUT_SECONDS} s")
        time.sleep(0.02)
    took = time.perf_counter() - begun
    left = sum(segment.stat().st_size for segment in directory.glob("*.log"))
    if left > 0.7 * sum(sizes):
        raise RuntimeError(f"{topic} has {left} bytes of {sum(sizes)} once it is compacted")
    return Pass(
        took, cpu_seconds(place.pid) - cpu, size_bytes, shape.records * size_bytes / sum(sizes)
    )


def _fill(bootstrap: str, topic: str, shape: Shape) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 100_000,
            "compression.type": shape.codec,
            "queue.buffering.max.messages": 2_000_000,
            "log_level": 0,
        }
    )
    keys = shape.records // VERSIONS
    value = (bytes(range(97, 123)) * (shape.value_bytes // 26 + 1))[: shape.value_bytes - 8]
    for number in range(shape.records):
        # A step that is prime to the number of keys: every key comes once in a round, in another
        # order than the one before.
        key = (number * 48_271 + number // keys * 7_919) % keys
        while True:
            try:
                producer.produce(topic, b"%08d" % number + value, b"key-%012d" % key)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(TIMEOUT_SECONDS):
        raise TimeoutError(f"{topic} was not filled")


def _lower_ratio(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entry = ConfigEntry(RATIO, "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _offsets(directory: Path) -> Iterator[str]:
    for path in directory.glob(f"**/{OFFSETS}"):
        try:
            yield path.read_text()
        except FileNotFoundError:  # it was replaced a moment ago
            continue


def _records(one: Pass) -> float:
    return one.records / one.seconds


def _megabytes(one: Pass) -> float:
    return one.size_bytes / one.seconds / 1e6


def _cpu(one: Pass) -> float:
    return one.cpu_seconds / one.size_bytes * 1e9


def _rows(shape: Shape, found: Mapping[tuple[str, str], list[Pass]]) -> Iterator[Row]:
    ours, theirs = found[shape.name, PENSTOCK], found[shape.name, APACHE]

    def median(passes: list[Pass], figure: Callable[[Pass], float]) -> float:
        return statistics.median([figure(cleaning) for cleaning in passes])

    size = f"{ours[0].size_bytes / 1e6:.0f} MB of closed segments"
    yield Row(
        name=f"compaction, {shape.name}: records per second",
        value=median(ours, _records), unit="records/s",
        prediction=shape.predicted, reference=median(theirs, _records), reference_name=APACHE,
        note=size, aim_ratio=AIM,
    )  # fmt: skip
    yield Row(
        name=f"compaction, {shape.name}: bytes per second",
        value=median(ours, _megabytes), unit="MB/s",
        reference=median(theirs, _megabytes), reference_name=APACHE, note=size,
    )  # fmt: skip
    yield Row(
        name=f"compaction, {shape.name}: CPU of the broker",
        value=median(ours, _cpu), unit="CPU s/GB",
        reference=median(theirs, _cpu), reference_name=APACHE, lower_is_better=True,
        note="of the whole broker", aim_ratio=AIM,
    )  # fmt: skip
