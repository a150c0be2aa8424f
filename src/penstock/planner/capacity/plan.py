"""Capacity plan with its charts and its next bottleneck.

Each limit has a room: the multiple of the planned peak that it allows, with its full ceiling. The
smallest room is the next bottleneck. It moves with scale: networks at small scale,
partition metadata in the middle, the volume of storage at large scale, PUTs on object stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.planner.capacity.ceilings import (
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    Deployment,
)
from penstock.planner.capacity.figures import broker_figures, producer_figures
from penstock.planner.capacity.findings import (
    disk_findings,
    durability_findings,
    growth_findings,
    partition_findings,
    request_findings,
    store_findings,
)
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import (
    Latencies,
    Requests,
    latencies,
    latency_figures,
    object_latency,
    puts_per_second,
    store_requests,
    with_rate,
)
from penstock.planner.capacity.sizing import Sizing, size
from penstock.planner.results import Chart, Curve, Figure, Plan, figures_of

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
