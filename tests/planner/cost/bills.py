"""Default prices, and bills of one option or of all."""

from __future__ import annotations

from typing import Any

from penstock.apps.plan.cost import load_prices
from penstock.planner.cost import PRESETS, CostInputs, OptionCost, Prices, all_options
from penstock.planner.quantities import read_inputs

PRICES = load_prices(None)


def inputs(preset: str | None = None, **changes: object) -> CostInputs:
    """Return inputs by their attributes' names, over those of a preset."""
    begun = {} if preset is None else PRESETS[preset].inputs
    return read_inputs(
        CostInputs, {**begun, **{name.replace("_", "-"): one for name, one in changes.items()}}
    )


def bills(given: CostInputs, prices: Prices = PRICES) -> dict[str, OptionCost]:
    return {option.key: option for option in all_options(given, prices)}


def bill(key: str, preset: str | None = None, **changes: object) -> OptionCost:
    """Return the bill of an option."""
    return bills(inputs(preset, **changes))[key]


def plain(**changes: object) -> dict[str, Any]:
    """Return inputs without compression, peak, headroom or free space, as in the sources."""
    return {
        "compression": 1, "peak_factor": 1, "headroom": 0, "disk_free": 0, "operations_share": 0,
        **changes,
    }  # fmt: skip
