"""How totals move with volume, with retention, and with each input of one option."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.base.settings import SettingInfo, describe
from penstock.planner.cost.inputs import CostInputs
from penstock.planner.cost.options import all_options
from penstock.planner.cost.prices import Prices
from penstock.planner.cost.workload import kept, produced_bytes_s, scaled
from penstock.planner.errors import ImpossiblePlan
from penstock.planner.results import Chart, Curve

SWING: Final = 0.5
"""By which share each input is moved down and up."""
BARS_MAX: Final = 10
SHOWN_SHARE: Final = 0.001
"""Of the total; inputs that change less are left out."""
_POINTS_EACH_WAY: Final = 10
_VOLUME_STEP: Final = 10 ** (3 / _POINTS_EACH_WAY)
_RETENTION_DAYS: Final = (
    1 / 24, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365,
)  # fmt: skip
_SKIPPED: Final = frozenset({"rate", "latency-p99"})


def volume_chart(inputs: CostInputs, prices: Prices) -> Chart:
    """Total a month of every option against bytes a day, a thousandth to a thousandfold."""
    now = produced_bytes_s(inputs) * 86_400
    steps = range(-_POINTS_EACH_WAY, _POINTS_EACH_WAY + 1)
    volumes = [now * _VOLUME_STEP**step for step in steps]
    return Chart(
        title="cost by volume; given capacities grow with it",
        x_label="bytes a day",
        y_label="USD a month",
        curves=_curves(volumes, lambda at: scaled(inputs, at / now), prices),
        x_log=True,
        y_log=True,
        marks={"this workload": now},
    )


def retention_chart(inputs: CostInputs, prices: Prices) -> Chart:
    """Total a month of every option against retention."""
    days = sorted({*_RETENTION_DAYS, inputs.retention})
    return Chart(
        title="cost by retention",
        x_label="days kept",
        y_label="USD a month",
        curves=_curves(days, lambda at: kept(inputs, at), prices),
        x_log=True,
        y_log=True,
        marks={"this workload": inputs.retention},
    )


def _curves(
    places: Sequence[float], vary: Callable[[float], CostInputs], prices: Prices
) -> tuple[Curve, ...]:
    columns = [all_options(vary(at), prices) for at in places]
    return tuple(
        [
            Curve(
                label=option.label,
                x=tuple(places),
                y=tuple([column[index].total_usd for column in columns]),
            )
            for index, option in enumerate(columns[0])
        ]
    )


def input_chart(inputs: CostInputs, prices: Prices, key: str) -> Chart | None:
    """What ±50 % of each input changes in one option's total: the largest first.

    None if nothing changes it by `SHOWN_SHARE`.
    """
    before = _total(inputs, prices, key)
    found: list[tuple[str, float, float]] = []
    for info in describe(CostInputs):
        if info.name in _SKIPPED or info.type_name not in ("int", "float"):
            continue
        down, up = (
            _moved(inputs, prices, key, info, factor) - before for factor in (1 - SWING, 1 + SWING)
        )
        if max(abs(down), abs(up)) > SHOWN_SHARE * before:
            found.append((info.name, down, up))
    if not found:
        return None
    found.sort(key=lambda row: -max(abs(row[1]), abs(row[2])))
    del found[BARS_MAX:]
    names = tuple([row[0] for row in found])
    return Chart(
        title=f"{key}: what ±50 % of an input changes",
        x_label="",
        y_label="USD a month",
        curves=(
            Curve(label="-50 %", x=names, y=tuple([row[1] for row in found])),
            Curve(label="+50 %", x=names, y=tuple([row[2] for row in found])),
        ),
        kind="bar",
    )


def _total(inputs: CostInputs, prices: Prices, key: str) -> float:
    return {one.key: one.total_usd for one in all_options(inputs, prices)}[key]


def _moved(inputs: CostInputs, prices: Prices, key: str, info: SettingInfo, factor: float) -> float:
    """The total with one input moved, within its bounds; whole numbers stay whole."""
    value = getattr(inputs, info.attribute)
    if value <= 0:
        return _total(inputs, prices, key)
    if info.name == "bytes-per-day" and inputs.rate:
        changed: dict[str, Any] = {"bytes_per_day": inputs.rate * 86_400 * factor, "rate": 0.0}
    else:
        moved = value * factor
        if info.minimum is not None:
            moved = max(moved, info.minimum)
        if info.maximum is not None:
            moved = min(moved, info.maximum)
        changed = {info.attribute: round(moved) if info.type_name == "int" else moved}
    try:
        return _total(replace(inputs, **changed), prices, key)
    except ImpossiblePlan:
        return _total(inputs, prices, key)
