"""Put together: from inputs and a deployment to a plan."""

from __future__ import annotations

from typing import Final

from penstock.planner.capacity.bottlenecks import room_figures, rooms
from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.charts import capacity_charts
from penstock.planner.capacity.figures import (
    broker_figures,
    load_figures,
    network_figures,
    partition_figures,
    producer_figures,
    storage_figures,
)
from penstock.planner.capacity.findings import (
    disk_findings,
    durability_findings,
    growth_findings,
    partition_findings,
    request_findings,
    store_findings,
)
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import latencies, store_requests
from penstock.planner.capacity.sizing import size
from penstock.planner.capacity.store_figures import latency_figures, request_figures
from penstock.planner.results import Plan

_COUNTS: Final = ("partitions", "consumers_per_group", "brokers")
_TIMES: Final = ("produce_p99_ms", "end_to_end_p99_ms", "first_bottleneck")
_ANSWERS: Final = (
    *_COUNTS, "disk_bytes", "partition_disk_bytes", "fullest_disk_bytes", *_TIMES,
)  # fmt: skip
_DISKLESS_ANSWERS: Final = (*_COUNTS, "store_bytes", "object_puts_per_second", *_TIMES)


def capacity_plan(inputs: CapacityInputs, deployment: Deployment | None = None) -> Plan:
    """Size one cluster for a load: partitions, brokers, disks, networks, latency, requests.

    Without a deployment it has the default settings and nothing was measured.

    Raises:
        ImpossiblePlan: latencies whose 99th percentile lies below the median.
    """
    deployed = deployment or Deployment()
    sizing = size(inputs, deployed)
    latency = latencies(inputs, deployed, sizing)
    diskless = inputs.storage == "diskless"
    asked = store_requests(inputs, deployed, sizing) if diskless else None
    figures = [
        *load_figures(inputs, sizing),
        *partition_figures(inputs, deployed, sizing),
        *broker_figures(inputs, deployed, sizing),
        *storage_figures(inputs, deployed, sizing),
        *network_figures(inputs, sizing),
        *producer_figures(inputs, sizing, latency.acknowledged.quantile(0.99)),
        *latency_figures(inputs, deployed, sizing, latency),
    ]
    findings = [
        *partition_findings(inputs, deployed, sizing),
        *disk_findings(inputs, deployed, sizing),
        *request_findings(inputs, deployed, sizing),
        *growth_findings(inputs, sizing),
        *durability_findings(inputs),
    ]
    if asked is not None:
        figures += request_figures(inputs, deployed, sizing, asked)
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
