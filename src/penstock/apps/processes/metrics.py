"""Metrics of the shared admin address."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

UP: Final = Metric(
    name="penstock_process_up",
    kind="gauge",
    doc="With several processes: 1 if a broker has answered this scrape, else 0.",
    labels=("broker",),
)
