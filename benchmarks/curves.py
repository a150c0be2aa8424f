"""Curves of one broker: connections, partitions, groups and processes, beside Apache Kafka.

One client keeps one request in flight on each of its connections, with requests that were built
before. It has one thread, and shares two cores with the broker, so the processor time of a request
says more than the rate. Every step runs on Penstock as it comes (*synced*), on Penstock with
`log.flush.policy=os`, and on Apache Kafka, which acknowledges from the page cache too. Connections
are opened to a bare program too, a uvloop server that receives, writes and answers. Apache Kafka
has at most 1,000 partitions here, because creating 10,000 takes it more than two minutes.

- **Connections**: 1 to 1,000, each with one record of 100 bytes for one of 16 partitions.
- **Partitions**: 16 connections, whose requests of one record go round over 1 to 10,000 partitions.
- **Width**: one connection, whose requests have one record for each of 1 to 10,000 partitions.
- **Groups**: 16 connections, whose offset commits go round over 1 to 1,000 groups.
- **Processes**: 64 connections to the brokers of `penstock serve --processes`, 1 to 4.

Predicted, before the first run:

- One connection waits for a sync, 170 µs, or for two wake-ups, 50 µs. More connections share a turn
  of the event loop and its sync: 100 of them reach 60,000 requests a second at 14 µs of processor
  time. From there on a turn is limited by Python, and its requests wait for each other: latency
  grows with the connections, the rate stays.
- Partitions: a request finds its log in a dictionary. 10,000 logs are in no cache of the processor:
  20 % more time. Their files are opened and closed once there are more than `log.open.files.max`.
- Width: 1.5 µs a partition once a request has 100, as the checks are done by columns; below that
  the request itself is the cost.
- Groups: a commit is one row of a shared save, whatever its group: flat.
- Processes: with one core left for brokers, flat, and 10 % more time for each process.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from compat.servers import PenstockProcess
from confluent_kafka.admin import AdminClient

from benchmarks.harness import Chart, Report, Row, figure
from benchmarks.peers import single
from benchmarks.peers.bare_client import (
    BatchTemplate,
    all_produced,
    commit_request,
    committed,
    produced,
)
from benchmarks.peers.load import cpu_seconds, create_topic
from benchmarks.peers.log_clients import (
    EchoClient,
    KafkaClient,
    Link,
    closed_loop,
    framed,
)
from benchmarks.peers.round_trip import EchoServer
from penstock.apps.loads.figures import percentile

NAMES: Final = {
    single.PENSTOCK: "penstock, synced",
    single.FROM_CACHE: "penstock, policy os",
    single.APACHE: "Apache Kafka, page cache",
}
BARE = "bare program: uvloop echo that writes"
VALUE_BYTES = 100
TOPIC = "curve"
FEW_PARTITIONS = 16
FEW_CONNECTIONS = 16
PROCESS_CONNECTIONS = 64
LEADERS_SECONDS = 60
PEER_PARTITIONS_MAX = 1_000


class Curve(NamedTuple):
    """A quantity that grows, its steps, and those of a quick run."""

    name: str
    steps: Sequence[int]
    quick: Sequence[int]
    predicted: Sequence[float]
    """Requests a second of Penstock, synced, at each step."""


CONNECTIONS: Final = Curve(
    "connections",
    (1, 3, 10, 30, 100, 300, 1_000),
    (1, 30, 300),
    (5_500, 13_000, 30_000, 45_000, 60_000, 60_000, 55_000),
)
PARTITIONS: Final = Curve(
    "partitions", (1, 10, 100, 1_000, 10_000), (1, 100), (35_000, 35_000, 35_000, 30_000, 25_000)
)
WIDTH: Final = Curve(
    "partitions of a request", (1, 10, 100, 1_000, 10_000), (1, 100), (5_500, 5_000, 2_500, 500, 50)
)
GROUPS: Final = Curve("groups", (1, 10, 100, 1_000), (1, 100), (15_000, 15_000, 15_000, 15_000))
PROCESSES: Final = Curve("processes", (1, 2, 3, 4), (1, 2), (60_000, 60_000, 55_000, 50_000))


BENDS: Final = {
    CONNECTIONS.name: (
        "one connection waits for a sync of its own; with more, requests of a turn share one"
        " (16 of 30 connections, 240 of 300). Above 100 a turn parses, commits and answers for"
        " all connections in three passes: latency is a turn, 40 ms at 1,000, and a request"
        " costs half as much CPU again with the same system calls, as its connection has left"
        " the caches; so it does in the bare program"
    ),
    PARTITIONS.name: (
        "flat up to 1,000; 10,000 have more files than open.files.max (4,096), so that"
        " requests open and close files, which costs 40 % more CPU"
    ),
    WIDTH.name: (
        "the request is the cost up to 10 partitions; then each costs 6 to 14 µs with one"
        " entry in the journal, and 10 to 45 µs with the policy os, which writes to the file"
        " of each partition"
    ),
    GROUPS.name: (
        "SQLite's commit is a third of the time; commits of 1,000 groups write 2.7 pages of"
        " its log each, those of one group 0.35, because they share pages"
    ),
    PROCESSES.name: (
        "two cores are full with two brokers and the client; in each further broker fewer"
        " requests share a turn and a sync, which costs a tenth more CPU"
    ),
}
"""What bends each curve, as profiles of its steps have shown."""


class Step(NamedTuple):
    """Figures of one step: requests a second, milliseconds, and microseconds of CPU a request."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


CHARTS: Final[Sequence[tuple[str, str, Callable[[Step], float]]]] = (
    ("rate", "requests/s", attrgetter("rate")),
    ("latency, p99", "ms", attrgetter("p99_ms")),
    ("processor time of the broker", "µs a request", attrgetter("cpu_us")),
)
Steps = dict[tuple[str, int, str], Step]
"""Steps by curve, quantity and server."""
Load = Callable[[ExitStack, KafkaClient, int], list[Link]]
"""Opens the connections of a step."""


def measure(*, quick: bool) -> Report:
    """Measure every step of every curve, in turn on each server."""
    found: dict[tuple[str, int, str], list[Step]] = defaultdict(list)
    seconds, runs = (0.3, 1) if quick else (1.5, 3)
    with single.brokers(*NAMES) as brokers:
        for broker in brokers.values():
            create_topic(broker.bootstrap, TOPIC, FEW_PARTITIONS)
        for curve, load in LOADS:
            for count in curve.quick if quick else curve.steps:
                taking_part = _taking_part(brokers, curve, count)
                if curve is PARTITIONS:
                    _create(taking_part, count)
                for _, (name, broker) in itertools.product(range(runs), taking_part.items()):
                    with ExitStack() as stack:
                        links = load(stack, KafkaClient(broker.port), count)
                        step = _step(broker.pid, links, seconds)
                    found[curve.name, count, name].append(step)
    for curve, name, alone in (
        (CONNECTIONS, BARE, _bare),
        (PROCESSES, single.PENSTOCK, _processes),
    ):
        for count, _ in itertools.product(curve.quick if quick else curve.steps, range(runs)):
            found[curve.name, count, name].append(alone(count, seconds))
    middle = {
        key: Step(*map(statistics.median, zip(*steps, strict=True))) for key, steps in found.items()
    }
    return Report(rows=list(_rows(middle)), charts=list(_charts(middle)))


def _taking_part(
    brokers: Mapping[str, single.Broker], curve: Curve, count: int
) -> Mapping[str, single.Broker]:
    """Return the brokers that can have so many partitions within a minute."""
    if curve not in (PARTITIONS, WIDTH) or count <= PEER_PARTITIONS_MAX:
        return brokers
    return {name: broker for name, broker in brokers.items() if name != single.APACHE}


def _create(brokers: Mapping[str, single.Broker], count: int) -> None:
    """Create the topic of so many partitions on each broker."""
    for broker in brokers.values():
        create_topic(broker.bootstrap, f"{TOPIC}-{count}", count)
        _await_leaders(KafkaClient(broker.port), count)


def _await_leaders(client: KafkaClient, count: int) -> None:
    """Wait until every partition of a topic accepts records."""
    deadline = time.monotonic() + LEADERS_SECONDS
    while True:
        with ExitStack() as stack:
            try:
                closed_loop(width(stack, client, count), 0)
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.1)


def connections(stack: ExitStack, client: KafkaClient, count: int) -> list[Link]:
    """Open so many connections, each for one of a few partitions."""
    requests = [
        itertools.repeat(BatchTemplate(1, VALUE_BYTES).request(TOPIC, index % FEW_PARTITIONS))
        for index in range(count)
    ]
    return _links(stack, client, requests, produced)


def partitions(stack: ExitStack, client: KafkaClient, count: int) -> list[Link]:
    """Open a few connections whose requests go round over so many partitions."""
    template = BatchTemplate(1, VALUE_BYTES)
    requests = [template.request(f"{TOPIC}-{count}", index) for index in range(count)]
    return _links(stack, client, _shares(requests), produced)


def width(stack: ExitStack, client: KafkaClient, count: int) -> list[Link]:
    """Open one connection whose requests have a record for each of so many partitions."""
    request = BatchTemplate(1, VALUE_BYTES).wide_request(f"{TOPIC}-{count}", range(count))
    return _links(stack, client, [itertools.repeat(request)], all_produced)


def groups(stack: ExitStack, client: KafkaClient, count: int) -> list[Link]:
    """Open a few connections whose commits go round over so many groups."""
    requests = [commit_request(f"group-{index}", TOPIC, 0, 1) for index in range(count)]
    return _links(stack, client, _shares(requests), committed)


LOADS: Final[Sequence[tuple[Curve, Load]]] = (
    (CONNECTIONS, connections),
    (GROUPS, groups),
    (PARTITIONS, partitions),
    (WIDTH, width),
)
"""Curves with their loads; `WIDTH` uses the topics of `PARTITIONS`."""
CURVES: Final = (*(curve for curve, _ in LOADS), PROCESSES)


def _shares(requests: Sequence[bytes]) -> list[Iterator[bytes]]:
    """Let each connection go round over all requests from another place on."""
    found: list[Iterator[bytes]] = []
    for index in range(FEW_CONNECTIONS):
        at = index * len(requests) // FEW_CONNECTIONS
        found.append(itertools.cycle([*requests[at:], *requests[:at]]))
    return found


def _links(
    stack: ExitStack,
    client: KafkaClient,
    requests: Sequence[Iterator[bytes]],
    check: Callable[[memoryview], object],
) -> list[Link]:
    bare = isinstance(client, EchoClient)
    return [
        Link(
            stack.enter_context(client.open("")),
            each,
            client.answers(1) if bare else framed(check),
        )
        for each in requests
    ]


def _step(pid: int, links: Sequence[Link], seconds: float) -> Step:
    closed_loop(links, seconds / 4)  # logs and compiled code are loaded
    before = cpu_seconds(pid)
    loop = closed_loop(links, seconds)
    count = len(loop.durations)
    return Step(
        rate=count / loop.seconds,
        p50_ms=1e3 * percentile(loop.durations, 0.5),
        p99_ms=1e3 * percentile(loop.durations, 0.99),
        cpu_us=1e6 * (cpu_seconds(pid) - before) / count,
    )


def _bare(count: int, seconds: float) -> Step:
    """Run the connections of a step against a program that only receives, writes and answers."""
    size = len(BatchTemplate(1, VALUE_BYTES).request(TOPIC, 0))
    with EchoServer(size, EchoClient.ANSWER_BYTES, "write") as echo, ExitStack() as stack:
        return _step(echo.pid, connections(stack, EchoClient(echo.port), count), seconds)


def _processes(count: int, seconds: float) -> Step:
    """Run so many brokers on one machine, each of which leads a part of the partitions."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, ExitStack() as stack:
        server = PenstockProcess(
            Path(directory), listener="127.0.0.1:0", configs={"processes": str(count)}
        ).start()
        stack.callback(server.stop)
        create_topic(server.bootstrap, TOPIC, PROCESS_CONNECTIONS)
        cluster = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(
            TOPIC, timeout=30
        )
        template = BatchTemplate(1, VALUE_BYTES)
        links = []
        for partition in cluster.topics[TOPIC].partitions.values():
            client = KafkaClient(cluster.brokers[partition.leader].port)
            request = itertools.repeat(template.request(TOPIC, partition.id))
            links += _links(stack, client, [request], produced)
        return _step(server.pid, links, seconds)


def _rows(found: Steps) -> Iterator[Row]:
    for curve in CURVES:
        for count, predicted in zip(curve.steps, curve.predicted, strict=True):
            if (curve.name, count, single.PENSTOCK) in found:
                yield _row(curve, count, predicted, found)


def _row(curve: Curve, count: int, predicted: float, found: Steps) -> Row:
    steps = {server: found.get((curve.name, count, server)) for server in (*NAMES, BARE)}
    ours, peer = found[curve.name, count, single.PENSTOCK], steps[single.APACHE]
    first = found[curve.name, 1, single.PENSTOCK]
    notes = [BENDS[curve.name]] if count == 1 else []
    notes += [_described(NAMES.get(name, name), step) for name, step in steps.items() if step]
    return Row(
        name=f"{count:,} {curve.name}",
        value=ours.rate,
        unit="requests/s",
        prediction=predicted,
        reference=peer.rate if peer else first.rate,
        reference_name=NAMES[single.APACHE] if peer else f"1 {curve.name}",
        note="; ".join(notes),
    )


def _described(name: str, step: Step) -> str:
    rate, p50, p99, cpu = map(figure, step)
    return f"{name}: {rate}/s, p50 {p50} ms, p99 {p99} ms, CPU {cpu} µs each"


def _charts(found: Steps) -> Iterator[Chart]:
    for curve in CURVES:
        for title, unit, value in CHARTS:
            lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for (name, count, server), step in found.items():
                if name == curve.name:
                    lines[NAMES.get(server, server)].append((count, value(step)))
            yield Chart(
                title=f"{curve.name}: {title}",
                unit=unit,
                lines=dict(lines),
                logarithmic=True,
                x=curve.name,
            )
