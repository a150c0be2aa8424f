"""Capacity plan: its findings, its charts and its next bottleneck.

Growth has two types with different fixes. Uniform growth (more topics, groups, partitions) needs
more capacity, up to points at which the shape of the cluster changes. A hot spot (one key or topic
that grows) needs another partition key: partitions do not help.

Each limit has a room: the multiple of the planned peak that it allows, with its full ceiling. The
smallest room is the next bottleneck. It moves with scale: networks at small scale,
partition metadata in the middle, the volume of storage at large scale, PUTs on object stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from penstock.planner.capacity.figures import (
    Latencies,
    Requests,
    broker_figures,
    latencies,
    latency_figures,
    object_latency,
    producer_figures,
    put_latency,
    puts_per_second,
    requests_per_second,
    store_requests,
    with_rate,
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
    (30_000, "10K messages/s: about 3 brokers; nothing technical limits"),
    (300_000, "100K messages/s: the same cluster with more partitions"),
    (3_000_000, "1M messages/s: a cluster of its own, 15 to 30 brokers, and a schema registry"),
    (30_000_000, "10M messages/s: several clusters by domain, tiered storage"),
    (
        float("inf"),
        "80M messages/s: a fleet of clusters with quotas and a control plane of its own",
    ),
)


def partition_findings(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing
) -> Iterator[Finding]:
    limit = deployment.topic_partitions_max
    if sizing.partitions > limit:
        yield fail(
            "partitions of a topic",
            f"{sizing.partitions:,} partitions, a topic has at most {limit:,}",
            "spread the load over several topics, or lower over-provision",
        )
    if inputs.partitions and inputs.partitions < sizing.partitions_needed:
        yield fail(
            "partitions",
            f"{inputs.partitions:,} partitions, the peak needs {sizing.partitions_needed:,}",
            "a keyed topic gets more by a new topic, writing to both, and cutting over",
        )
    if inputs.partitions > 0 and sizing.consumers_per_group > sizing.partitions:
        yield fail(
            "consumer parallelism",
            f"{sizing.consumers_per_group:,} consumers are needed in a group and"
            f" {sizing.partitions:,} partitions can be read at a time",
            "more partitions, or less work per message",
        )
    yield from _hot_findings(sizing)


def disk_findings(inputs: CapacityInputs, sizing: Sizing) -> Iterator[Finding]:
    room, limit_bytes = sizing.disk_room, sizing.partition_bytes_max
    more = (
        f"{sizing.partitions_by_disk:,} partitions or more; shorter retention; --storage diskless"
    )
    fullest, busiest = sizing.fullest_replicas_bytes, sizing.busiest_replica_bytes
    if fullest > room * sizing.usable:
        yield Finding(
            severity="fail" if fullest > room else "warn", subject="bytes on a disk",
            cause=f"the fullest has {sizing.replicas_per_broker} of"
            f" {sizing.replicas:,} partitions, {format_quantity(fullest, 'bytes')} of"
            f" {format_quantity(room, 'bytes')} without the journal, of which"
            f" {inputs.headroom:.0%} should stay free",
            fix=more,
        )  # fmt: skip
    if busiest > limit_bytes:
        yield warn(
            "bytes of a partition",
            f"the busiest keeps {format_quantity(busiest, 'bytes')}, on one disk and moved"
            f" or recovered whole; it should have at most {format_quantity(limit_bytes, 'bytes')}",
            more if sizing.partition_disk_bytes > limit_bytes else "key by something finer",
        )
    if sizing.idle_brokers:
        yield warn(
            "brokers without work",
            f"{sizing.idle_brokers:,} of {sizing.brokers:,} brokers have no partition:"
            f" there are {sizing.replicas:,}",
            f"{sizing.brokers:,} partitions or more",
        )


def _hot_findings(sizing: Sizing) -> Iterator[Finding]:
    hottest, mean = (
        sizing.hottest_partition_messages_per_second,
        sizing.peak_messages_per_second / sizing.partitions,
    )
    allowed = sizing.allowed_messages
    key = sizing.hottest_key_messages_per_second
    ways = sizing.salt_ways
    if hottest <= UNEVEN * mean and hottest <= allowed:
        yield ok(
            "growth of type 1 (uniform)",
            f"the busiest partition has {significant(hottest)} messages/s,"
            f" {hottest / mean:.2g} times the mean",
            "adding brokers and partitions is enough",
        )
        return
    yield Finding(
        severity="fail" if hottest > allowed else "warn",
        subject="growth of type 2 (hot spot)",
        cause=f"the busiest partition has {significant(hottest)} messages/s,"
        f" {significant(hottest / mean)} times the mean; it and its consumer take"
        f" {significant(allowed)} with headroom, and the busiest key alone has"
        f" {significant(key)}, however many partitions there are",
        fix=f"salt the busiest keys by {ways}, which ends their strict order, give them a topic"
        " of their own, or key by something finer"
        if ways > 1
        else "key by something finer; more partitions spread the keys that collide",
    )  # fmt: skip


def growth_findings(inputs: CapacityInputs, sizing: Sizing) -> Iterator[Finding]:
    replicas = sizing.partitions * inputs.copies
    scale = next(text for limit, text in _SCALES if sizing.messages_per_second < limit)
    yield note("nearest scale", scale)
    if sizing.messages_per_second < MANAGED_MESSAGES:
        yield note(
            "operations",
            f"below {MANAGED_MESSAGES:,} messages/s running a cluster costs as much as above",
            "consider a managed service, or one broker without replicas",
        )
    if sizing.partitions > METADATA_PARTITIONS:
        yield note(
            "partition metadata",
            f"{sizing.partitions:,} partitions, {replicas:,} replicas: above"
            f" {METADATA_PARTITIONS:,} ZooKeeper struggled, and ended at about"
            f" {CLUSTER_PARTITIONS_ZOOKEEPER:,}",
            "on Kafka use KRaft; Penstock keeps metadata in its control plane",
        )
    if sizing.brokers > SPLIT_BROKERS:
        yield warn(
            "size of the cluster",
            f"{sizing.brokers:,} brokers; above {SPLIT_BROKERS} moving replicas takes hours",
            "split the cluster by domain",
        )
    if inputs.growth >= TIERING_GROWTH and inputs.storage == "local":
        yield warn(
            "growth of storage",
            f"{inputs.growth:.3g} times as much within {inputs.horizon:g} days",
            "--storage diskless",
        )
    if inputs.regions > 1:
        yield warn(
            "regions",
            f"{inputs.regions} regions: replicas within one cluster would wait 50 to 200 ms"
            " for each other",
            "a cluster per region and a pipeline between them, with rules for conflicts",
        )


def request_findings(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing
) -> Iterator[Finding]:
    asked = requests_per_second(inputs, sizing, sizing.peak_messages_per_second)
    allowed = deployment.ceiling("requests_per_s") * max(1.0, inputs.broker_cores) * sizing.usable
    if asked > allowed:
        yield warn(
            "produce requests",
            f"{significant(asked)} requests/s to a broker, which answers"
            f" {significant(allowed)} with headroom",
            "a longer linger and larger batches, or fewer producers",
        )


def durability_findings(inputs: CapacityInputs) -> Iterator[Finding]:
    if inputs.storage == "diskless":
        if inputs.replication > 1:
            yield note(
                "replication", "the object store replicates; brokers keep no copies of their own"
            )
        return
    if inputs.replication == 1:
        yield warn(
            "one replica",
            "while a broker is down its partitions are, and its disk is the only copy",
            "--storage diskless, or --replication 3",
        )
    else:
        if inputs.replication == 2:
            yield warn(
                "two replicas",
                "both must have a record before it is acknowledged: nothing is while one is down",
                "--replication 3",
            )
        yield note(
            "replication",
            "processor time is that of large batches on three brokers, 7.3 s/GB of all; 100 bytes"
            " a batch without linger took 24: see linger.ms of the producers. What replicas add to"
            " latency is estimated",
        )
    if inputs.storage == "tiered":
        yield note(
            "tiered storage",
            "what copying to the archive, and reading there, costs a broker is computed from bytes,"
            " not measured yet; see remote.log.storage.system.enable",
        )


def store_findings(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    asked: Requests,
    latency: Latencies,
) -> Iterator[Finding]:
    settings = deployment.diskless
    each = sizing.peak_write_bytes_per_second / sizing.brokers_needed
    waiting = each * latency.acknowledged.quantile(0.99) / 1000
    if waiting > settings.pending_bytes_max:
        yield fail(
            "diskless.pending.bytes.max",
            f"{format_quantity(waiting, 'bytes')} wait on a broker at the 99th percentile,"
            f" allowed are {format_quantity(settings.pending_bytes_max, 'bytes')}",
            "raise it, or add brokers",
        )
    put_seconds = put_latency(inputs, deployment).mean / 1000
    ceiling = settings.objects_in_flight_max * settings.buffer_bytes_max / max(put_seconds, 1e-6)
    if each > ceiling:
        yield fail(
            "diskless.objects.in.flight.max",
            f"a broker writes {format_quantity(each, 'bytes/s')}, and"
            f" {settings.objects_in_flight_max} full objects at a time are"
            f" {format_quantity(ceiling, 'bytes/s')}",
            "raise it or diskless.buffer.max.bytes, or add brokers",
        )
    if latency.saturated:
        yield warn(
            "diskless.commit.interval.ms",
            "objects close later than configured: earlier ones are still written or committed",
            "raise it, or find out why PUTs or commits take so long",
        )
    if asked.puts > STORE_PREFIX_PUTS_PER_SECOND:
        beyond = asked.puts > STORE_PREFIX_PUTS_PER_SECOND * WAL_PREFIXES
        yield Finding(
            severity="fail" if beyond else "warn", subject="PUT rate",
            cause=f"{significant(asked.puts)} PUTs/s; one prefix takes"
            f" {STORE_PREFIX_PUTS_PER_SECOND:,}, and there are {WAL_PREFIXES}",
            fix="a longer diskless.commit.interval.ms, or fewer brokers",
        )  # fmt: skip
    rate = settings.consolidation_bytes_per_second
    behind = sizing.write_bytes_per_second / sizing.brokers_needed
    if settings.consolidation_interval_ms and rate and behind > rate:
        yield warn(
            "diskless.consolidation.bytes.per.second",
            f"a broker is written {format_quantity(behind, 'bytes/s')} and consolidates"
            f" {format_quantity(rate, 'bytes/s')}",
            "raise it, or consolidate elsewhere",
        )


_FACTORS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_RATE_MAX: Final = 1e12
_SHARES: Final = (0.01, 0.05, *(share / 20 for share in range(2, 19)), 0.95, 0.99, 0.995, 0.999)
_INTERVALS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_000)
_RETENTION_FACTORS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


def capacity_charts(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, latency: Latencies
) -> tuple[Chart, ...]:
    charts = [_counts(inputs, deployment), _bytes(inputs, deployment), _latency(latency)]
    if inputs.storage == "diskless":
        charts.append(_intervals(inputs, deployment, sizing))
    return tuple(charts)


def _counts(inputs: CapacityInputs, deployment: Deployment) -> Chart:
    rates = [
        factor * inputs.messages_per_second
        for factor in _FACTORS
        if 0.001 <= factor * inputs.messages_per_second <= _RATE_MAX
    ]
    sizes = [size(with_rate(replace(inputs, partitions=0), rate), deployment) for rate in rates]
    x = tuple(rates)
    return Chart(
        title="Partitions and brokers against the rate",
        x_label="messages/s today", y_label="count", x_log=True, y_log=True,
        curves=(
            Curve(label="partitions", x=x, y=tuple([size.partitions for size in sizes])),
            Curve(label="partitions needed", x=x,
                  y=tuple([size.partitions_needed for size in sizes])),
            Curve(label="brokers", x=x, y=tuple([size.brokers for size in sizes])),
        ),
        marks={"planned": inputs.messages_per_second},
    )  # fmt: skip


def _bytes(inputs: CapacityInputs, deployment: Deployment) -> Chart:
    days = [
        factor * inputs.retention
        for factor in _RETENTION_FACTORS
        if inputs.storage != "tiered" or factor * inputs.retention >= inputs.local_retention
    ]
    sizes = [size(replace(inputs, retention=days_kept), deployment) for days_kept in days]
    x = tuple(days)
    return Chart(
        title="Stored data by retention", x_label="days", y_label="TB",
        curves=(
            Curve(label="on disks, with replicas", x=x,
                  y=tuple([size.disk_bytes / 1e12 for size in sizes])),
            Curve(label="in the object store", x=x,
                  y=tuple([size.store_bytes / 1e12 for size in sizes])),
        ),
        marks={"planned": inputs.retention},
    )  # fmt: skip


def _latency(latency: Latencies) -> Chart:
    parts = {
        "produced to acknowledged": latency.acknowledged,
        "produced to consumed": latency.consumed,
    }
    return Chart(
        title="Latency at the peak", x_label="ms", y_label="share of messages", x_log=True,
        curves=tuple(
            [
                Curve(label=label, x=tuple([max(0.001, part.quantile(share)) for share in _SHARES]),
                      y=_SHARES)
                for label, part in parts.items()
            ]
        ),
    )  # fmt: skip


def _intervals(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Chart:
    x = _INTERVALS_MS
    least = object_latency(inputs, deployment, sizing, interval_ms=0.0)
    found = [
        object_latency(inputs, deployment, sizing, interval_ms=at).produce
        if at > least.interval_ms
        else least.produce
        for at in x
    ]
    puts = [puts_per_second(inputs, deployment, sizing, interval_ms=at) for at in x]
    return Chart(
        title="Batching interval: produce latency at the peak, and PUTs",
        x_label="diskless.commit.interval.ms", y_label="ms; PUTs/s", x_log=True, y_log=True,
        curves=(
            Curve(label="p50, ms", x=x, y=tuple([latency.quantile(0.5) for latency in found])),
            Curve(label="p99, ms", x=x, y=tuple([latency.quantile(0.99) for latency in found])),
            Curve(label="PUTs/s of all brokers", x=x, y=tuple(puts)),
        ),
        marks={"planned": deployment.interval_ms(inputs)},
    )  # fmt: skip


SOURCE: Final = "the envelope of scales: network, partition metadata, storage volume, PUT rate"


def rooms(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, asked: Requests | None
) -> Mapping[str, float]:
    """Return each loaded limit's room, as a multiple of the planned load."""
    shares = sizing.broker_shares
    found = {name: sizing.brokers_needed / share for name, share in shares.items() if share > 0}
    replicas = sizing.partitions * inputs.copies
    found["partition metadata"] = min(
        inputs.broker_partitions * sizing.brokers_needed / replicas,
        deployment.topic_partitions_max / sizing.partitions,
    )
    allowed = sizing.allowed_messages / sizing.usable
    found["busiest partition"] = allowed / sizing.hottest_partition_messages_per_second
    if asked is not None and asked.puts:
        found["PUT rate"] = STORE_PREFIX_PUTS_PER_SECOND * WAL_PREFIXES / asked.puts
    return found


def room_figures(found: Mapping[str, float]) -> list[Figure]:
    ordered = sorted(found.items(), key=lambda item: item[1])
    first = ordered[0][0]
    rows = [
        Figure(name="first_bottleneck", label="the first bottleneck", value=first,
               group="room to grow", source=SOURCE,
               formula="the smallest room below, one broker down, ceilings used to the full")
    ]  # fmt: skip
    for name, room in ordered:
        slug = name.replace(" ", "_").lower()
        rows.append(
            Figure(name=f"room_{slug}_times", label=name, value=room, unit="times",
                   group="room to grow", source=SOURCE,
                   formula="what the planned brokers and partitions take / the planned load")
        )  # fmt: skip
    return rows


_COUNTS: Final = ("partitions", "consumers_per_group", "brokers")
_TIMES: Final = ("produce_p99_ms", "end_to_end_p99_ms", "first_bottleneck")
_ANSWERS: Final = (
    *_COUNTS, "disk_bytes", "partition_disk_bytes", "fullest_disk_bytes", *_TIMES,
)  # fmt: skip
_DISKLESS_ANSWERS: Final = (*_COUNTS, "store_bytes", "object_puts_per_second", *_TIMES)


def capacity_plan(inputs: CapacityInputs, deployment: Deployment | None = None) -> Plan:
    """Size one cluster for a load: partitions, brokers, disks, networks, latency, requests.

    Without a deployment it uses default settings and no measurements.

    Raises:
        ImpossiblePlan: latencies whose 99th percentile lies below the median.
    """
    deployed = deployment or Deployment()
    sizing = size(inputs, deployed)
    latency = latencies(inputs, deployed, sizing)
    diskless = inputs.storage == "diskless"
    asked = store_requests(inputs, deployed, sizing) if diskless else None
    figures = [
        *figures_of(sizing, "load", "partitions and consumers"),
        *broker_figures(inputs, deployed, sizing),
        *figures_of(sizing, "storage", "network"),
        *producer_figures(inputs, sizing, latency.acknowledged.quantile(0.99)),
        *latency_figures(inputs, deployed, sizing, latency),
    ]
    findings = [
        *partition_findings(inputs, deployed, sizing),
        *disk_findings(inputs, sizing),
        *request_findings(inputs, deployed, sizing),
        *growth_findings(inputs, sizing),
        *durability_findings(inputs),
    ]
    if asked is not None:
        figures += figures_of(asked)
        findings += store_findings(inputs, deployed, sizing, asked, latency)
    figures += room_figures(rooms(inputs, deployed, sizing, asked))
    return Plan(
        title="capacity",
        inputs=inputs,
        figures=tuple(figures),
        findings=tuple(findings),
        charts=capacity_charts(inputs, deployed, sizing, latency),
        answers=_DISKLESS_ANSWERS if diskless else _ANSWERS,
    )
