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
waits for the next fetch of two followers, 1 ms. When a leader is killed its registration must grow
old: the session less half a heartbeat, then a claim, fences, a compare-and-set and a refresh of
metadata: 0.3 s more. Kafka has the same session, 9 s by default; both have 2 s here.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from compat.servers import bootstrap_of

from benchmarks.harness import Row
from benchmarks.peers.cluster import APACHE, OURS, Broker, cluster, leaders
from benchmarks.peers.load import Load, Shape, create_topic, fetch, produce
from benchmarks.peers.round_trip import produce_request, round_trips

SMALL_VALUE_BYTES = 100
PREDICTED_CPU = {50: 5.0, 0: 15.0}


def measure(*, quick: bool) -> list[Row]:
    """Throughput and CPU by shape, then one record in flight."""
    runs = 1 if quick else 3
    loads: dict[tuple[str, str, Shape], list[Load]] = defaultdict(list)
    trips: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(runs):
        for name in (OURS, APACHE):
            with cluster(name) as brokers:
                _carry(name, brokers, loads, quick=quick)
                trips[name].append(_round_trips(brokers, 300 if quick else 2_000))
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
        for way, work in (("produce", produce), ("fetch", fetch)):
            loads[name, way, shape].append(work(bootstrap, pids, topic, shape))


def _round_trips(brokers: Sequence[Broker], count: int) -> tuple[float, float]:
    """p50 and p99 of one record of 100 B in flight, at its leader, in microseconds."""
    create_topic(bootstrap_of(brokers), "round-trip", 1)
    one = Shape(records=1, value_bytes=SMALL_VALUE_BYTES, partitions=1, linger_ms=0)
    produce(bootstrap_of(brokers), [broker.pid for broker in brokers], "round-trip", one)
    leader = brokers[leaders(brokers, "round-trip")[0] - 1]
    port = int(leader.bootstrap.rpartition(":")[2])
    request = produce_request("round-trip", SMALL_VALUE_BYTES)
    trip = round_trips(port, request, count=count)
    return trip.p50, trip.p99


def _load_rows(loads: Mapping[tuple[str, str, Shape], Sequence[Load]]) -> Iterator[Row]:
    for name, way, shape in loads:
        if name != OURS:
            continue
        ours, theirs = loads[OURS, way, shape], loads[APACHE, way, shape]
        yield Row(
            name=f"{way} {shape.name}",
            value=statistics.median(one.megabytes_per_second for one in ours),
            unit="MB/s",
            reference=statistics.median(one.megabytes_per_second for one in theirs),
            reference_name=APACHE,
        )
        yield Row(
            name=f"CPU of three brokers, {way} {shape.name}",
            value=statistics.median(one.cpu_seconds_per_gigabyte for one in ours),
            unit="s/GB",
            prediction=PREDICTED_CPU[shape.linger_ms] if way == "produce" else None,
            reference=statistics.median(one.cpu_seconds_per_gigabyte for one in theirs),
            reference_name=APACHE,
            lower_is_better=True,
        )


def _trip_rows(trips: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[Row]:
    for place, (what, prediction) in enumerate((("p50", 400.0), ("p99", 1_500.0))):
        yield Row(
            name=f"round trip of one record, {what}, acks=all",
            value=statistics.median(one[place] for one in trips[OURS]),
            unit="µs",
            prediction=prediction,
            reference=statistics.median(one[place] for one in trips[APACHE]),
            reference_name=APACHE,
            lower_is_better=True,
        )
