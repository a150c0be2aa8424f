"""Penstock beside Apache Kafka, Redis Streams, NATS JetStream and RabbitMQ streams, in one run.

Clients are plain sockets that send prepared requests (`peers/log_clients.py`), so that the servers
are measured and not their libraries. Each server has its defaults. The names of rows say what an
acknowledgement means:

- Penstock, and Redis with `appendfsync always`: the record is synced to the disk.
- Penstock with `log.flush.policy=os`, and Apache Kafka: the record is in the page cache; the kernel
  writes it to the disk some 30 seconds later.
- Redis with `appendfsync everysec`: in the page cache, synced once a second.
- NATS JetStream with a file store: in the page cache, synced every two minutes.
- RabbitMQ streams: in the page cache, never synced by the broker.

System calls confirm this. For 300 requests one after the other, Redis syncs 300 times with `always`
and once with `everysec`; NATS and RabbitMQ write each record and sync none.

Rows compare servers of the same durability; their notes have the figure of Penstock as it comes. A
bare program runs beside them: a uvloop server that receives, writes (and syncs all requests of a
turn together) and answers, and does nothing else. Where it is slower than a peer too, Python is
the limit.

A batch has 1,000 records of 100 bytes or 100 records of 1 KiB. Redis and NATS have no batches, so
they get as many commands in one write. Eight batches are in flight.

The driver of the OpenMessaging Benchmark is not on Maven, so its workloads are not part of this.

Predicted, before the first run, for two cores that client and server share. A batch of 100 KB costs
Penstock one receive, one CRC and one write, 60 µs: 0.6 CPU s/GB, and 800 MB/s with the client's
share. Peers that handle each record on its own pay 0.5 to 4 µs for it: 5 to 40 s/GB at 100 bytes.
One record in flight is an echo and 15 µs, 35 µs; with a sync 170 µs. 64 connections share turns and
syncs: 80,000 requests a second from the page cache, 60,000 synced, while Redis reaches 100,000.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from benchmarks.harness import Row, figure
from benchmarks.peers import single
from benchmarks.peers.load import cpu_seconds, resident_mebibytes
from benchmarks.peers.log_clients import (
    EchoClient,
    KafkaClient,
    LogClient,
    NatsClient,
    RabbitClient,
    RedisClient,
    at_once,
    in_flight,
    one_by_one,
)
from benchmarks.peers.log_servers import LogServer, NatsServer, RabbitServer, RedisServer
from benchmarks.peers.many_requests import BareServer
from benchmarks.peers.round_trip import EchoServer
from penstock.apps.loads.figures import percentile

SYNCED, CACHED = "penstock, synced", "penstock, policy os"
KAFKA = "Apache Kafka, page cache"
REDIS_ALWAYS = "Redis, appendfsync always"
REDIS = "Redis, appendfsync everysec"
NATS = "NATS JetStream, synced each 2 min"
RABBIT = "RabbitMQ streams, never synced"
KINDS: Final = {SYNCED: single.PENSTOCK, CACHED: single.FROM_CACHE, KAFKA: single.APACHE}
BARE: Final = {
    SYNCED: "bare program: uvloop server that writes and syncs each turn",
    CACHED: "bare program: uvloop echo that writes",
}
BESIDE: Final = {SYNCED: (REDIS_ALWAYS,), CACHED: (KAFKA, REDIS, NATS, RABBIT)}
"""Peers that give the same durability."""
CONNECTIONS = 64
BATCHES: Final = {100: 1_000, 1024: 100}
"""Records of a batch by the size of their values."""
SINGLE_BYTES = 100
MIB = 1 << 20
TICK_SECONDS = 0.01
"""Resolution of the processor time; less is counted as one tick."""


class Server(NamedTuple):
    """A running server, its client and its figures from before any load."""

    client: LogClient
    pid: int
    start_seconds: float
    idle_mebibytes: float


class Measure(NamedTuple):
    """A figure that is measured on every server, with its predictions for Penstock.

    `cached` is the prediction with the policy `os`; None where durability makes no difference.
    """

    name: str
    unit: str
    lower_is_better: bool
    predicted: float
    cached: float | None = None


MEASURES: Final = (
    Measure("start until the port answers", "s", True, 0.3),
    Measure("resident memory, idle", "MiB", True, 60),
    Measure("produce 100 B in batches", "MB/s", False, 500, 800),
    Measure("server CPU, produce 100 B in batches", "s/GB", True, 1.0, 0.6),
    Measure("consume 100 B", "MB/s", False, 900),
    Measure("server CPU, consume 100 B", "s/GB", True, 0.4),
    Measure("produce 1 KiB in batches", "MB/s", False, 500, 800),
    Measure("server CPU, produce 1 KiB in batches", "s/GB", True, 1.0, 0.6),
    Measure("consume 1 KiB", "MB/s", False, 900),
    Measure("server CPU, consume 1 KiB", "s/GB", True, 0.4),
    Measure("one record of 100 B in flight, p50", "µs", True, 170, 35),
    Measure("one record of 100 B in flight, p99", "µs", True, 400, 80),
    Measure("64 connections, one record of 100 B each", "1/s", False, 60_000, 80_000),
    Measure("server CPU, 64 connections", "µs each", True, 14, 11),
    Measure("resident memory, records of the load kept", "MiB", True, 150),
)


def measure(*, quick: bool) -> list[Row]:
    """Run each load on every server in turn, several times over."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with servers() as running:
        for name, server in running.items():
            found["start until the port answers"][name].append(server.start_seconds)
            found["resident memory, idle"][name].append(server.idle_mebibytes)
            if name not in BARE.values():
                in_batches(server, "warm-up", 100, 8 * MIB)
                server.client.delete("warm-up")
        for run in range(1 if quick else 5):
            for name, server in running.items():
                figures = singly if name in BARE.values() else load
                for what, value in figures(server, f"load-{run}", quick=quick):
                    found[what][name].append(value)
    return [row for each in MEASURES for row in _rows(each, found[each.name])]


@contextmanager
def servers() -> Iterator[dict[str, Server]]:
    """Run all servers, each with an empty directory."""
    found: dict[str, Server] = {}
    with ExitStack() as stack:
        for name, kind in KINDS.items():
            broker = stack.enter_context(single.brokers(kind))[kind]
            idle = resident_mebibytes(broker.pid)
            client = KafkaClient(broker.port)
            found[name] = Server(client, broker.pid, broker.start_seconds, idle)
        sizes = len(EchoClient(0).request("", 1, SINGLE_BYTES)), EchoClient.ANSWER_BYTES
        for ours, bare in BARE.items():
            begun = time.perf_counter()
            made = BareServer(*sizes) if ours == SYNCED else EchoServer(*sizes, "write")
            server = stack.enter_context(made)
            seconds, idle = time.perf_counter() - begun, resident_mebibytes(server.pid)
            found[bare] = Server(EchoClient(server.port), server.pid, seconds, idle)
        peers: dict[str, tuple[LogServer, type[LogClient]]] = {
            REDIS_ALWAYS: (RedisServer("always"), RedisClient),
            REDIS: (RedisServer("everysec"), RedisClient),
            NATS: (NatsServer(), NatsClient),
            RABBIT: (RabbitServer(), RabbitClient),
        }
        for name, (peer, kind_of_client) in peers.items():
            stack.enter_context(peer)
            idle = resident_mebibytes(peer.pid)
            client_of_peer = kind_of_client(peer.port)
            found[name] = Server(client_of_peer, peer.pid, peer.start_seconds, idle)
        yield found


def load(server: Server, topic: str, *, quick: bool) -> Iterator[tuple[str, float]]:
    """Run the whole load on one server, and return each figure by its name."""
    total = (64 if quick else 256) * MIB
    topics = [f"{topic}-{name}" for name in ("small", "large", "single")]
    for name, value_bytes, size in zip(topics, BATCHES, ("100 B", "1 KiB"), strict=False):
        gigabytes, produced, consumed = in_batches(server, name, value_bytes, total)
        for what, (seconds, cpu) in (
            (f"produce {size} in batches", produced),
            (f"consume {size}", consumed),
        ):
            yield what, 1000 * gigabytes / seconds
            yield f"server CPU, {what}", max(cpu, TICK_SECONDS) / gigabytes
    yield from singly(server, topics[-1], quick=quick)
    yield "resident memory, records of the load kept", resident_mebibytes(server.pid)
    for name in topics:
        server.client.delete(name)


def singly(server: Server, topic: str, *, quick: bool) -> Iterator[tuple[str, float]]:
    """Run the loads of single records on one server, and return each figure by its name."""
    server.client.create(topic)
    request = server.client.request(topic, 1, SINGLE_BYTES)
    durations = one_by_one(server.client, topic, request, 500 if quick else 3_000)
    yield "one record of 100 B in flight, p50", 1e6 * percentile(durations, 0.5)
    yield "one record of 100 B in flight, p99", 1e6 * percentile(durations, 0.99)
    before = cpu_seconds(server.pid)
    seconds = 0.5 if quick else 2.0
    loop = at_once(server.client, topic, SINGLE_BYTES, CONNECTIONS, seconds)
    cpu = cpu_seconds(server.pid) - before
    yield "64 connections, one record of 100 B each", len(loop.durations) / loop.seconds
    yield "server CPU, 64 connections", 1e6 * cpu / len(loop.durations)


def in_batches(
    server: Server, topic: str, value_bytes: int, total: int
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Produce and consume; return gigabytes of values, and seconds and CPU seconds of each."""
    client, records = server.client, BATCHES[value_bytes]
    count = total // (records * value_bytes)
    client.create(topic)
    request = client.request(topic, records, value_bytes)
    produced = _timed(server.pid, lambda: in_flight(client, topic, request, records, count))
    consumed = _timed(server.pid, lambda: client.consume(topic, records * count, value_bytes))
    return records * count * value_bytes / 1e9, produced, consumed


def _timed(pid: int, work: Callable[[], object]) -> tuple[float, float]:
    cpu, begun = cpu_seconds(pid), time.perf_counter()
    work()
    return time.perf_counter() - begun, cpu_seconds(pid) - cpu


def _rows(measure: Measure, found: Mapping[str, list[float]]) -> Iterator[Row]:
    """Return a row for each peer of the same durability, and for the bare program."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    for ours, peers in BESIDE.items():
        shown = SYNCED if measure.cached is None else ours
        bare = BARE[ours]
        for peer in peers:
            yield _row(measure, middle, shown, peer)
        if bare in middle and (measure.cached is not None or ours == SYNCED):
            yield _row(measure, middle, shown, bare)


def _row(measure: Measure, middle: Mapping[str, float], ours: str, peer: str) -> Row:
    name, prediction, note = measure.name, measure.predicted, ""
    if measure.cached is not None and ours == SYNCED:
        name += ", synced"
    elif measure.cached is not None:
        name, prediction = f"{name}, page cache", measure.cached
        note = f"synced: {figure(middle[SYNCED])} {measure.unit}"
    return Row(
        name=name,
        value=middle[ours],
        unit=measure.unit,
        prediction=prediction,
        reference=middle[peer],
        reference_name=peer,
        lower_is_better=measure.lower_is_better,
        note=note,
        aim_ratio=None if peer in BARE.values() else 1.0,
        limit=_limit(measure, middle, ours, peer),
    )


def _limit(measure: Measure, middle: Mapping[str, float], ours: str, peer: str) -> str:
    """Return the limit of Python, if the bare program does not reach a peer either.

    If it is slower than Penstock, because the machine is noisy, it is no limit.
    """
    bare = middle.get(BARE[ours])
    if bare is None:
        return ""
    best, *others = sorted((bare, middle[ours], middle[peer]), reverse=not measure.lower_is_better)
    if best != middle[peer] or others[0] != bare:
        return ""
    figures = f"{figure(bare)} {measure.unit}, {peer} {figure(middle[peer])}"
    return f"A uvloop program that only receives, writes and answers reaches {figures}."
