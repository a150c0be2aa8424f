"""Cost plan: monthly costs of a workload with each option, and the points where the cheapest
changes.

    inputs ──> workload (rates, volumes) ──┐
    prices.toml, or a user's file ─────────┴──> options: lines of quantity × price ──> Plan

An option is a way to carry the data: a self-managed log, an outbox on a file system, or a managed
service.

Source: the filesystem outbox article, its worked example; the log and queue article, section 12.
"""

from penstock.planner.cost.inputs import (
    PRESETS,
    CostInputs,
    Line,
    OptionCost,
    Preset,
    Price,
    Prices,
    read_prices,
)
from penstock.planner.cost.options import all_options
from penstock.planner.cost.plan import cost_plan

__all__ = [
    "PRESETS", "CostInputs", "Line", "OptionCost", "Preset", "Price", "Prices", "all_options",
    "cost_plan", "read_prices",
]  # fmt: skip
