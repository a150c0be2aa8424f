"""Transactions beside Apache Kafka: same client, same machine, same run.

A transaction is begun, its records are produced, and it is committed, one after the other; a
committed one is synced here and lies in Apache Kafka's page cache there. Beside it the same records
without a transaction, flushed after as many. Then a loop: a record is consumed, one is produced for
it, and the offset is committed in the same transaction; what a reader of committed records waits
from the first record on is its latency.

Predicted, before the first run, for one record in one partition. librdkafka adds partitions, sends
the records, ends the transaction, and waits a moment between asking again while the last one is
completed. Here each of these is one save of the coordinator, 0.3 ms with its sync, the records and
the marker are one more each: 1.5 ms, 600 transactions a second; Apache Kafka writes as much without
syncs, through threads that wait for each other: 2 ms. Ten partitions are one request more to the
same broker and ten markers, which are synced together: 2 ms here. The loop is a transaction with a
save for the offsets, a fetch that waits on either side of it, 3 ms.

The bare program (`peers/bare_transactions.py`) answers the same client, and does nothing but the
write of each request, with its sync and without: what a broker that syncs cannot avoid.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.harness import Row
from benchmarks.peers.load import cpu_seconds, create_topic
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.single import APACHE, PENSTOCK, Broker, brokers

TIMEOUT_SECONDS = 60.0
VALUE = bytes(range(100))
PREDICTED = {(1, 1): 600.0, (1, 10): 500.0}
BARE, BARE_UNSYNCED = "bare program, synced", "bare program, not synced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many records a transaction has, over how many partitions."""

    records: int
    partitions: int

    @property
    def name(self) -> str:
        """As the tables say it."""
        records = "1 record" if self.records == 1 else f"{self.records:,} records"
        places = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"transactions of {records} over {places}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """So many a second, each of which costs the broker so much processor."""

    per_second: float
    cpu_ms: float


SHAPES = tuple(
    Shape(records=records, partitions=partitions)
    for records in (1, 10, 1_000)
    for partitions in (1, 10)
)


def measure(*, quick: bool) -> list[Row]:
    """Transactions a second, their processor and what they cost beside plain records; the loop."""
    runs, count = (1, 100) if quick else (3, 500)
    paces: dict[tuple[str, Shape, bool], list[Pace]] = defaultdict(list)
    loops: dict[str, list[float]] = defaultdict(list)
    with (
        brokers(PENSTOCK, APACHE) as found,
        _bare("sync") as synced,
        _bare("none") as unsynced,
    ):
        for run in range(runs):
            for name, broker in found.items():
                for shape in SHAPES:
                    for plain in (False, True):
                        pace = _pace(broker, shape, count, plain=plain, run=run)
                        paces[name, shape, plain].append(pace)
                loops[name].append(_loop(broker, count, run))
            for name, server in ((BARE, synced), (BARE_UNSYNCED, unsynced)):
                bare = Broker(bootstrap=f"127.0.0.1:{server.said}", pid=server.pid)
                for shape in SHAPES:
                    paces[name, shape, False].append(_pace_of(bare, "bare", shape, count))
    return [*_rows(paces), *_loop_rows(loops)]


def _pace(broker: Broker, shape: Shape, count: int, *, plain: bool, run: int) -> Pace:
    topic = f"pace-{shape.records}-{shape.partitions}-{plain}-{run}"
    create_topic(broker.bootstrap, topic, shape.partitions)
    return _pace_of(broker, topic, shape, count, plain=plain)


def _bare(syncs: str) -> PeerProcess:
    most = max(shape.partitions for shape in SHAPES)
    return PeerProcess("benchmarks.peers.bare_transactions", str(most), syncs)


def _pace_of(broker: Broker, topic: str, shape: Shape, count: int, *, plain: bool = False) -> Pace:
    producer = _producer(broker.bootstrap, "" if plain else topic)
    # Confluent's client ignores the partition of a single message of `produce_batch`.
    records = [{"value": VALUE} for _ in range(max(1, shape.records // shape.partitions))]

    def once() -> None:
        if not plain:
            producer.begin_transaction()
        for partition in range(shape.partitions):
            producer.produce_batch(topic, records, partition)
        if plain:
            producer.flush(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)

    once()
    cpu, begun = cpu_seconds(broker.pid), time.perf_counter()
    for _ in range(count):
        once()
    elapsed = time.perf_counter() - begun
    return Pace(
        per_second=count / elapsed,
        cpu_ms=(cpu_seconds(broker.pid) - cpu) * 1000 / count,
    )


def _producer(bootstrap: str, transactional_id: str) -> Producer:
    settings = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 0,
        "log_level": 0,
    }
    if transactional_id:
        settings["transactional.id"] = transactional_id
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def _loop(broker: Broker, count: int, run: int) -> float:
    """The median of milliseconds from a record on one topic to its answer on the other."""
    asked, answered = f"asked-{run}", f"answered-{run}"
    for topic in (asked, answered):
        create_topic(broker.bootstrap, topic, 1)
    source = _producer(broker.bootstrap, "")
    producer = _producer(broker.bootstrap, f"loop-{run}")
    worker, reader = (_consumer(broker.bootstrap, topic, run) for topic in (asked, answered))
    took = []
    try:
        for number in range(count):
            begun = time.perf_counter()
            source.produce(asked, VALUE, partition=0)
            source.poll(0)
            message = _next(worker)
            producer.begin_transaction()
            producer.produce(answered, message.value(), partition=0)
            producer.send_offsets_to_transaction(
                [TopicPartition(asked, 0, number + 1)], worker.consumer_group_metadata()
            )
            producer.commit_transaction(TIMEOUT_SECONDS)
            _next(reader)
            took.append((time.perf_counter() - begun) * 1000)
    finally:
        worker.close()
        reader.close()
    return statistics.median(took)


def _consumer(bootstrap: str, topic: str, run: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"loop-{run}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def _next(consumer: Consumer) -> Message:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            return message
    raise RuntimeError(f"no record in {TIMEOUT_SECONDS} s")


def _rows(paces: Mapping[tuple[str, Shape, bool], Sequence[Pace]]) -> Iterator[Row]:
    def middle(name: str, shape: Shape, plain: bool, of: Callable[[Pace], float]) -> float:
        return statistics.median(map(of, paces[name, shape, plain]))

    for shape in SHAPES:
        pace, beside, plain, plain_beside = (
            middle(name, shape, without, lambda figures: figures.per_second)
            for without in (False, True)
            for name in (PENSTOCK, APACHE)
        )
        (bare_pace, bare_cpu), (free_pace, free_cpu) = (
            (
                middle(name, shape, False, lambda figures: figures.per_second),
                middle(name, shape, False, lambda figures: figures.cpu_ms),
            )
            for name in (BARE, BARE_UNSYNCED)
        )
        yield Row(
            name=shape.name,
            value=pace,
            unit="1/s",
            prediction=PREDICTED.get((shape.records, shape.partitions)),
            reference=beside,
            reference_name=APACHE,
            note=f"{pace / plain:.2f} of the pace without transactions;"
            f" Kafka's {beside / plain_beside:.2f}",
            aim_ratio=1.0,
            limit=f"A transaction waits for three syncs in turn, Apache Kafka for none. The bare"
            f" program makes {bare_pace:,.0f} a second with its syncs, {free_pace:,.0f} without.",
            bare=bare_pace,
        )
        yield Row(
            name=f"CPU of the broker, {shape.name}",
            value=middle(PENSTOCK, shape, False, lambda figures: figures.cpu_ms),
            unit="ms each",
            reference=middle(APACHE, shape, False, lambda figures: figures.cpu_ms),
            reference_name=APACHE,
            lower_is_better=True,
            aim_ratio=1.0,
            limit=f"Four writes and their syncs take {bare_cpu:.2f} ms of processor in the bare"
            f" program, {free_cpu:.2f} ms without syncs; the rest is Python and SQLite, spread over"
            " requests, coordinator, log and two saves.",
            bare=bare_cpu,
        )
        yield Row(
            name=f"{BARE}, {shape.name}",
            value=bare_pace,
            unit="1/s",
            reference=beside,
            reference_name=APACHE,
        )


def _loop_rows(loops: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    yield Row(
        name="consume, transform, produce: from a record to its answer, p50",
        value=statistics.median(loops[PENSTOCK]),
        unit="ms",
        prediction=3.0,
        reference=statistics.median(loops[APACHE]),
        reference_name=APACHE,
        lower_is_better=True,
        aim_ratio=1.0,
        limit="From a record to its answer there are six syncs in turn (the record, the partition,"
        " the group, the offsets or the answer, the commit, the marker), Apache Kafka has none.",
    )
