"""The charts of a capacity plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import (
    Latencies,
    object_latency,
    puts_per_second,
    with_rate,
)
from penstock.planner.capacity.sizing import Sizing, size
from penstock.planner.results import Chart, Curve

_FACTORS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_RATE_MAX: Final = 1e12
_SHARES: Final = (0.01, 0.05, *(share / 20 for share in range(2, 19)), 0.95, 0.99, 0.995, 0.999)
_INTERVALS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_000)
_RETENTION_FACTORS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


def capacity_charts(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, latency: Latencies
) -> tuple[Chart, ...]:
    """Counts against the rate, bytes against retention, and latencies."""
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
            Curve(label="partitions", x=x, y=tuple([one.partitions for one in sizes])),
            Curve(label="partitions needed", x=x,
                  y=tuple([one.partitions_needed for one in sizes])),
            Curve(label="brokers", x=x, y=tuple([one.brokers for one in sizes])),
        ),
        marks={"planned": inputs.messages_per_second},
    )  # fmt: skip


def _bytes(inputs: CapacityInputs, deployment: Deployment) -> Chart:
    days = [
        factor * inputs.retention
        for factor in _RETENTION_FACTORS
        if inputs.storage != "tiered" or factor * inputs.retention >= inputs.local_retention
    ]
    sizes = [size(replace(inputs, retention=one), deployment) for one in days]
    x = tuple(days)
    return Chart(
        title="What is kept against retention", x_label="days", y_label="TB",
        curves=(
            Curve(label="on disks, with replicas", x=x,
                  y=tuple([one.disk_bytes / 1e12 for one in sizes])),
            Curve(label="in the object store", x=x,
                  y=tuple([one.store_bytes / 1e12 for one in sizes])),
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
                Curve(label=label, x=tuple([max(0.001, part.quantile(one)) for one in _SHARES]),
                      y=_SHARES)
                for label, part in parts.items()
            ]
        ),
    )  # fmt: skip


def _intervals(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Chart:
    x = _INTERVALS_MS
    least = object_latency(inputs, deployment, sizing, interval_ms=0.0)
    found = [
        object_latency(inputs, deployment, sizing, interval_ms=one).produce
        if one > least.interval_ms
        else least.produce
        for one in x
    ]
    puts = [puts_per_second(inputs, deployment, sizing, interval_ms=one) for one in x]
    return Chart(
        title="Batching interval: produce latency at the peak, and PUTs",
        x_label="diskless.commit.interval.ms", y_label="ms; PUTs/s", x_log=True, y_log=True,
        curves=(
            Curve(label="p50, ms", x=x, y=tuple([one.quantile(0.5) for one in found])),
            Curve(label="p99, ms", x=x, y=tuple([one.quantile(0.99) for one in found])),
            Curve(label="PUTs/s of all brokers", x=x, y=tuple(puts)),
        ),
        marks={"planned": deployment.interval_ms(inputs)},
    )  # fmt: skip
