"""Metrics of the metrics that clients push; theirs have names of their own (`series.py`)."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

PUSHES: Final = Metric(
    name="penstock_client_metrics_pushes_total",
    kind="counter",
    doc="Pushes of clients' metrics that were taken.",
)
INSTANCES: Final = Metric(
    name="penstock_client_metrics_instances",
    kind="gauge",
    doc="Clients that asked for their subscription, or pushed, a short time ago.",
)
SERIES: Final = Metric(
    name="penstock_client_metrics_series",
    kind="gauge",
    doc="Series of clients' metrics that are shown.",
)
DROPPED: Final = Metric(
    name="penstock_client_metrics_dropped_total",
    kind="counter",
    doc="Data points of clients' metrics that are not shown, because there are too many.",
)
