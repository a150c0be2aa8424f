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
from pathlib import Path
from typing import Final, Literal

from compat.servers import PenstockProcess

from benchmarks.harness import Row
from benchmarks.peers import single
from benchmarks.peers.apache_kafka import ApacheKafka
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
from benchmarks.peers.round_trip import (
    EchoServer,
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
ECHOES: Final[tuple[Literal["echo", "write", "sync"], ...]] = ("echo", "write", "sync")


def measure(*, quick: bool) -> list[Row]:
    """Start-up and memory, round trips, then throughput and CPU for each shape of load."""
    rows = _starts(runs=2 if quick else 5)
    with single.brokers(PENSTOCK, FROM_CACHE, APACHE) as brokers:
        rows += _memory(brokers, "resident memory, idle", 70)
        rows += _round_trips(brokers, count=500 if quick else 3_000, runs=3)
        for shape, prediction in _shapes(quick):
            rows += _loads(brokers, shape, prediction, runs=1 if quick else 3)
        rows += _memory(brokers, "resident memory, after the load", 150)
    return rows


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
            echoes[keeps] = EchoServer(len(request), ANSWER_BYTES, keeps)
            stack.callback(echoes[keeps].close)
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
    def row(name: str, value: float, reference: float, against: str, prediction: float) -> Row:
        return Row(
            name=f"round trip of one record, {name}",
            value=value,
            unit="µs",
            prediction=prediction,
            reference=reference,
            reference_name=against,
            lower_is_better=True,
        )

    cached, durable = together[FROM_CACHE].p50, together[PENSTOCK].p50
    echo, write, sync = (together[keeps].p50 for keeps in ECHOES)
    peer, unsynced = apart[APACHE], f"{APACHE}, not synced"
    return [
        row("p50, page cache", cached, echo, "uvloop echo server, same core", 1.5 * echo),
        row(
            "p50, page cache, until written", cached, write, "echo server that writes", 1.5 * write
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
    for way, predicted in zip(("produce", "fetch"), prediction, strict=True):
        speed = medians(found, way, lambda load: load.megabytes_per_second)
        cpu = medians(found, way, lambda load: load.cpu_seconds_per_gigabyte)
        rows.append(
            Row(
                name=f"{way} {shape.name}",
                value=speed[PENSTOCK],
                unit="MB/s",
                reference=speed[APACHE],
                reference_name=APACHE,
                note=f"policy os: {speed[FROM_CACHE]:.0f} MB/s",
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
            )
        )
    return rows
