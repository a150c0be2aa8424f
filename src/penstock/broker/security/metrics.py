"""Metrics of authentication."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

AUTHENTICATIONS: Final = Metric(
    name="penstock_authentications_total",
    kind="counter",
    doc="Authentications of Kafka clients and brokers, including failures and reauthentications.",
    labels=("listener", "mechanism", "outcome"),
)
UNAUTHENTICATED: Final = Metric(
    name="penstock_unauthenticated_connections",
    kind="gauge",
    doc="Kafka connections that have not authenticated yet, and TLS handshakes in progress.",
)
