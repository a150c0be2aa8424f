"""Capacity plan: the complete plan with its findings, charts and first bottleneck.

Growth has two types. Uniform growth (more topics, groups or partitions) needs more capacity; at
some sizes the cluster must also be organised differently. A hot spot (one key or one topic that
grows) needs another partition key, because more partitions do not help.

Each limit has a room to grow: the multiple of the planned peak that it allows if the headroom is
used too. The limit with the smallest room is the first bottleneck. Typical bottlenecks are the
network at small scale, partition metadata at medium scale and storage volume at large scale. With
diskless topics it may be the PUT rate of the object store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from penstock.planner.capacity.figures import (
    Latencies,
    broker_figures,
    latencies,
    latency_figures,
    object_latency,
    producer_figures,
    put_latency,
    puts_per_second,
    requests_per_second,
    store_requests,
)
from penstock.planner.capacity.inputs import (
    CLUSTER_PARTITIONS_ZOOKEEPER,
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    CapacityInputs,
    Deployment,
)
from penstock.planner.capacity.sizing import Sizing, size
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.results import (
    Chart,
    Curve,
    Figure,
    Finding,
    Plan,
    curves,
    fail,
    figures_of,
    note,
    ok,
    warn,
)

METADATA_PARTITIONS: Final = 1_000
SPLIT_BROKERS: Final = 50
TIERING_GROWTH: Final = 10.0
MANAGED_MESSAGES: Final = 100_000
UNEVEN: Final = 2.0
_SCALES: Final = (
    (30_000, "10K messages/s: about 3 brokers; no technical limit is near"),
    (300_000, "100K messages/s: about 3 brokers with more partitions"),
    (3_000_000, "1M messages/s: a dedicated cluster of 15 to 30 brokers, with a schema registry"),
    (30_000_000, "10M messages/s: several clusters, one per domain, with tiered storage"),
    (
        float("inf"),
        "80M messages/s: many clusters, with quotas and a control plane that manages them",
    ),
)


def partition_findings(sizing: Sizing) -> Iterator[Finding]:
    inputs, limit = sizing.inputs, sizing.deployment.topic_partitions_max
    if sizing.partitions > limit:
        yield fail(
            "partitions of a topic",
            f"{sizing.partitions:,} partitions are planned, but a topic has at most {limit:,}",
            "spread the load over several topics, or lower over-provision",
        )
    if inputs.partitions and inputs.partitions < sizing.partitions_needed:
        yield fail(
            "partitions",
            f"the topic has {inputs.partitions:,} partitions, but the peak needs"
            f" {sizing.partitions_needed:,}",
            "raise partitions; for a keyed topic create a new topic, write to both, and"
            " then switch readers",
        )
    if inputs.partitions > 0 and sizing.consumers_per_group > sizing.partitions:
        yield fail(
            "consumer parallelism",
            f"a group needs {sizing.consumers_per_group:,} consumers, but only"
            f" {sizing.partitions:,} can read at the same time, one per partition",
            "use more partitions, or shorten the work per message",
        )
    yield _hot_finding(sizing)


def disk_findings(sizing: Sizing) -> Iterator[Finding]:
    room, limit_bytes = sizing.disk_room, sizing.partition_bytes_max
    more = (
        f"use {sizing.partitions_by_disk:,} partitions or more, a shorter retention, or"
        " --storage diskless"
    )
    fullest, busiest = sizing.fullest_replicas_bytes, sizing.busiest_replica_bytes
    if fullest > room * sizing.usable:
        yield Finding(
            "fail" if fullest > room else "warn", "used space of a disk",
            f"the fullest disk holds {sizing.partitions_per_broker} of {sizing.replicas:,}"
            f" replicas with {format_quantity(fullest, 'bytes')}; its capacity is"
            f" {format_quantity(room, 'bytes')} without the journal, and"
            f" {sizing.inputs.headroom:.0%} of it should stay free", more,
        )  # fmt: skip
    if busiest > limit_bytes:
        yield warn(
            "size of a partition",
            f"the busiest partition has {format_quantity(busiest, 'bytes')}, and a"
            " partition is moved and recovered as a whole; it should have at most"
            f" {format_quantity(limit_bytes, 'bytes')}",
            more
            if sizing.partition_disk_bytes > limit_bytes
            else "use a key with more distinct values",
        )
    if sizing.idle_brokers:
        yield warn(
            "brokers without partitions",
            f"{sizing.idle_brokers:,} of {sizing.brokers:,} brokers have no partition,"
            f" because there are only {sizing.replicas:,} replicas",
            f"use {sizing.brokers:,} partitions or more",
        )


def _hot_finding(sizing: Sizing) -> Finding:
    hottest, allowed = sizing.hottest_partition_messages_per_second, sizing.allowed_messages
    mean, ways = sizing.mean_partition_messages_per_second, sizing.salt_ways
    if hottest <= UNEVEN * mean and hottest <= allowed:
        return ok(
            "growth of type 1 (uniform)",
            f"the busiest partition has {significant(hottest)} messages/s,"
            f" {hottest / mean:.2g} times the mean of all partitions",
            "if the load grows, add brokers and partitions",
        )
    return Finding(
        "fail" if hottest > allowed else "warn", "growth of type 2 (hot spot)",
        f"the busiest partition has {significant(hottest)} messages/s,"
        f" {significant(hottest / mean)} times the mean of all partitions. One partition with its"
        f" consumer should have at most {significant(allowed)} messages/s. The busiest key has"
        f" {significant(sizing.hottest_key_messages_per_second)} messages/s, with any number of"
        " partitions",
        f"split the busiest key into {ways} salted keys, which ends its strict order; or give the"
        " busiest keys a topic of their own; or use a key with more distinct values"
        if ways > 1
        else "use a key with more distinct values, or more partitions, which separate busy keys"
        " that share one",
    )  # fmt: skip


def growth_findings(sizing: Sizing) -> Iterator[Finding]:
    inputs = sizing.inputs
    yield note(
        "nearest scale",
        next(text for limit, text in _SCALES if sizing.messages_per_second < limit),
    )
    if sizing.messages_per_second < MANAGED_MESSAGES:
        yield note(
            "operations",
            f"a cluster for less than {MANAGED_MESSAGES:,} messages/s needs as much"
            " operation as a larger one",
            "consider a managed service, or one broker without replicas",
        )
    if sizing.partitions > METADATA_PARTITIONS:
        yield note(
            "partition metadata",
            f"{sizing.partitions:,} partitions and {sizing.replicas:,} replicas are"
            f" planned; Kafka with ZooKeeper became slow above {METADATA_PARTITIONS:,}"
            f" partitions and supported at most about {CLUSTER_PARTITIONS_ZOOKEEPER:,}",
            "with Kafka use KRaft; Penstock keeps metadata in its control plane",
        )
    if sizing.brokers > SPLIT_BROKERS:
        yield warn(
            "size of the cluster",
            f"{sizing.brokers:,} brokers are planned; with more than {SPLIT_BROKERS},"
            " moving replicas takes hours",
            "split the cluster into several, one per domain",
        )
    if inputs.growth >= TIERING_GROWTH and inputs.storage == "local":
        yield warn(
            "growth of storage",
            f"the load grows to {inputs.growth:.3g} times within {inputs.horizon:g} days",
            "--storage diskless",
        )
    if inputs.regions > 1:
        yield warn(
            "regions",
            f"{inputs.regions} regions are given; replicas of one cluster in several"
            " regions would wait 50 to 200 ms for each other",
            "run one cluster per region, copy data between them by pipelines, and define"
            " rules for conflicts",
        )


def request_findings(sizing: Sizing) -> Iterator[Finding]:
    cores = max(1.0, sizing.inputs.broker_cores)
    asked = requests_per_second(sizing, sizing.peak_messages_per_second)
    allowed = sizing.deployment.ceiling("requests_per_s") * cores * sizing.usable
    if asked > allowed:
        yield warn(
            "produce requests",
            f"a broker receives {significant(asked)} produce requests/s, but can answer"
            f" {significant(allowed)} with headroom",
            "use a longer linger with larger batches, or fewer producers",
        )


def durability_findings(inputs: CapacityInputs) -> Iterator[Finding]:
    if inputs.storage == "diskless":
        if inputs.replication > 1:
            yield note(
                "replication",
                "replication is ignored: the object store replicates, and brokers keep no copies",
            )
        return
    if inputs.replication == 1:
        yield warn(
            "one replica",
            "while a broker is down, its partitions are not available; its disk has the only copy",
            "--storage diskless, or --replication 3",
        )
    if inputs.replication == 2:
        yield warn(
            "two replicas",
            "a record is acknowledged once both replicas have it; while one broker is"
            " down, its partitions accept no records",
            "--replication 3",
        )
    if inputs.replication > 1:
        yield note(
            "replication",
            "processor time is assumed for large batches: 7.3 s/GB in total on three"
            " brokers. Batches of 100 bytes without linger took 24 s/GB, so set linger.ms"
            " of the producers. The latency that replicas add is an estimate",
        )
    if inputs.storage == "tiered":
        yield note(
            "tiered storage",
            "the cost of copying to the archive and of reading from it is computed from"
            " bytes, and has not been measured; see remote.log.storage.system.enable",
        )


def store_findings(sizing: Sizing, puts: float, latency: Latencies) -> Iterator[Finding]:
    settings = sizing.deployment.diskless
    each = sizing.peak_write_bytes_per_second / sizing.brokers_needed
    waiting = each * latency.acknowledged.quantile(0.99) / 1000
    if waiting > settings.pending_bytes_max:
        yield fail(
            "diskless.pending.bytes.max",
            f"{format_quantity(waiting, 'bytes')} wait for acknowledgement on a broker at"
            " the p99 latency; the limit is"
            f" {format_quantity(settings.pending_bytes_max, 'bytes')}",
            "raise diskless.pending.bytes.max, or add brokers",
        )
    put_seconds = put_latency(sizing).mean / 1000
    ceiling = settings.objects_in_flight_max * settings.buffer_bytes_max / max(put_seconds, 1e-6)
    if each > ceiling:
        yield fail(
            "diskless.objects.in.flight.max",
            f"a broker must write {format_quantity(each, 'bytes/s')}, but"
            f" {settings.objects_in_flight_max} full objects in parallel allow"
            f" {format_quantity(ceiling, 'bytes/s')}",
            "raise diskless.objects.in.flight.max or diskless.buffer.max.bytes, or add brokers",
        )
    if latency.diskless is not None and latency.diskless.saturated:
        yield warn(
            "diskless.commit.interval.ms",
            "objects stay open longer than configured, because earlier objects are still"
            " being written or committed",
            "raise diskless.commit.interval.ms, or find the cause of slow PUTs or commits",
        )
    if puts > STORE_PREFIX_PUTS_PER_SECOND:
        yield Finding(
            "fail" if puts > STORE_PREFIX_PUTS_PER_SECOND * WAL_PREFIXES else "warn", "PUT rate",
            f"{significant(puts)} PUTs/s are planned; one prefix allows"
            f" {STORE_PREFIX_PUTS_PER_SECOND:,}, and keys are spread over {WAL_PREFIXES}"
            " prefixes",
            "use a longer diskless.commit.interval.ms, or fewer brokers",
        )  # fmt: skip
    rate = settings.consolidation_bytes_per_second
    behind = sizing.write_bytes_per_second / sizing.brokers_needed
    if settings.consolidation_interval_ms and rate and behind > rate:
        yield warn(
            "diskless.consolidation.bytes.per.second",
            f"a broker receives {format_quantity(behind, 'bytes/s')}, but consolidates at"
            f" most {format_quantity(rate, 'bytes/s')}",
            "raise diskless.consolidation.bytes.per.second, or add brokers",
        )


_FACTORS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_RATE_MAX: Final = 1e12
_SHARES: Final = (0.01, 0.05, *(share / 20 for share in range(2, 19)), 0.95, 0.99, 0.995, 0.999)
_INTERVALS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_000)
_RETENTION_FACTORS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


def capacity_charts(sizing: Sizing, latency: Latencies) -> tuple[Chart, ...]:
    charts = (_counts(sizing), _bytes(sizing), _latency(latency))
    return (*charts, _intervals(sizing)) if sizing.inputs.storage == "diskless" else charts


def _counts(sizing: Sizing) -> Chart:
    inputs = sizing.inputs
    rates = [factor * inputs.messages_per_second for factor in _FACTORS]
    rates = [rate for rate in rates if 0.001 <= rate <= _RATE_MAX]
    sizes = [
        size(replace(inputs, partitions=0, messages_per_second=rate), sizing.deployment)
        for rate in rates
    ]
    return Chart(
        title="Partitions and brokers by message rate",
        x_label="messages/s today", y_label="count", x_log=True, y_log=True,
        curves=curves(rates, {
            "partitions": [size.partitions for size in sizes],
            "partitions needed": [size.partitions_needed for size in sizes],
            "brokers": [size.brokers for size in sizes],
        }),
        marks={"planned": inputs.messages_per_second},
    )  # fmt: skip


def _bytes(sizing: Sizing) -> Chart:
    inputs = sizing.inputs
    least = inputs.local_retention if inputs.storage == "tiered" else 0.0
    days = [factor * inputs.retention for factor in _RETENTION_FACTORS]
    days = [kept for kept in days if kept >= least]
    sizes = [size(replace(inputs, retention=kept), sizing.deployment) for kept in days]
    return Chart(
        title="Stored data by retention", x_label="days", y_label="TB",
        curves=curves(days, {
            "on disks, including replicas": [size.disk_bytes / 1e12 for size in sizes],
            "in the object store": [size.store_bytes / 1e12 for size in sizes],
        }),
        marks={"planned": inputs.retention},
    )  # fmt: skip


def _latency(latency: Latencies) -> Chart:
    parts = {
        "produced to acknowledged": latency.acknowledged,
        "produced to consumed": latency.consumed,
    }
    return Chart(
        title="Latency at the peak", x_label="ms", y_label="share of messages", x_log=True,
        curves=tuple([
            Curve(label=label, x=tuple([max(0.001, part.quantile(share)) for share in _SHARES]),
                  y=_SHARES)
            for label, part in parts.items()
        ]),
    )  # fmt: skip


def _intervals(sizing: Sizing) -> Chart:
    least = object_latency(sizing, 0.0)
    found = [
        object_latency(sizing, at).produce if at > least.interval_ms else least.produce
        for at in _INTERVALS_MS
    ]
    return Chart(
        title="Commit interval: produce latency at the peak, and PUTs",
        x_label="diskless.commit.interval.ms", y_label="ms; PUTs/s", x_log=True, y_log=True,
        curves=curves(_INTERVALS_MS, {
            "p50, ms": [latency.quantile(0.5) for latency in found],
            "p99, ms": [latency.quantile(0.99) for latency in found],
            "PUTs/s of all brokers": [puts_per_second(sizing, at) for at in _INTERVALS_MS],
        }),
        marks={"planned": sizing.deployment.interval_ms(sizing.inputs)},
    )  # fmt: skip


SOURCE: Final = "typical limits by scale: network, partition metadata, storage volume, PUT rate"


def rooms(sizing: Sizing, puts: float) -> Mapping[str, float]:
    """Return each limit's room to grow, as a multiple of the planned load, without unused limits.

    `puts` is the planned number of PUTs per second; 0 for topics that are not diskless.
    """
    shares = sizing.broker_shares
    found = {name: sizing.brokers_needed / share for name, share in shares.items() if share > 0}
    found["partition metadata"] = min(
        sizing.inputs.broker_partitions * sizing.brokers_needed / sizing.replicas,
        sizing.deployment.topic_partitions_max / sizing.partitions,
    )
    allowed = sizing.allowed_messages / sizing.usable
    found["busiest partition"] = allowed / sizing.hottest_partition_messages_per_second
    if puts:
        found["PUT rate"] = STORE_PREFIX_PUTS_PER_SECOND * WAL_PREFIXES / puts
    return found


def room_figures(found: Mapping[str, float]) -> list[Figure]:
    ordered = sorted(found.items(), key=lambda item: item[1])
    group = "room to grow"
    return [
        Figure("first_bottleneck", "the first bottleneck", ordered[0][0], "",
               "the limit with the smallest room below, with one broker down and no headroom",
               SOURCE,
               group=group),
        *[
            Figure(f"room_{name.replace(' ', '_').lower()}_times", name, room, "times",
                   "what the planned brokers and partitions can carry / the planned load", SOURCE,
                   group=group)
            for name, room in ordered
        ],
    ]  # fmt: skip


_COUNTS: Final = ("partitions", "consumers_per_group", "brokers")
_TIMES: Final = ("produce_p99_ms", "end_to_end_p99_ms", "first_bottleneck")
_ANSWERS: Final = (
    *_COUNTS, "disk_bytes", "partition_disk_bytes", "fullest_disk_bytes", *_TIMES,
)  # fmt: skip
_DISKLESS_ANSWERS: Final = (*_COUNTS, "store_bytes", "object_puts_per_second", *_TIMES)


def capacity_plan(inputs: CapacityInputs, deployment: Deployment | None = None) -> Plan:
    """Plan one cluster for a load: partitions, brokers, disks, networks, latency and requests.

    Without a deployment it uses default settings and no measurements.

    Raises:
        ImpossiblePlan: a latency has a 99th percentile below its median.
    """
    sizing = size(inputs, deployment or Deployment())
    latency = latencies(sizing)
    diskless = inputs.storage == "diskless"
    asked = store_requests(sizing) if diskless else None
    puts = 0.0 if asked is None else asked.puts
    return Plan(
        title="capacity",
        inputs=inputs,
        figures=(
            *figures_of(sizing, "load", "partitions and consumers"),
            *broker_figures(sizing),
            *figures_of(sizing, "storage", "network"),
            *producer_figures(sizing, latency.acknowledged.quantile(0.99)),
            *latency_figures(sizing, latency),
            *(() if asked is None else figures_of(asked)),
            *room_figures(rooms(sizing, puts)),
        ),
        findings=(
            *partition_findings(sizing),
            *disk_findings(sizing),
            *request_findings(sizing),
            *growth_findings(sizing),
            *durability_findings(inputs),
            *(store_findings(sizing, puts, latency) if diskless else ()),
        ),
        charts=capacity_charts(sizing, latency),
        answers=_DISKLESS_ANSWERS if diskless else _ANSWERS,
    )
