"""One process and two behind one command, on this machine: what a second one costs and gives.

The same topics (four partitions, one copy each) and the same clients, each a process of its own, in
turn against `penstock serve` and `penstock serve --processes 2`. Two kinds of clients: two of
librdkafka, which cost about as much CPU as the broker, and four that send requests that were built
before, over plain sockets, so that nearly all of the work is the brokers'.

Predicted, before the first run, for two cores that clients and brokers share:

- With librdkafka both cores are full with one process: 1.5 CPU s/GB for the broker and as much for
  the client, some of it in threads beside the event loop. A second process has nothing to give:
  × 1.0 in throughput. Syncs are each process's own, and share fewer requests: 5 % more CPU.
- With ready requests of one record of 1 KiB, about 45 µs each: 25 in the broker's event loop, 10 in
  its journal's thread, which wants the same interpreter lock, 10 in the client. One process does
  one in 35 µs, its second core half idle; two do two in 45: × 1.5.
- The parent imports once (0.5 CPU s) and forks: 10 % more until all are ready.
- Each broker has 20 MiB that it does not share, the front 14, the parent 14: from 33 to 70 MiB.

Found, on a machine that did so much other work that throughput says nothing: 8 % more CPU for large
batches, but 50 % for fetches and 90 % for small batches. What a client sends at once is what has
gathered while it waited, and for each of two brokers that is half: requests are twice as many, and
cost more than bytes. Ready requests, of which there are no more, take 20 to 60 % more: turns of the
loop and syncs are shared by half as many.

So two cores do not show what it is for: with the clients on other machines a second process has a
core of its own. What ends that is said in `docs/guides/processes.md`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from compat.servers import PenstockProcess
from confluent_kafka.admin import AdminClient

from benchmarks.harness import Row
from benchmarks.peers.load import (
    GIGABYTE,
    Load,
    Shape,
    cpu_seconds,
    create_topic,
    delete_topic,
    fetch,
    produce,
    proportional_mebibytes,
)
from benchmarks.peers.round_trip import pipelined, produce_request

COUNTS = (1, 2)
PARTITIONS = 4
CLIENTS = 2
IN_FLIGHT = 32
VALUE_BYTES = 1024
PREDICTED = {True: (1.5, 1.05), False: (1.0, 1.05)}
"""By whether requests are ready: throughput and CPU of two processes, times those of one."""


def measure(*, quick: bool) -> list[Row]:
    """Throughput and CPU by kind of load, start-up, memory: two processes beside one."""
    loads: dict[str, dict[int, list[Load]]] = defaultdict(lambda: defaultdict(list))
    starts: dict[int, list[float]] = defaultdict(list)
    memory: dict[int, list[float]] = defaultdict(list)
    with ProcessPoolExecutor(PARTITIONS, mp_context=get_context("spawn")) as pool:
        list(pool.map(abs, range(PARTITIONS)))  # all are there before anything is measured
        for _ in range(1 if quick else 3):
            for count in COUNTS:
                with _serving(count) as server:
                    starts[count].append(server.start_seconds)
                    memory[count].append(proportional_mebibytes(server.pid))
                    for name, load in _loads(server, pool, quick=quick):
                        loads[name][count].append(load)
    rows = [row for name, by_count in loads.items() for row in _load_rows(name, by_count)]
    rows.append(_row("start-up to the ready line", starts, "s", predicted=1.1, lower=True))
    rows.append(_row("memory, idle (shared once)", memory, "MiB", predicted=2.1, lower=True))
    return rows


@contextmanager
def _serving(count: int) -> Iterator[PenstockProcess]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        configs = {"processes": str(count)}
        server = PenstockProcess(Path(directory), listener="127.0.0.1:0", configs=configs)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _loads(
    server: PenstockProcess, pool: ProcessPoolExecutor, *, quick: bool
) -> Iterator[tuple[str, Load]]:
    """Each load on a topic of its own; figures are of all clients together."""
    for value_bytes, linger_ms, records in ((1024, 50, 400_000), (100, 0, 400_000)):
        shape = Shape(
            records=records // (5 if quick else 1),
            value_bytes=value_bytes,
            partitions=PARTITIONS,
            linger_ms=linger_ms,
        )
        create_topic(server.bootstrap, "load", PARTITIONS)
        calls = {"produce": produce, "fetch": fetch} if linger_ms else {"produce": produce}
        for name, call in calls.items():
            work = partial(call, server.bootstrap, server.pid, "load", shape)
            load = _measured(server, pool, [work] * CLIENTS, CLIENTS * shape.gigabytes)
            yield f"{name}, {CLIENTS} clients, {shape.name}", load
        delete_topic(server.bootstrap, "load")
    load = _ready_requests(server, pool, count=20_000 // (4 if quick else 1))
    yield f"produce, {PARTITIONS} clients, ready requests of one 1 KiB record", load


def _ready_requests(server: PenstockProcess, pool: ProcessPoolExecutor, *, count: int) -> Load:
    topic = "ready"
    create_topic(server.bootstrap, topic, PARTITIONS)
    found = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(topic, timeout=30)
    work = [
        partial(
            pipelined,
            found.brokers[partition.leader].port,
            produce_request(topic, VALUE_BYTES, partition=partition.id),
            count=count,
            in_flight=IN_FLIGHT,
        )
        for partition in found.topics[topic].partitions.values()
    ]
    return _measured(server, pool, work, PARTITIONS * count * VALUE_BYTES / GIGABYTE)


def _measured(
    server: PenstockProcess,
    pool: ProcessPoolExecutor,
    work: Sequence[partial[Any]],
    gigabytes: float,
) -> Load:
    before, begun = cpu_seconds(server.pid), time.perf_counter()
    for done in [pool.submit(call) for call in work]:
        done.result()
    elapsed = time.perf_counter() - begun
    return Load(
        megabytes_per_second=gigabytes * 1000 / elapsed,
        cpu_seconds_per_gigabyte=(cpu_seconds(server.pid) - before) / gigabytes,
    )


def _load_rows(name: str, loads: Mapping[int, list[Load]]) -> list[Row]:
    rate, cost = PREDICTED["ready" in name]
    rates = {count: [load.megabytes_per_second for load in found] for count, found in loads.items()}
    cpu = {
        count: [load.cpu_seconds_per_gigabyte for load in found] for count, found in loads.items()
    }
    return [
        _row(name, rates, "MB/s", predicted=rate),
        _row(f"{name}, brokers' CPU", cpu, "s/GB", predicted=cost, lower=True),
    ]


def _row(
    name: str,
    figures: Mapping[int, list[float]],
    unit: str,
    *,
    predicted: float,
    lower: bool = False,
) -> Row:
    """Two processes beside one; predicted is so many times the figure of one."""
    one, two = (statistics.median(figures[count]) for count in COUNTS)
    return Row(
        name=name,
        value=two,
        unit=unit,
        prediction=one * predicted,
        reference=one,
        reference_name="one process",
        lower_is_better=lower,
        note=f"predicted: {predicted:g} times that of one process",
    )
