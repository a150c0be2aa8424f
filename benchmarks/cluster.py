"""Three brokers and three copies: Penstock beside three KRaft nodes of Apache Kafka, in one run.

Topics have replication factor 3 and min.insync.replicas 2, producers acks=all. Penstock's copies
are synced on two brokers before an answer; Apache Kafka's are in the page caches of all that are in
sync. Penstock's brokers share a PostgreSQL server that syncs. All brokers, the database and the
client have this machine's cores together, so that throughput says what a cluster costs, not what it
could carry.

Predicted, before the first run. Each byte is received three times, checked three times, written six
times (journal and segment) and sent twice: for 1 KiB in large batches 1.5 CPU s/GB for one broker
become 5; for small batches, where a batch costs a broker 15 µs and a copy of it as much, 15.
Kafka's followers fetch, and cost two more reads for each byte: from 3 to 8 s/GB for large batches,
and some 60 for small ones. A round trip waits for one sync here and one there, which run at the
same time, and a hop each way: 130 µs and 120 more, 0.4 ms on two cores that others use; Kafka's
waits for the next fetch of two followers, 1 ms. A copy that answers 50 ms late, stopped for so long
again and again, is not among the fastest two: p99 moves by less than 1.2; Kafka waits for all that
are in sync, 50 ms. When a leader is killed its registration must grow
old: the session less half a heartbeat, then a claim, fences, a compare-and-set and a refresh of
metadata: 0.3 s more. Kafka has the same session, 9 s by default; both have 2 s here.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from compat.servers import bootstrap_of

from benchmarks.harness import Row
from benchmarks.peers.cluster import APACHE, OURS, Broker, cluster, leaders
from benchmarks.peers.load import Load, Shape, create_topic, fetch, produce
from benchmarks.peers.round_trip import RoundTrip, produce_request, round_trips

SMALL_VALUE_BYTES = 100
SMALL_BATCH_RECORDS = 10
PREDICTED_CPU = {50: 5.0, 0: 15.0}
LATE_SECONDS, AWAKE_SECONDS = 0.05, 0.005
EVEN = "round trip of one record, acks=all"
SLOW = f"{EVEN}, one follower 50 ms late"


def measure(*, quick: bool) -> list[Row]:
    """Throughput and CPU by shape, then one record in flight."""
    runs = 1 if quick else 3
    loads: dict[tuple[str, str, Shape], list[Load]] = defaultdict(list)
    trips: dict[tuple[str, str], list[RoundTrip]] = defaultdict(list)
    for _ in range(runs):
        for name in (OURS, APACHE):
            with cluster(name) as brokers:
                _carry(name, brokers, loads, quick=quick)
                for what, trip in _round_trips(brokers, 300 if quick else 2_000).items():
                    trips[name, what].append(trip)
    return [*_load_rows(loads), *_trip_rows(trips)]


def _shapes(quick: bool) -> Iterator[Shape]:
    for value_bytes, records in ((SMALL_VALUE_BYTES, 500_000), (1024, 200_000)):
        for linger_ms in (50, 0):
            count = records // (5 if quick else 1) // (1 if linger_ms else 4)
            yield Shape(records=count, value_bytes=value_bytes, partitions=6, linger_ms=linger_ms)


def _carry(
    name: str,
    brokers: Sequence[Broker],
    loads: dict[tuple[str, str, Shape], list[Load]],
    *,
    quick: bool,
) -> None:
    bootstrap, pids = bootstrap_of(brokers), [broker.pid for broker in brokers]
    for shape in _shapes(quick):
        topic = f"load-{shape.value_bytes}-{shape.linger_ms}"
        create_topic(bootstrap, topic, shape.partitions)
        loads[name, "produce", shape].append(produce(bootstrap, pids, topic, shape))
        if not shape.linger_ms:  # a broker that answers later gets larger batches, also to read
            shape = replace(shape, linger_ms=50, batch_records=SMALL_BATCH_RECORDS)
            topic = f"{topic}-even"
            create_topic(bootstrap, topic, shape.partitions)
            produce(bootstrap, pids, topic, shape)
        loads[name, "fetch", shape].append(fetch(bootstrap, pids, topic, shape))


def _round_trips(brokers: Sequence[Broker], count: int) -> dict[str, RoundTrip]:
    """One record of 100 B in flight, at its leader."""
    create_topic(bootstrap_of(brokers), "round-trip", 1)
    one = Shape(records=1, value_bytes=SMALL_VALUE_BYTES, partitions=1, linger_ms=0)
    produce(bootstrap_of(brokers), [broker.pid for broker in brokers], "round-trip", one)
    number = leaders(brokers, "round-trip")[0]
    port = int(brokers[number - 1].bootstrap.rpartition(":")[2])
    request = produce_request("round-trip", SMALL_VALUE_BYTES)
    even = round_trips(port, request, count=count)
    with _late(brokers[number % len(brokers)]):
        return {EVEN: even, SLOW: round_trips(port, request, count=count // 2)}


@contextmanager
def _late(broker: Broker) -> Iterator[None]:
    """A broker that is stopped again and again, so that it answers up to 50 ms late."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.wait(AWAKE_SECONDS):
            os.kill(broker.pid, signal.SIGSTOP)
            over.wait(LATE_SECONDS)
            os.kill(broker.pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _load_rows(loads: Mapping[tuple[str, str, Shape], Sequence[Load]]) -> Iterator[Row]:
    for name, way, shape in loads:
        if name != OURS:
            continue
        ours, theirs = loads[OURS, way, shape], loads[APACHE, way, shape]
        yield Row(
            name=f"{way} {shape.name}",
            value=statistics.median(figure.megabytes_per_second for figure in ours),
            unit="MB/s",
            reference=statistics.median(figure.megabytes_per_second for figure in theirs),
            reference_name=APACHE,
        )
        yield Row(
            name=f"CPU of three brokers, {way} {shape.name}",
            value=statistics.median(figure.cpu_seconds_per_gigabyte for figure in ours),
            unit="s/GB",
            prediction=PREDICTED_CPU[shape.linger_ms] if way == "produce" else None,
            reference=statistics.median(figure.cpu_seconds_per_gigabyte for figure in theirs),
            reference_name=APACHE,
            lower_is_better=True,
        )


def _trip_rows(trips: Mapping[tuple[str, str], Sequence[RoundTrip]]) -> Iterator[Row]:
    predicted = {(EVEN, "p50"): 400.0, (EVEN, "p99"): 1_500.0}
    for what in (EVEN, SLOW):
        for share in ("p50", "p99"):
            ours, theirs = (
                statistics.median(getattr(trip, share) for trip in trips[name, what])
                for name in (OURS, APACHE)
            )
            yield Row(
                name=f"{what}, {share}",
                value=ours,
                unit="µs",
                prediction=predicted.get((what, share)),
                reference=theirs,
                reference_name=APACHE,
                lower_is_better=True,
                note="" if what == EVEN else _moved(trips, share),
            )


def _moved(trips: Mapping[tuple[str, str], Sequence[RoundTrip]], share: str) -> str:
    """How far a late copy moves a share, of both."""
    ours, theirs = (
        statistics.median(
            getattr(late, share) / getattr(even, share)
            for late, even in zip(trips[name, SLOW], trips[name, EVEN], strict=True)
        )
        for name in (OURS, APACHE)
    )
    return f"{ours:.2f} times what it is with no copy late; Kafka's {theirs:.2f} times"
