"""Groups beside Apache Kafka: the same clients, the same machine, the same run.

Three things: how long a group of 100 members takes to share 1,000 partitions, by the classic and by
the consumer protocol; offsets committed a second, by clients that wait for each answer; and what
share groups deliver, by Kafka's own `ShareConsumerPerformance`.

The members are librdkafka's, in one process, with its own and the broker's times: three seconds
between heartbeats in the classic protocol, five in the other. A group has settled once every
partition has one owner and no member has more than its part. Both brokers have the same
`group.initial.rebalance.delay.ms`: none, and in rows of their own the default of 3 s.

Predicted, before the first run. A member that comes or goes is seen by the others with their next
heartbeat: the classic protocol needs one round of them, up to 3 s; in the other a partition is
given up in one and taken in the next, up to 10 s, but for a leave one is enough, 5 s. What the
broker computes is milliseconds, so both brokers take as long. A commit is one save with its sync
here, 0.5 ms with librdkafka's part, 2,000 a second from one client; ten clients share the saves of
a turn, 8,000. Apache Kafka writes to its page cache, and waits for no disk: as many from one
client. With the policy `os`, Penstock does the same; without the sync, 0.1 ms less, it is ahead.
The bare program (`peers/bare_transactions.py`) answers the same clients, and only writes, and
syncs, what they commit. A share group's records are acquired by batches of 500, and each batch
is one row that is saved: 0.5 ms, so one consumer gets 300,000 records a second, if it can take
them.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

from compat.parts import class_path, jars
from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import Row
from benchmarks.peers.load import Shape, cpu_seconds, create_topic, produce
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.single import APACHE, FROM_CACHE, PENSTOCK, Broker, brokers
from penstock.client import Client

TIMEOUT_SECONDS = 120
MEMBERS, PARTITIONS = 100, 1_000
PROTOCOLS = ("classic", "consumer")
STEPS = ("all members join", "one member leaves", "one member joins")
DELAY, DELAY_MS = "group.initial.rebalance.delay.ms", 3_000
DELAYED = f"{STEPS[0]}, initial delay {DELAY_MS:,} ms"
PREDICTED = {
    ("classic", STEPS[0]): 4.0,
    ("classic", DELAYED): 4.0,
    ("classic", STEPS[1]): 3.0,
    ("classic", STEPS[2]): 3.0,
    ("consumer", STEPS[0]): 6.0,
    ("consumer", STEPS[1]): 5.0,
    ("consumer", STEPS[2]): 10.0,
}
HEARTBEATS = {
    "classic": "Members learn of a rebalance with their next heartbeat, which librdkafka sends"
    " every 3 s. The last of 100 members sends it after 2.97 s on average, with any broker.",
    "consumer": "Members release and take partitions with heartbeats, which librdkafka sends every"
    " 5 s. The last member that changes sends its heartbeat up to 5 s later, with any broker.",
}
BARE, BARE_UNSYNCED = "bare program", "bare program, not synced"
COMMITTERS = {1: 2_000.0, 10: 8_000.0}
UNSYNCED = {1: 3_000.0, 10: 10_000.0}
SHARERS = {1: 300_000.0, 10: 400_000.0}
SHARED_PARTITIONS = 4
SHARED_BYTES = 100
JAVA = ("java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, and the broker's processor time that it took, per piece of work."""

    value: float
    cpu_seconds: float


Figures = dict[tuple[str, str, str | int], list[Figure]]
"""By the part, the broker and the case."""


def measure(*, quick: bool) -> list[Row]:
    """Rebalances, commits and records of share groups."""
    runs, commits, records = (1, 300, 300_000) if quick else (3, 2_000, 2_000_000)
    found: Figures = defaultdict(list)
    with (
        brokers(PENSTOCK, FROM_CACHE, APACHE, configs={DELAY: "0"}) as all_brokers,
        PeerProcess("benchmarks.peers.bare_transactions", "1", "sync") as synced,
        PeerProcess("benchmarks.peers.bare_transactions", "1", "none") as unsynced,
    ):
        committed_to = all_brokers | {
            name: Broker(bootstrap=f"127.0.0.1:{server.said}", pid=server.pid)
            for name, server in ((BARE, synced), (BARE_UNSYNCED, unsynced))
        }
        for run, (name, broker), clients in product(range(runs), committed_to.items(), COMMITTERS):
            topics = name not in (BARE, BARE_UNSYNCED)
            found["commits", name, clients].append(
                _commits(broker, clients, commits, run if topics else None)
            )
        del all_brokers[FROM_CACHE]
        for run in range(runs):
            for name, broker in all_brokers.items():
                for clients in SHARERS:
                    found["share", name, clients].append(
                        _share(name, broker, clients, records, run)
                    )
                for protocol in PROTOCOLS:
                    for step, took in _rebalances(broker, protocol, run):
                        found[protocol, name, step].append(took)
    with brokers(PENSTOCK, APACHE, configs={DELAY: str(DELAY_MS)}) as pair:
        for run in range(runs):
            for name, broker in pair.items():
                [(_, took)] = _rebalances(broker, "classic", run, STEPS[:1])
                found["classic", name, DELAYED].append(took)
    return [*_rebalance_rows(found), *_commit_rows(found), *_share_rows(found)]


class Members:
    """The members of a group, polled in turn by one thread."""

    def __init__(self, broker: Broker, protocol: str, topic: str) -> None:
        self._settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._topic = topic
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.consumers: list[Consumer] = []
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def join(self, count: int) -> None:
        for _ in range(count):
            consumer = Consumer(self._settings)
            consumer.subscribe([self._topic])
            with self._lock:
                self.consumers.append(consumer)

    def leave(self) -> None:
        with self._lock:
            gone = self.consumers.pop()
        gone.close()

    def wait_until_settled(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        most = -(-PARTITIONS // len(self.consumers))
        while time.monotonic() < deadline:
            with self._lock:
                shares = [
                    [at.partition for at in consumer.assignment()] for consumer in self.consumers
                ]
            owned = [partition for share in shares for partition in share]
            if sorted(owned) == list(range(PARTITIONS)) and max(map(len, shares)) <= most:
                return
            time.sleep(0.02)
        raise RuntimeError(f"the group has not settled in {TIMEOUT_SECONDS} s: {len(owned)} owned")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        with ThreadPoolExecutor(len(self.consumers)) as pool:
            list(pool.map(lambda consumer: consumer.close(), self.consumers))

    def _poll(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                for consumer in self.consumers:
                    consumer.poll(0)
            time.sleep(0.01)


def _rebalances(
    broker: Broker, protocol: str, run: int, steps: Sequence[str] = STEPS
) -> Iterator[tuple[str, Figure]]:
    topic = f"{protocol}-{run}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    members = Members(broker, protocol, topic)
    try:
        changes = (lambda: members.join(MEMBERS), members.leave, lambda: members.join(1))
        for step, change in zip(steps, changes, strict=False):
            yield step, _timed(broker, change, members.wait_until_settled)
    finally:
        members.close()


def _timed(broker: Broker, *work: Callable[[], None]) -> Figure:
    cpu, begun = cpu_seconds(broker.pid), time.perf_counter()
    for each in work:
        each()
    return Figure(value=time.perf_counter() - begun, cpu_seconds=cpu_seconds(broker.pid) - cpu)


def _commits(broker: Broker, clients: int, count: int, run: int | None) -> Figure:
    """Commit offsets from so many clients; a broker without a `run` needs no topic."""
    topic = f"commits-{clients}-{run}"
    if run is not None:
        create_topic(broker.bootstrap, topic, 1)
    consumers = [
        Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-{number}", "log_level": 0}
        )
        for number in range(clients)
    ]

    def commit(consumer: Consumer, times: int) -> None:
        for offset in range(times):
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    with ThreadPoolExecutor(clients) as pool:

        def all_of_them(times: int) -> None:
            list(pool.map(commit, consumers, [times] * clients))

        all_of_them(2)  # finds the coordinator
        took = _timed(broker, lambda: all_of_them(count))
    for consumer in consumers:
        consumer.close()
    total = clients * count
    return Figure(value=total / took.value, cpu_seconds=took.cpu_seconds / total)


def _share(name: str, broker: Broker, threads: int, records: int, run: int) -> Figure:
    topic = f"share-{threads}-{run}"
    create_topic(broker.bootstrap, topic, SHARED_PARTITIONS)
    with Client(broker.bootstrap) as client:
        client.alter_configs("group", topic, {"share.auto.offset.reset": "earliest"})
    shape = Shape(
        records=records, value_bytes=SHARED_BYTES, partitions=SHARED_PARTITIONS, linger_ms=20
    )
    produce(broker.bootstrap, broker.pid, topic, shape)
    cpu = cpu_seconds(broker.pid)
    command = [
        *(*JAVA, "-cp", class_path(jars("tools"))),
        *("org.apache.kafka.tools.ShareConsumerPerformance", "--hide-header"),
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", topic),
        *("--threads", str(threads), "--num-records", str(records), "--timeout", "60000"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    _, _, _, _, rate, consumed, _ = done.stdout.splitlines()[-1].split(", ")
    if int(consumed) < records:
        raise RuntimeError(f"{consumed} of {records} records came: {done.stdout}{done.stderr}")
    return Figure(value=float(rate), cpu_seconds=(cpu_seconds(broker.pid) - cpu) / int(consumed))


def _middle(figures: Sequence[Figure], of: str) -> float:
    return statistics.median(float(getattr(figure, of)) for figure in figures)


def _rebalance_rows(found: Mapping[tuple[str, str, str | int], list[Figure]]) -> Iterator[Row]:
    for protocol in PROTOCOLS:
        for step in (*STEPS, DELAYED) if protocol == "classic" else STEPS:
            ours, theirs = (found[protocol, name, step] for name in (PENSTOCK, APACHE))
            yield Row(
                name=f"{MEMBERS} members, {PARTITIONS:,} partitions, {protocol} protocol: {step}",
                value=_middle(ours, "value"),
                unit="s",
                prediction=PREDICTED[protocol, step],
                reference=_middle(theirs, "value"),
                reference_name=APACHE,
                lower_is_better=True,
                aim_ratio=1.0,
                limit="" if step == DELAYED else HEARTBEATS[protocol],
                note=f"CPU of the broker {_middle(ours, 'cpu_seconds'):.2f} s,"
                f" Kafka's {_middle(theirs, 'cpu_seconds'):.2f} s",
            )


def _commit_rows(found: Mapping[tuple[str, str, str | int], list[Figure]]) -> Iterator[Row]:
    for clients in COMMITTERS:
        what = f"offset commits, {clients} client{'s' if clients > 1 else ''}"
        bare, cpu_us = _pace(found["commits", BARE, clients])
        limit = (
            "A commit is synced before its response, Apache Kafka writes it to its page cache."
            f" The bare program writes and syncs the commits of a turn, and makes {bare:,.0f} a"
            f" second with {cpu_us:.0f} µs of processor each."
        )
        theirs = found["commits", APACHE, clients]
        ours = found["commits", PENSTOCK, clients]
        yield from _rates(
            f"{what}, synced", COMMITTERS[clients], ours, theirs, aim_ratio=1.0, bare=bare,
            limit=limit,
        )  # fmt: skip
        bare, _ = _pace(found["commits", BARE_UNSYNCED, clients])
        ours = found["commits", FROM_CACHE, clients]
        yield from _rates(
            f"{what}, page cache", UNSYNCED[clients], ours, theirs, aim_ratio=1.0, bare=bare
        )


def _share_rows(found: Mapping[tuple[str, str, str | int], list[Figure]]) -> Iterator[Row]:
    for consumers, predicted in SHARERS.items():
        ours, theirs = (found["share", name, consumers] for name in (PENSTOCK, APACHE))
        what = f"records of a share group, {consumers} consumer{'s' if consumers > 1 else ''}"
        yield from _rates(what, predicted, ours, theirs)


def _pace(figures: Sequence[Figure]) -> tuple[float, float]:
    """Pieces of work a second, and microseconds of processor time of each."""
    return _middle(figures, "value"), _middle(figures, "cpu_seconds") * 1e6


def _rates(
    what: str, predicted: float, ours: Sequence[Figure], theirs: Sequence[Figure], **aim: Any
) -> Iterator[Row]:
    (rate, cpu_us), (peer_rate, peer_cpu_us) = _pace(ours), _pace(theirs)
    yield Row(
        name=what, value=rate, unit="1/s", prediction=predicted, reference=peer_rate,
        reference_name=APACHE, **aim,
    )  # fmt: skip
    yield Row(
        name=f"CPU of the broker, {what}", value=cpu_us, unit="µs each", reference=peer_cpu_us,
        reference_name=APACHE, lower_is_better=True,
    )  # fmt: skip
