"""What a person should know of a capacity plan: limits that are passed, skew, points of change.

Growth is of two types, and their cures differ. Uniform growth (more topics, groups, partitions) is
met by adding capacity, up to points at which the shape of the cluster changes. A hot spot (one key
or topic that grows) is met by another partition key: partitions do not help.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

from penstock.planner.capacity.ceilings import (
    CLUSTER_PARTITIONS_ZOOKEEPER,
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    Deployment,
)
from penstock.planner.capacity.figures import allowed_messages
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import (
    Latencies,
    Requests,
    put_latency,
    requests_per_second,
)
from penstock.planner.capacity.sizing import Sizing, disk_room, partition_bytes_max
from penstock.planner.capacity.skew import salt_ways
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.results import Finding

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
    """Type 2, and limits of partitions."""
    limit = deployment.topic_partitions_max
    if sizing.partitions > limit:
        yield Finding(
            severity="fail", subject="partitions of a topic",
            cause=f"{sizing.partitions:,} partitions, a topic has at most {limit:,}",
            cure="spread the load over several topics, or lower over-provision",
        )  # fmt: skip
    if inputs.partitions and inputs.partitions < sizing.partitions_needed:
        yield Finding(
            severity="fail", subject="partitions",
            cause=f"{inputs.partitions:,} partitions, the peak needs {sizing.partitions_needed:,}",
            cure="a keyed topic gets more by a new topic, writing to both, and cutting over",
        )  # fmt: skip
    if inputs.partitions > 0 and sizing.consumers > sizing.partitions:
        yield Finding(
            severity="fail", subject="consumer parallelism",
            cause=f"{sizing.consumers:,} consumers are needed in a group and"
            f" {sizing.partitions:,} partitions can be read at a time",
            cure="more partitions, or less work per message",
        )  # fmt: skip
    yield from _hot_findings(deployment, sizing)


def disk_findings(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing
) -> Iterator[Finding]:
    """Whether partitions fit disks, and whether each broker has one."""
    room, wanted = disk_room(inputs, deployment), partition_bytes_max(inputs, deployment)
    more = (
        f"{sizing.partitions_by_disk:,} partitions or more; shorter retention; --storage diskless"
    )
    fullest, busiest = sizing.fullest_disk_bytes, sizing.busiest_replica_bytes
    if fullest > room * sizing.usable:
        yield Finding(
            severity="fail" if fullest > room else "warn", subject="bytes on a disk",
            cause=f"the fullest has {ceil(sizing.replicas / sizing.brokers)} of"
            f" {sizing.replicas:,} partitions, {format_quantity(fullest, 'bytes')} of"
            f" {format_quantity(room, 'bytes')} without the journal, of which"
            f" {inputs.headroom:.0%} should stay free",
            cure=more,
        )  # fmt: skip
    if busiest > wanted:
        yield Finding(
            severity="warn", subject="bytes of a partition",
            cause=f"the busiest keeps {format_quantity(busiest, 'bytes')}, on one disk and moved"
            f" or recovered whole; it should have at most {format_quantity(wanted, 'bytes')}",
            cure=more if sizing.replica_bytes > wanted else "key by something finer",
        )  # fmt: skip
    if sizing.idle_brokers:
        yield Finding(
            severity="warn", subject="brokers without work",
            cause=f"{sizing.idle_brokers:,} of {sizing.brokers:,} brokers have no partition:"
            f" there are {sizing.replicas:,}",
            cure=f"{sizing.brokers:,} partitions or more",
        )  # fmt: skip


def _hot_findings(deployment: Deployment, sizing: Sizing) -> Iterator[Finding]:
    hottest, mean = sizing.hottest_messages, sizing.peak_messages / sizing.partitions
    allowed = allowed_messages(deployment, sizing)
    key = sizing.skew.hottest_share * sizing.peak_messages
    ways = salt_ways(key, allowed)
    if hottest <= UNEVEN * mean and hottest <= allowed:
        yield Finding(
            severity="ok", subject="growth of type 1 (uniform)",
            cause=f"the busiest partition has {significant(hottest)} messages/s,"
            f" {hottest / mean:.2g} times the mean",
            cure="adding brokers and partitions is enough",
        )  # fmt: skip
        return
    yield Finding(
        severity="fail" if hottest > allowed else "warn",
        subject="growth of type 2 (hot spot)",
        cause=f"the busiest partition has {significant(hottest)} messages/s,"
        f" {significant(hottest / mean)} times the mean; it and its consumer take"
        f" {significant(allowed)} with headroom, and the busiest key alone has"
        f" {significant(key)}, however many partitions there are",
        cure=f"salt the busiest keys by {ways} and give up their strict order, give them a topic"
        " of their own, or key by something finer"
        if ways > 1
        else "key by something finer; more partitions spread the keys that collide",
    )  # fmt: skip


def growth_findings(inputs: CapacityInputs, sizing: Sizing) -> Iterator[Finding]:
    """Type 1: points at which the shape of a cluster changes."""
    replicas = sizing.partitions * inputs.copies
    scale = next(text for limit, text in _SCALES if sizing.mean_messages < limit)
    yield Finding(severity="note", subject="nearest scale", cause=scale)
    if sizing.mean_messages < MANAGED_MESSAGES:
        yield Finding(
            severity="note", subject="operations",
            cause=f"below {MANAGED_MESSAGES:,} messages/s running a cluster costs as much as above",
            cure="consider a managed service, or one broker without replicas",
        )  # fmt: skip
    if sizing.partitions > METADATA_PARTITIONS:
        yield Finding(
            severity="note", subject="partition metadata",
            cause=f"{sizing.partitions:,} partitions, {replicas:,} replicas: above"
            f" {METADATA_PARTITIONS:,} ZooKeeper struggled, and ended at about"
            f" {CLUSTER_PARTITIONS_ZOOKEEPER:,}",
            cure="on Kafka use KRaft; Penstock keeps metadata in its control plane",
        )  # fmt: skip
    if sizing.brokers > SPLIT_BROKERS:
        yield Finding(
            severity="warn", subject="size of the cluster",
            cause=f"{sizing.brokers:,} brokers; above {SPLIT_BROKERS} moving replicas takes hours",
            cure="split the cluster by domain",
        )  # fmt: skip
    if inputs.growth >= TIERING_GROWTH and inputs.storage == "local":
        yield Finding(
            severity="warn", subject="growth of storage",
            cause=f"{inputs.growth:.3g} times as much within {inputs.horizon:g} days",
            cure="--storage diskless",
        )  # fmt: skip
    if inputs.regions > 1:
        yield Finding(
            severity="warn", subject="regions",
            cause=f"{inputs.regions} regions: replicas within one cluster would wait 50 to 200 ms"
            " for each other",
            cure="a cluster per region and a pipeline between them, with rules for conflicts",
        )  # fmt: skip


def request_findings(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing
) -> Iterator[Finding]:
    """Whether producers send fewer requests than brokers can answer."""
    asked = requests_per_second(inputs, sizing, sizing.peak_messages)
    allowed = deployment.ceiling("requests_per_s") * max(1.0, inputs.broker_cores) * sizing.usable
    if asked > allowed:
        yield Finding(
            severity="warn",
            subject="produce requests",
            cause=f"{significant(asked)} requests/s to a broker, which answers"
            f" {significant(allowed)} with headroom",
            cure="a longer linger and larger batches, or fewer producers",
        )


def durability_findings(inputs: CapacityInputs) -> Iterator[Finding]:
    """What a plan's replicas mean."""
    if inputs.storage == "diskless":
        if inputs.replication > 1:
            yield Finding(
                severity="note", subject="replication",
                cause="the object store replicates; brokers keep no copies of their own",
            )  # fmt: skip
        return
    if inputs.replication == 1:
        yield Finding(
            severity="warn", subject="one replica",
            cause="while a broker is down its partitions are, and its disk is the only copy",
            cure="--storage diskless",
        )  # fmt: skip
    else:
        yield Finding(
            severity="fail", subject="replication",
            cause=f"Penstock refuses {inputs.replication} replicas: replication over brokers is"
            " not built yet; the figures are those of another cluster that replicates",
            cure="--storage diskless, whose store replicates, or --replication 1",
        )  # fmt: skip
    if inputs.storage == "tiered":
        yield Finding(
            severity="fail", subject="tiered storage",
            cause="Penstock has none: tiering is not built yet; the figures are those of another"
            " cluster that has it",
            cure="--storage diskless, or --storage local",
        )  # fmt: skip


def store_findings(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    asked: Requests,
    latency: Latencies,
) -> Iterator[Finding]:
    """Whether settings and the store carry what diskless topics are written."""
    settings = deployment.diskless
    each = sizing.peak_bytes / sizing.brokers_needed
    waiting = each * latency.acknowledged.quantile(0.99) / 1000
    if waiting > settings.pending_bytes_max:
        yield Finding(
            severity="fail", subject="diskless.pending.bytes.max",
            cause=f"{format_quantity(waiting, 'bytes')} wait on a broker at the 99th percentile,"
            f" allowed are {format_quantity(settings.pending_bytes_max, 'bytes')}",
            cure="raise it, or add brokers",
        )  # fmt: skip
    put_seconds = put_latency(inputs, deployment).mean / 1000
    ceiling = settings.objects_in_flight_max * settings.buffer_bytes_max / max(put_seconds, 1e-6)
    if each > ceiling:
        yield Finding(
            severity="fail", subject="diskless.objects.in.flight.max",
            cause=f"a broker writes {format_quantity(each, 'bytes/s')}, and"
            f" {settings.objects_in_flight_max} full objects at a time are"
            f" {format_quantity(ceiling, 'bytes/s')}",
            cure="raise it or diskless.buffer.max.bytes, or add brokers",
        )  # fmt: skip
    if latency.saturated:
        yield Finding(
            severity="warn", subject="diskless.commit.interval.ms",
            cause="objects close later than it says: those before are still written or committed",
            cure="raise it, or find out why PUTs or commits take so long",
        )  # fmt: skip
    if asked.puts > STORE_PREFIX_PUTS_PER_SECOND:
        beyond = asked.puts > STORE_PREFIX_PUTS_PER_SECOND * WAL_PREFIXES
        yield Finding(
            severity="fail" if beyond else "warn", subject="PUT rate",
            cause=f"{significant(asked.puts)} PUTs/s; one prefix takes"
            f" {STORE_PREFIX_PUTS_PER_SECOND:,}, and there are {WAL_PREFIXES}",
            cure="a longer diskless.commit.interval.ms, or fewer brokers",
        )  # fmt: skip
    rate = settings.consolidation_bytes_per_second
    behind = sizing.mean_bytes / sizing.brokers_needed
    if settings.consolidation_interval_ms and rate and behind > rate:
        yield Finding(
            severity="warn", subject="diskless.consolidation.bytes.per.second",
            cause=f"a broker is written {format_quantity(behind, 'bytes/s')} and consolidates"
            f" {format_quantity(rate, 'bytes/s')}",
            cure="raise it, or consolidate elsewhere",
        )  # fmt: skip
