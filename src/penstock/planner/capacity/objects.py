"""What diskless topics ask of the object store, and how long producing to them takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.sizing import REQUEST_BYTES, Sizing
from penstock.planner.latency import (
    DisklessLatency,
    Distribution,
    diskless_latency,
    gathering_ms,
    objects_per_second,
    waiting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests to the object store a second, at the mean rate."""

    puts: float
    segment_puts: float
    consolidation_gets: float
    zone_gets: float
    replay_gets: float
    extents_per_object: float
    object_bytes: float
    replay_bytes: float
    """Bytes a second of old data that a broker reads before consolidation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """From a message's send on, in milliseconds."""

    acknowledged: Distribution
    consumed: Distribution
    diskless: DisklessLatency | None
    saturated: bool


def requests_per_second(inputs: CapacityInputs, sizing: Sizing, messages: float) -> float:
    """Produce requests a second to one broker.

    Every producer sends one to every broker per linger (1 ms at the least), unless there are
    fewer messages than that, and more when a request is full.
    """
    share = messages / sizing.peak_messages
    by_time = inputs.producers * 1000 / max(inputs.linger, 1.0)
    by_bytes = sizing.peak_bytes * share / sizing.brokers / REQUEST_BYTES
    return min(messages / sizing.brokers, max(by_time, by_bytes))


def put_latency(inputs: CapacityInputs, deployment: Deployment) -> Distribution:
    """Of a PUT."""
    names = deployment.put_names(inputs)
    return deployment.latency(*names, p50=inputs.put_p50, p99=inputs.put_p99)


def commit_latency(inputs: CapacityInputs, deployment: Deployment) -> Distribution:
    """Of a commit."""
    p50, p99 = inputs.commit_p50, inputs.commit_p99
    return deployment.latency("commit_p50_ms", "commit_p99_ms", p50=p50, p99=p99)


def object_latency(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    *,
    interval_ms: float | None = None,
) -> DisklessLatency:
    """The model of `penstock.planner.latency` for one broker at the peak."""
    written = sizing.peak_bytes / sizing.brokers
    return diskless_latency(
        interval_ms=deployment.interval_ms(inputs) if interval_ms is None else interval_ms,
        requests_per_second=requests_per_second(inputs, sizing, sizing.peak_messages),
        put=put_latency(inputs, deployment),
        commit=commit_latency(inputs, deployment),
        request=Distribution.constant(inputs.round_trip),
        objects_in_flight_max=deployment.diskless.objects_in_flight_max,
        fill_ms=deployment.diskless.buffer_bytes_max / written * 1000,
    )


def latencies(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Latencies:
    """At the peak, of any storage."""
    per_producer = sizing.peak_messages / inputs.producers / max(1, sizing.brokers)
    lingering = waiting(inputs.linger, inputs.linger / 1000 * per_producer)
    if inputs.storage == "diskless":
        found = object_latency(inputs, deployment, sizing)
        answered, saturated = found.produce, found.saturated
    else:
        found, saturated = None, False
        synced = deployment.latency("produce_p50_ms", "produce_p99_ms")
        answered = synced.plus(Distribution.constant(inputs.round_trip))
        for _ in range(min(inputs.copies - 1, 1)):
            # all followers fetch and write at the same time, after the leader
            answered = answered.plus(synced).plus(Distribution.constant(inputs.round_trip))
    acknowledged = lingering.plus(answered)
    delivery = deployment.latency("delivery_p50_ms", "delivery_p99_ms")
    return Latencies(
        acknowledged=acknowledged,
        consumed=acknowledged.plus(delivery),
        diskless=found,
        saturated=saturated,
    )


def store_requests(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Requests:
    """Of diskless topics, on all brokers."""
    puts = puts_per_second(inputs, deployment, sizing)
    object_bytes, messages_per_object = sizing.mean_bytes / puts, sizing.mean_messages / puts
    led = max(1.0, sizing.partitions / sizing.brokers)
    extents = max(1.0, min(led, messages_per_object))
    settings = deployment.diskless
    by_bytes = sizing.mean_bytes / settings.consolidation_segment_bytes
    by_extents = puts * extents / settings.consolidation_min_extents
    on = settings.consolidation_interval_ms > 0
    readers = max(1.0, min(extents, sizing.brokers / inputs.zones))
    zone_gets = puts * readers * (inputs.zones - 1) if inputs.zone_aware and inputs.groups else 0.0
    limit = deployment.fetching.lagging_rate_limit or inf
    extent_bytes = object_bytes / extents
    wanted = sizing.mean_bytes * inputs.lagging_groups / max(1.0, extent_bytes)
    return Requests(
        puts=puts,
        segment_puts=max(by_bytes, by_extents) if on else 0.0,
        consolidation_gets=puts * extents if on else 0.0,
        zone_gets=zone_gets,
        replay_gets=min(wanted, limit * sizing.brokers),
        extents_per_object=extents,
        object_bytes=object_bytes,
        replay_bytes=extent_bytes * limit,
    )


def puts_per_second(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    *,
    interval_ms: float | None = None,
) -> float:
    """Objects that all brokers write a second at the mean rate."""
    written = sizing.mean_bytes / sizing.brokers
    gathers_ms = gathering_ms(
        deployment.interval_ms(inputs) if interval_ms is None else interval_ms,
        put_latency(inputs, deployment),
        commit_latency(inputs, deployment),
        objects_in_flight_max=deployment.diskless.objects_in_flight_max,
        fill_ms=deployment.diskless.buffer_bytes_max / written * 1000,
    )
    requests = requests_per_second(inputs, sizing, sizing.mean_messages)
    return sizing.brokers * objects_per_second(gathers_ms, requests)


def with_rate(inputs: CapacityInputs, messages_per_second: float) -> CapacityInputs:
    """The same plan at another rate."""
    return replace(inputs, messages_per_second=messages_per_second)
