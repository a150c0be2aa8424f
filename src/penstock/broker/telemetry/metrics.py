"""Metrics about clients' metrics, which have names of their own (`series.py`)."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

PUSHES: Final = Metric(
    name="penstock_client_metrics_pushes_total",
    kind="counter",
    doc="Accepted pushes of clients' metrics.",
)
INSTANCES: Final = Metric(
    name="penstock_client_metrics_instances",
    kind="gauge",
    doc="Clients that recently requested their subscription, or pushed.",
)
SERIES: Final = Metric(
    name="penstock_client_metrics_series",
    kind="gauge",
    doc="Exposed series of clients' metrics.",
)
DROPPED: Final = Metric(
    name="penstock_client_metrics_dropped_total",
    kind="counter",
    doc="Data points of clients' metrics that were dropped because of limits.",
)
