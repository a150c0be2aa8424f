"""Metrics of share groups."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

SESSIONS: Final = Metric(
    name="penstock_share_sessions", kind="gauge", doc="Share sessions held by this broker."
)
PARTITIONS: Final = Metric(
    name="penstock_share_partitions",
    kind="gauge",
    doc="Share partitions in this broker's memory: partitions, for each group that reads them.",
)
ACQUIRED: Final = Metric(
    name="penstock_share_acquired_records_total",
    kind="counter",
    doc="Records that members of share groups were given, again too.",
)
GIVEN_UP: Final = Metric(
    name="penstock_share_given_up_records_total",
    kind="counter",
    doc="Records that share groups have given up: rejected, or delivered too often.",
    labels=("cause",),
)
