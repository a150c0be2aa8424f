"""The broker beside Apache Kafka: same client, same machine, same run.

Penstock runs twice: as it comes, with every acknowledgement synced to the disk, and with
`log.flush.policy=os`, which acknowledges from the page cache as Apache Kafka always does. Every
ratio compares Penstock as it comes with Apache Kafka; the other one is in the notes.

Predictions come from what the pieces cost on such a machine: a broker that touches only headers
spends about the kernel's copies and one CRC a byte (0.7 to 1.5 CPU seconds per gigabyte in, half of
that out); small batches cost about 15 µs each; an interpreter with NumPy-free imports starts in
0.2 to 0.3 s and holds 60 to 80 MiB; a round trip is an echo and 10 µs of work, and 130 µs more
where it waits for a sync.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from compat.servers import PenstockProcess

from benchmarks.harness import Row
from benchmarks.peers import single
from benchmarks.peers.apache_kafka import ApacheKafka
from benchmarks.peers.bare_reads import read_and_send
from benchmarks.peers.idle_sessions import microseconds
from benchmarks.peers.load import (
    Load,
    Shape,
    create_topic,
    delete_topic,
    fetch,
    medians,
    produce,
    resident_mebibytes,
)
from benchmarks.peers.many_requests import BareServer, answered_per_second
from benchmarks.peers.prepared_answers import prepared
from benchmarks.peers.round_trip import (
    EchoServer,
    Keeps,
    RoundTrip,
    answers_api_versions,
    on_one_core,
    produce_request,
    round_trips,
)
from benchmarks.peers.single import APACHE, FROM_CACHE, PENSTOCK, Broker
from penstock.apps.loads.figures import interleaved

PROBE_SECONDS = 0.001
SMALL_VALUE_BYTES = 100
ANSWER_BYTES = 80
CONNECTIONS: Final = 64
IN_FLIGHT: Final = (1, 16)
"""Requests of each connection that are sent before the first of them is answered."""
SYNCED_AIM: Final = 90_000
IDLE_PARTITIONS: Final = 10_000
SMALL_BATCHES_AIM: Final = 4.0
"""CPU seconds per gigabyte of 100 B records in small batches."""
WIDE_AIM: Final = 1.5
ROUND_TRIP_LIMIT: Final = (
    "A request has the four system calls of the echo; the other {python:.0f} µs are about 130 calls"
    " of interpreted Python, none of which takes a tenth (cProfile): order of responses, state of"
    " the log, group commit, index. One function that only checks, stamps and writes the request"
    " takes {check:.0f} µs (next row)."
)
RATE_LIMITS: Final = {
    1: "The bare server, which reads no request, answers {bare:,.0f} a second: a receive and a send"
    " for each request on each side. The rest of the {each:.0f} µs of a request is interpreted"
    " Python.",
    16: "Receives and sends are shared by several requests here. What is left is interpreted Python"
    " on one core: {each:.0f} µs a request, and {aim:,} a second leave {left:.0f} µs.",
}
WIDE_LIMIT: Final = (
    "The client is the limit: it takes {bare:.1f} MB/s from a server that only sends prepared bytes"
    " (row below), which is {ratio:.2f} times what Apache Kafka sends."
)
WIDE_CPU_LIMIT: Final = (
    "Penstock verifies the checksum of every batch that it reads. A program without a protocol that"
    " reads the same bytes into one buffer, verifies and sends them takes {bare:.2f} s/GB. Apache"
    " Kafka takes {peer:.2f} s/GB, because it passes pages from files to sockets unread."
)
ECHOES: Final[tuple[Keeps, ...]] = ("echo", "write", "sync", "check")


def measure(*, quick: bool) -> list[Row]:
    """Start-up and memory, round trips, then throughput and CPU for each shape of load."""
    rows = _starts(runs=2 if quick else 5)
    with single.brokers(PENSTOCK, FROM_CACHE, APACHE) as brokers:
        rows += _memory(brokers, "resident memory, idle", 70)
        rows += _round_trips(brokers, count=500 if quick else 3_000, runs=3)
        rows += _synced_rates(brokers[PENSTOCK], seconds=1 if quick else 5, runs=1 if quick else 3)
        rows += _idle_sessions(brokers[FROM_CACHE], count=1_000 if quick else 5_000)
        for shape, prediction in _shapes(quick):
            rows += _loads(brokers, shape, prediction, runs=1 if quick else 3)
        rows += _memory(brokers, "resident memory, after the load", 150)
    return rows


def _synced_rates(broker: Broker, *, seconds: float, runs: int) -> list[Row]:
    """Requests of one record of 100 B a second, each synced before its response."""
    create_topic(broker.bootstrap, "rates", 1)
    request = produce_request("rates", SMALL_VALUE_BYTES)
    rows = []
    with BareServer(len(request), ANSWER_BYTES) as bare:

        def rate(port: int, in_flight: int, answer_bytes: int) -> float:
            return answered_per_second(
                port, request, connections=CONNECTIONS, in_flight=in_flight, seconds=seconds,
                answer_bytes=answer_bytes,
            )  # fmt: skip

        for in_flight in IN_FLIGHT:
            contenders = {
                PENSTOCK: partial(rate, broker.port, in_flight, 0),
                "bare": partial(rate, bare.port, in_flight, ANSWER_BYTES),
            }
            found = interleaved(contenders, runs=runs)
            rows.append(
                Row(
                    name=f"synced requests of one record, {CONNECTIONS} connections,"
                    f" {in_flight} in flight on each",
                    value=found[PENSTOCK],
                    unit="1/s",
                    prediction=50_000 if in_flight == 1 else 110_000,
                    reference=found["bare"],
                    reference_name="bare uvloop server that writes and syncs, and reads nothing",
                    aim_value=SYNCED_AIM,
                    limit=RATE_LIMITS[in_flight].format(
                        bare=found["bare"],
                        each=1e6 / found[PENSTOCK],
                        aim=SYNCED_AIM,
                        left=1e6 / SYNCED_AIM,
                    ),
                    bare=found["bare"],
                )
            )
    return rows


def _idle_sessions(broker: Broker, *, count: int) -> list[Row]:
    """The broker's CPU for a request of a fetch session in which nothing is new."""
    calls: dict[str, Any] = {}
    for partitions in (1, IDLE_PARTITIONS):
        topic = f"idle-{partitions}"
        create_topic(broker.bootstrap, topic, partitions)
        call = partial(microseconds, broker.port, broker.pid, topic, partitions, count=count)
        calls[str(partitions)] = call
    found = interleaved(calls, runs=5)
    for name in calls:
        delete_topic(broker.bootstrap, f"idle-{name}")
    return [
        Row(
            name=f"CPU of a fetch request, session of {IDLE_PARTITIONS:,} idle partitions",
            value=found[str(IDLE_PARTITIONS)],
            unit="µs",
            prediction=30,
            reference=found["1"],
            reference_name="session of one idle partition",
            lower_is_better=True,
            aim_ratio=0.9,
        )
    ]


def _shapes(quick: bool) -> Iterator[tuple[Shape, tuple[float, float]]]:
    """Each shape with its predicted CPU seconds per gigabyte, in and out."""
    for value_bytes, records in ((100, 1_000_000), (1024, 200_000)):
        for partitions in (1, 1_000):
            if quick and partitions > 1 and value_bytes == 100:
                continue
            for linger_ms in (50, 0):
                large = partitions == 1 or linger_ms
                # the peer takes a second for a thousand tiny batches
                wanted = records // (4 if quick else 1) if large else 20_000
                predicted = (1.5 if linger_ms else 3.0) * (1 if partitions == 1 else 4)
                shape = Shape(
                    records=wanted,
                    value_bytes=value_bytes,
                    partitions=partitions,
                    linger_ms=linger_ms,
                )
                yield shape, (predicted, predicted / 2)


def _starts(*, runs: int) -> list[Row]:
    """From the start of the process to the first answer, on a formatted, empty directory."""

    def answered(begun: float, bootstrap: str) -> float:
        port = int(bootstrap.rpartition(":")[2])
        while not answers_api_versions(port):
            time.sleep(PROBE_SECONDS)
        return time.perf_counter() - begun

    def penstock() -> float:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
            process = PenstockProcess(Path(directory))
            begun = time.perf_counter()
            process.start()
            try:
                return answered(begun, process.bootstrap)
            finally:
                process.stop()

    def apache() -> float:
        with ApacheKafka() as kafka:
            return kafka.start_seconds + answered(time.perf_counter(), kafka.bootstrap)

    figures = interleaved({PENSTOCK: penstock, APACHE: apache}, runs=runs)
    return [
        Row(
            name="start-up to the first answer",
            value=figures[PENSTOCK],
            unit="s",
            prediction=0.3,
            reference=figures[APACHE],
            reference_name=APACHE,
            lower_is_better=True,
            note="Apache Kafka without the time that formatting its directory takes",
        )
    ]


def _memory(brokers: dict[str, Broker], name: str, prediction: float) -> list[Row]:
    return [
        Row(
            name=name,
            value=resident_mebibytes(brokers[PENSTOCK].pid),
            unit="MiB",
            prediction=prediction,
            reference=resident_mebibytes(brokers[APACHE].pid),
            reference_name=f"{APACHE} (heap 1 GiB)",
            lower_is_better=True,
        )
    ]


def _round_trips(brokers: dict[str, Broker], *, count: int, runs: int) -> list[Row]:
    """One record of 100 B in flight, beside echoes that keep what they get as a broker does.

    Beside the echoes everything runs on one core; beside the peer, wherever the kernel likes.
    """
    for broker in brokers.values():
        create_topic(broker.bootstrap, "round-trip", 1)
    request = produce_request("round-trip", SMALL_VALUE_BYTES)
    together: dict[str, list[RoundTrip]] = defaultdict(list)
    apart: dict[str, list[RoundTrip]] = defaultdict(list)
    with ExitStack() as stack:
        echoes: dict[str, EchoServer] = {}
        for keeps in ECHOES:
            echo = EchoServer(len(request), ANSWER_BYTES, keeps)
            echoes[keeps] = stack.enter_context(echo)
        ours = {name: brokers[name] for name in (PENSTOCK, FROM_CACHE)}
        pids = [echo.pid for echo in echoes.values()] + [broker.pid for broker in ours.values()]
        for _ in range(runs):
            with on_one_core(pids):
                for name, echo in echoes.items():
                    trip = round_trips(echo.port, request, count=count, answer_bytes=ANSWER_BYTES)
                    together[name].append(trip)
                for name, broker in ours.items():
                    together[name].append(round_trips(broker.port, request, count=count))
            for name, broker in brokers.items():
                apart[name].append(round_trips(broker.port, request, count=count))
    return _round_trip_rows(_middle(together), _middle(apart))


def _middle(trips: dict[str, list[RoundTrip]]) -> dict[str, RoundTrip]:
    return {
        name: RoundTrip(
            p50=statistics.median(trip.p50 for trip in found),
            p99=statistics.median(trip.p99 for trip in found),
        )
        for name, found in trips.items()
    }


def _round_trip_rows(together: dict[str, RoundTrip], apart: dict[str, RoundTrip]) -> list[Row]:
    def row(
        name: str, value: float, reference: float, against: str, prediction: float, **aims: Any
    ) -> Row:
        return Row(
            name=f"round trip of one record, {name}",
            value=value,
            unit="µs",
            prediction=prediction,
            reference=reference,
            reference_name=against,
            lower_is_better=True,
            **aims,
        )

    cached, durable = together[FROM_CACHE].p50, together[PENSTOCK].p50
    echo, write, sync, check = (together[keeps].p50 for keeps in ECHOES)
    peer, unsynced = apart[APACHE], f"{APACHE}, not synced"
    return [
        row("p50, page cache", cached, echo, "uvloop echo server, same core", 1.5 * echo),
        row(
            "p50, page cache, until written",
            cached,
            write,
            "echo server that writes",
            1.5 * write,
            aim_ratio=1 / 1.6,
            limit=ROUND_TRIP_LIMIT.format(python=cached - write, check=check),
            bare=check,
        ),
        row(
            "p50, page cache, one function that checks and writes",
            check,
            write,
            "echo server that writes",
            1.3 * write,
        ),
        row("p50, durable", durable, sync, "echo server that writes and syncs", 1.2 * sync),
        row("p50, page cache, next to the peer", apart[FROM_CACHE].p50, peer.p50, APACHE, 30),
        row("p99, page cache", apart[FROM_CACHE].p99, peer.p99, APACHE, 60),
        row("p50, durable, next to the peer", apart[PENSTOCK].p50, peer.p50, unsynced, 180),
        row("p99, durable", apart[PENSTOCK].p99, peer.p99, unsynced, 400),
    ]


def _loads(
    brokers: dict[str, Broker], shape: Shape, prediction: tuple[float, float], *, runs: int
) -> list[Row]:
    """Produce to a topic, then read it, on each broker in turn, `runs` times over."""
    found: dict[tuple[str, str], list[Load]] = defaultdict(list)
    for run in range(runs):
        for name, broker in brokers.items():
            topic = f"load-{shape.value_bytes}-{shape.partitions}-{shape.linger_ms}-{run}"
            create_topic(broker.bootstrap, topic, shape.partitions)
            for way, work in (("produce", produce), ("fetch", fetch)):
                found[way, name].append(work(broker.bootstrap, broker.pid, topic, shape))
            delete_topic(broker.bootstrap, topic)
    rows = []
    wide = shape.partitions > 1
    bare = _unhindered(shape) if wide else None
    for way, predicted in zip(("produce", "fetch"), prediction, strict=True):
        speed = medians(found, way, lambda load: load.megabytes_per_second)
        cpu = medians(found, way, lambda load: load.cpu_seconds_per_gigabyte)
        aims: dict[str, Any] = {}
        if bare is not None and way == "fetch":
            limit = WIDE_LIMIT.format(bare=bare, ratio=bare / speed[APACHE])
            aims = {"aim_ratio": WIDE_AIM, "bare": bare, "limit": limit}
        rows.append(
            Row(
                name=f"{way} {shape.name}",
                value=speed[PENSTOCK],
                unit="MB/s",
                reference=speed[APACHE],
                reference_name=APACHE,
                note=f"policy os: {speed[FROM_CACHE]:.0f} MB/s",
                **aims,
            )
        )
        rows.append(
            Row(
                name=f"broker CPU, {way} {shape.name}",
                value=cpu[PENSTOCK],
                unit="s/GB",
                prediction=predicted,
                reference=cpu[APACHE],
                reference_name=APACHE,
                lower_is_better=True,
                note=f"policy os: {cpu[FROM_CACHE]:.2f} s/GB",
                **_cpu_aims(way, shape, cpu[APACHE]),
            )
        )
    if bare is not None:
        rows.append(
            Row(
                name=f"fetch {shape.name}, prepared answers",
                value=bare,
                unit="MB/s",
                reference=rows[2].value,
                reference_name=PENSTOCK,
                note="what the client takes at most",
            )
        )
    return rows


def _cpu_aims(way: str, shape: Shape, peer: float) -> dict[str, Any]:
    if way == "fetch":
        if shape.partitions == 1:
            return {}
        bare = read_and_send(shape)
        limit = WIDE_CPU_LIMIT.format(bare=bare, peer=peer)
        return {"aim_ratio": WIDE_AIM, "bare": bare, "limit": limit}
    if shape.partitions > 1 or shape.linger_ms:
        return {}
    small = shape.value_bytes == SMALL_VALUE_BYTES
    return {"aim_value": SMALL_BATCHES_AIM} if small else {"aim_ratio": 1.0}


def _unhindered(shape: Shape) -> float:
    """Return the MB/s that the client reads from a server that only sends prepared bytes."""
    with prepared("prepared", shape) as (address, pid):
        return max(fetch(address, pid, "prepared", shape).megabytes_per_second for _ in range(2))
