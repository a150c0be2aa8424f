"""Metrics of the audit log."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

EVENTS: Final = Metric(
    name="penstock_audit_events_total",
    kind="counter",
    doc="Authentications, denials and administrative changes that were audited.",
    labels=("event",),
)
DROPPED: Final = Metric(
    name="penstock_audit_dropped_total",
    kind="counter",
    doc="Audit events that were not written: too many waited, or they could not be written.",
    labels=("sink",),
)
