"""The same confluent-kafka client against any broker: throughput, and the broker's CPU for it.

Client and broker share the cores, so throughput alone measures the client; the broker's own CPU
seconds per gigabyte are what it costs. A gigabyte is 10⁹ bytes of record values. The CPU of a
produced load includes what the broker does after its last response, such as writing segments.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

TIMEOUT_SECONDS = 120
PARTITIONS_AT_ONCE = 5_000
"""Apache Kafka refuses a request that becomes more than 10,000 records of its metadata."""
CHUNK_RECORDS = 5_000
FETCHED_GIGABYTES_MIN = 0.1
"""Less is read again from its start: finding out where to read takes some 20 ms."""
FETCH_WAIT_MS = 10
"""A new assignment waits until the broker has answered the last request, which finds no records."""
GIGABYTE = 1e9
IDLE_SECONDS, IDLE_SHARE = 0.2, 0.15
"""A broker is idle once it has used less than this share of a core for so long."""
SETTLE_SECONDS_MAX = 10.0
PLAINTEXT: Mapping[str, str] = {}
"""The client's options of security, where it needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is sent: how much, how large, over how many partitions, in large or small batches."""

    records: int
    value_bytes: int
    partitions: int
    linger_ms: int
    batch_records: int = 10_000
    """The most records of a batch; those of small ones are up to the client, by default."""

    @property
    def name(self) -> str:
        """As the tables say it."""
        size = "1 KiB" if self.value_bytes == 1024 else f"{self.value_bytes} B"
        batches = "large batches" if self.linger_ms else "small batches (linger 0)"
        if self.batch_records < 10_000:
            batches = f"batches of {self.batch_records}"
        places = "1 partition" if self.partitions == 1 else f"{self.partitions:,} partitions"
        return f"{size}, {places}, {batches}"

    @property
    def gigabytes(self) -> float:
        """Bytes of values in all."""
        return self.records * self.value_bytes / GIGABYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run: megabytes of values a second, and the broker's CPU seconds per gigabyte."""

    megabytes_per_second: float
    cpu_seconds_per_gigabyte: float


Pids = int | Sequence[int]
"""The process of a broker, or those of several."""


def cpu_seconds(pids: Pids) -> float:
    """User and system time of processes and their children so far."""
    total = 0.0
    for pid in [pids] if isinstance(pids, int) else pids:
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        total += sum(each.user + each.system for each in times)
    return total


def resident_mebibytes(pid: int) -> float:
    """Resident memory of a process and its children."""
    process = psutil.Process(pid)
    members = (process, *process.children(recursive=True))
    return float(sum(each.memory_info().rss for each in members)) / 2**20


def proportional_mebibytes(pid: int) -> float:
    """Memory of a process and its children, of what several share the part of each."""
    process = psutil.Process(pid)
    members = (process, *process.children(recursive=True))
    return float(sum(each.memory_full_info().pss for each in members)) / 2**20


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    configs: Mapping[str, str] | None = None,
    security: Mapping[str, str] = PLAINTEXT,
) -> None:
    """Create a topic and wait until its last partition answers."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0, **security}
    admin = AdminClient(common)
    first = min(partitions, PARTITIONS_AT_ONCE)
    topic = NewTopic(name, first, config=dict(configs or {}))
    for future in admin.create_topics([topic]).values():
        future.result(TIMEOUT_SECONDS)
    for count in range(first, partitions, PARTITIONS_AT_ONCE):
        more = NewPartitions(name, min(count + PARTITIONS_AT_ONCE, partitions))
        for future in admin.create_partitions([more]).values():
            future.result(TIMEOUT_SECONDS)
    consumer = Consumer({**common, "group.id": "probe"})
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            consumer.get_watermark_offsets(TopicPartition(name, partitions - 1), timeout=5)
            break
        except KafkaException:
            if time.monotonic() > deadline:
                raise
    consumer.close()


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics([name]).values():
        future.result(TIMEOUT_SECONDS)


def produce(
    bootstrap: str, pids: Pids, topic: str, shape: Shape, security: Mapping[str, str] = PLAINTEXT
) -> Load:
    """Produce the shape's records with acks=all, and wait for every acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": shape.linger_ms,
            "batch.size": 1_000_000 if shape.linger_ms else 16_384,
            "batch.num.messages": shape.batch_records,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "message.timeout.ms": TIMEOUT_SECONDS * 1000,
            "log_level": 0,
            **security,
        }
    )
    producer.list_topics(topic, timeout=TIMEOUT_SECONDS)

    value = (bytes(range(256)) * 4)[: shape.value_bytes]

    def work() -> None:
        for start in range(0, shape.records, CHUNK_RECORDS):
            end = min(start + CHUNK_RECORDS, shape.records)
            for first in range(start, min(start + shape.partitions, end)):
                # Confluent's client ignores the partition of a single message of `produce_batch`.
                count = len(range(first, end, shape.partitions))
                chunk = [{"value": value} for _ in range(count)]
                producer.produce_batch(topic, chunk, first % shape.partitions)
            producer.poll(0)
        left = producer.flush(TIMEOUT_SECONDS)
        if left:
            raise RuntimeError(f"{left} records not delivered in {TIMEOUT_SECONDS} s")

    return _measured(work, pids, shape.gigabytes, until_idle=True)


def fetch(
    bootstrap: str, pids: Pids, topic: str, shape: Shape, security: Mapping[str, str] = PLAINTEXT
) -> Load:
    """Read the topic from its start, as many records as the shape has, until it takes a while."""
    rounds = math.ceil(FETCHED_GIGABYTES_MIN / shape.gigabytes)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 262_144,
            "fetch.queue.backoff.ms": 2,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "log_level": 0,
            **security,
        }
    )
    consumer.list_topics(topic, timeout=TIMEOUT_SECONDS)

    def read() -> None:
        consumer.assign([TopicPartition(topic, part, 0) for part in range(shape.partitions)])
        received = 0
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while received < shape.records:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{received} of {shape.records} records received")
            received += len(consumer.consume(min(10_000, shape.records - received), 1))

    def work() -> None:
        for _ in range(rounds):
            read()

    try:
        return _measured(work, pids, shape.gigabytes * rounds)
    finally:
        consumer.close()


def _wait_until_idle(pids: Pids) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    before = cpu_seconds(pids)
    while time.monotonic() < deadline:
        time.sleep(IDLE_SECONDS)
        now = cpu_seconds(pids)
        if now - before < IDLE_SECONDS * IDLE_SHARE:
            return
        before = now


def _measured(
    work: Callable[[], None], pids: Pids, gigabytes: float, *, until_idle: bool = False
) -> Load:
    before = cpu_seconds(pids)
    begun = time.perf_counter()
    work()
    elapsed = time.perf_counter() - begun
    if until_idle:
        _wait_until_idle(pids)
    return Load(
        megabytes_per_second=gigabytes * 1000 / elapsed,
        cpu_seconds_per_gigabyte=(cpu_seconds(pids) - before) / gigabytes,
    )


def medians(
    loads: Mapping[tuple[str, str], Sequence[Load]], verb: str, figure: Callable[[Load], float]
) -> dict[str, float]:
    """By name, the median of a figure of those loads, by verb and name, that have the verb."""
    return {
        name: statistics.median(figure(load) for load in found)
        for (which, name), found in loads.items()
        if which == verb
    }
