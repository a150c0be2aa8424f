"""Diskless topics on one, two and three brokers, and what clients see when one of them is killed.

All brokers share a PostgreSQL server, which syncs, and a directory as the store. Throughput: one
client produces records of 1 KiB to twelve partitions and reads them back. Brokers, database and
client have two cores together, so more brokers cannot make it faster here: what is shown is what
another broker costs.

Then three brokers, of which one is killed with SIGKILL under a load of 200 records a second by an
idempotent producer and a consumer group. Each of the three dies once. The time that clients see is
the longest time without an acknowledgement, and without a record, in any of twelve partitions.

Predicted, before the first run:

- Throughput: an object costs a file with its syncs and a transaction in PostgreSQL (3 ms with a
  sync), of which each broker has several in flight: with one broker 250 MB/s in, which client and
  broker limit together, 350 out. With two and three brokers the same bytes come in smaller objects,
  as each gathers its own: 10 % less for each, and 15 % more CPU per gigabyte.
- Killed: clients lose their connections at once, but all brokers name the dead one as leader until
  its registration is too old. It was renewed up to `broker.heartbeat.interval.ms` ago, is looked at
  about as often, and clients ask for metadata every few 100 ms: the session timeout, less half a
  heartbeat, and half a second more. With 9 s and 2 s: 8.5 s; with 2 s and 0.5 s: 2.3 s. Without a
  kill: 60 ms between records of one partition, and a commit.
- The brokers' share of it, a row that was added after the first runs to tell it from that of the
  clients: a registration that is half a heartbeat old when its broker dies, and one of two others
  that looks within a third of a heartbeat: 8.7 s and 1.9 s.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass

from compat.servers import PenstockProcess, bootstrap_of
from confluent_kafka.admin import AdminClient
from tests.postgres import PostgresServer, postgres_server

from benchmarks.harness import Row
from benchmarks.peers.cluster import penstock_cluster
from benchmarks.peers.load import Load, Shape, create_topic, fetch, produce
from benchmarks.peers.steady_load import SteadyLoad, longest_gap

PARTITIONS = 12
BROKERS = (1, 2, 3)
TOPIC = "load"
DISKLESS = {"log.diskless.enable": "true"}
SESSIONS = {"default": (9_000, 2_000), "short": (2_000, 500)}
CALM_SECONDS = 3.0
SETTLE_SECONDS = 30.0
THROUGHPUT_PREDICTIONS = {1: (250.0, 350.0), 2: (225.0, 315.0), 3: (200.0, 280.0)}
CPU_PREDICTIONS = {1: (6.0, 2.5), 2: (7.0, 3.0), 3: (8.0, 3.5)}
GAP_PREDICTIONS = {"default": 8.5, "short": 2.3}
NOTICED_PREDICTIONS = {"default": 8.7, "short": 1.9}
LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much, how often, and which sessions."""

    records: int
    runs: int
    kills: int
    sessions: tuple[str, ...]


def measure(*, quick: bool) -> list[Row]:
    """Throughput by the number of brokers, then the kills."""
    effort = Effort(records=200_000, runs=3, kills=3, sessions=("default", "short"))
    if quick:
        effort = Effort(records=30_000, runs=1, kills=1, sessions=("short",))
    with postgres_server(durable=True) as postgres:
        rows = _throughput(postgres, effort)
        for session in effort.sessions:
            rows += _kills(postgres, effort, session)
    return rows


def _create(brokers: list[PenstockProcess], topic: str) -> None:
    """Create a topic, and wait until each broker serves all of it."""
    create_topic(bootstrap_of(brokers), topic, PARTITIONS)
    deadline = time.monotonic() + SETTLE_SECONDS
    for broker in brokers:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        while topic not in admin.list_topics(timeout=10).topics:
            if time.monotonic() > deadline:
                raise RuntimeError(f"a broker does not learn of topic {topic}")
            time.sleep(0.02)


# -- throughput ------------------------------------------------------------------------------


def _throughput(postgres: PostgresServer, effort: Effort) -> list[Row]:
    shape = Shape(records=effort.records, value_bytes=1024, partitions=PARTITIONS, linger_ms=50)
    found: dict[tuple[str, int], list[Load]] = defaultdict(list)
    for _ in range(effort.runs):
        for count in BROKERS:
            with penstock_cluster(postgres, count, DISKLESS) as brokers:
                _create(brokers, TOPIC)
                pids = [broker.pid for broker in brokers]
                for way, work in (("produce", produce), ("fetch", fetch)):
                    found[way, count].append(work(bootstrap_of(brokers), pids, TOPIC, shape))
    rows = []
    for way_number, way in enumerate(("produce", "fetch")):
        speeds = {
            count: statistics.median(load.megabytes_per_second for load in found[way, count])
            for count in BROKERS
        }
        costs = {
            count: statistics.median(load.cpu_seconds_per_gigabyte for load in found[way, count])
            for count in BROKERS
        }
        for count in BROKERS:
            brokers_named = "1 broker" if count == 1 else f"{count} brokers"
            alone = count == 1
            rows += [
                Row(
                    name=f"{way} 1 KiB, {PARTITIONS} partitions, {brokers_named}",
                    value=speeds[count],
                    unit="MB/s",
                    prediction=THROUGHPUT_PREDICTIONS[count][way_number],
                    reference=None if alone else speeds[1],
                    reference_name="" if alone else "1 broker, same two cores",
                ),
                Row(
                    name=f"CPU of all brokers, {way}, {brokers_named}",
                    value=costs[count],
                    unit="s/GB",
                    prediction=CPU_PREDICTIONS[count][way_number],
                    reference=None if alone else costs[1],
                    reference_name="" if alone else "1 broker, same two cores",
                    lower_is_better=True,
                ),
            ]
    return rows


# -- one is killed ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The longest gaps of acknowledgements and of deliveries, in seconds."""

    acks: float
    deliveries: float


def _kills(postgres: PostgresServer, effort: Effort, session: str) -> list[Row]:
    session_ms, heartbeat_ms = SESSIONS[session]
    configs = {
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(heartbeat_ms),
    }
    calm, killed, noticed = [], [], []
    for victim in range(effort.kills):
        with penstock_cluster(postgres, len(BROKERS), {**DISKLESS, **configs}) as brokers:
            before, after, seconds = _killed(brokers, victim, session_ms / 1000)
            calm.append(before)
            killed.append(after)
            noticed.append(seconds)
    rows = []
    for what in ("acks", "deliveries"):
        worst = [getattr(gaps, what) for gaps in killed]
        rows.append(
            Row(
                name=f"longest time without {what}, one broker killed, session {session_ms:,} ms",
                value=statistics.median(worst),
                unit="s",
                prediction=GAP_PREDICTIONS[session],
                reference=statistics.median(getattr(gaps, what) for gaps in calm),
                reference_name="before the kill",
                lower_is_better=True,
                note="each kill: " + ", ".join(f"{gap:.2f} s" for gap in worst)
                + "; nothing lost, doubled or out of order",
            )
        )  # fmt: skip
    rows.append(
        Row(
            name=f"time until a new leader is elected, session {session_ms:,} ms",
            value=statistics.median(noticed),
            unit="s",
            prediction=NOTICED_PREDICTIONS[session],
            note="each kill: " + ", ".join(f"{seconds:.2f} s" for seconds in noticed),
        )
    )
    return rows


def _killed(
    brokers: list[PenstockProcess], victim: int, session_seconds: float
) -> tuple[Gaps, Gaps, float]:
    """Gaps before and after the kill of one broker, and when another took its place."""
    _create(brokers, TOPIC)
    survivor = brokers[(victim + 1) % len(brokers)]
    admin = AdminClient({"bootstrap.servers": survivor.bootstrap, "log_level": 0})
    load = SteadyLoad(bootstrap_of(brokers), TOPIC, PARTITIONS)
    try:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not load.flows():
            if time.monotonic() > deadline:
                raise RuntimeError("not every partition is consumed from")
            time.sleep(0.02)
        begin = time.monotonic()
        time.sleep(CALM_SECONDS)
        moment = time.monotonic()
        brokers[victim].kill()
        noticed = _noticed(admin, victim + 1) - moment
        time.sleep(session_seconds / 2 + CALM_SECONDS)
        end = time.monotonic()
    finally:
        load.stop()

    def gaps(start: float, stop: float) -> Gaps:
        return Gaps(
            acks=longest_gap(load.acked, start, stop),
            deliveries=longest_gap(load.came, start, stop),
        )

    return gaps(begin, moment), gaps(moment, end), noticed


def _noticed(admin: AdminClient, node: int) -> float:
    """When a broker names a node no more as the leader of any partition."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        partitions = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        if all(partition.leader != node for partition in partitions.values()):
            return time.monotonic()
        if time.monotonic() > deadline:
            raise RuntimeError(f"broker {node} is still named as a leader")
        time.sleep(LOOK_SECONDS)
