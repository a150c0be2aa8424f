"""Findings of a capacity plan: exceeded limits, skew, points of change.

Growth has two types with different fixes. Uniform growth (more topics, groups, partitions) needs
more capacity, up to points at which the shape of the cluster changes. A hot spot (one key or topic
that grows) needs another partition key: partitions do not help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.planner.capacity.ceilings import (
    CLUSTER_PARTITIONS_ZOOKEEPER,
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    Deployment,
)
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import (
    Latencies,
    Requests,
    put_latency,
    requests_per_second,
)
from penstock.planner.capacity.sizing import Sizing
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.results import Finding, fail, note, ok, warn

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
