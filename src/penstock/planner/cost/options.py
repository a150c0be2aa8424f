"""Options of a cost plan, their break-even points, and their sensitivity to inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

from penstock.base.settings import SettingInfo, describe
from penstock.planner.cost.inputs import CostInputs
from penstock.planner.cost.lines import OptionCost, Prices
from penstock.planner.cost.managed import (
    kinesis_on_demand,
    kinesis_provisioned,
    msk_express,
    msk_provisioned,
    msk_serverless,
)
from penstock.planner.cost.outbox import outbox_options
from penstock.planner.cost.own import diskless, local, tiered
from penstock.planner.cost.workload import kept, produced_bytes_s, scaled
from penstock.planner.errors import ImpossiblePlan
from penstock.planner.results import Chart, Curve

VOLUME_MIN: Final = 1e8
VOLUME_MAX: Final = 1e18
"""Bounds of the search for a break-even, in bytes a day."""
RETENTION_MIN_DAYS: Final = 1 / 24
RETENTION_MAX_DAYS: Final = 3650.0
_STEP: Final = 10 ** (1 / 6)
_STEPS_MAX: Final = 80
_HALVINGS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Volume or retention at which another option becomes the cheapest.

    `unfit` means that the earlier option does not fit from there on.
    """

    at: float
    option: OptionCost
    unfit: bool = False


def all_options(inputs: CostInputs, prices: Prices) -> tuple[OptionCost, ...]:
    return (
        local(inputs, prices),
        tiered(inputs, prices),
        diskless(inputs, prices),
        *outbox_options(inputs, prices),
        kinesis_provisioned(inputs, prices),
        kinesis_on_demand(inputs, prices),
        msk_provisioned(inputs, prices),
        msk_express(inputs, prices),
        msk_serverless(inputs, prices),
    )


def reasons_against(option: OptionCost, inputs: CostInputs) -> tuple[str, ...]:
    found = list(option.unfit)
    slow = option.latency_p99_ms
    if inputs.latency_p99 and slow is not None and slow > inputs.latency_p99:
        found.append(f"takes up to {slow:g} ms at p99; latency-p99 is {inputs.latency_p99:g} ms")
    if inputs.per_record and option.batched:
        found.append("delivers files, not records; per-record is true")
    return tuple(found)


def fitting(options: Sequence[OptionCost], inputs: CostInputs) -> list[OptionCost]:
    found = [option for option in options if not reasons_against(option, inputs)]
    return sorted(found, key=lambda option: option.total_usd)


def volume_turn(inputs: CostInputs, prices: Prices, *, up: bool) -> Turn | None:
    """Return the nearest volume in bytes a day above or below with another cheapest option."""
    now = produced_bytes_s(inputs) * 86_400
    end = VOLUME_MAX if up else VOLUME_MIN
    return _turn(lambda at: scaled(inputs, at / now), prices, now, end)


def retention_turn(inputs: CostInputs, prices: Prices, *, up: bool) -> Turn | None:
    """Return the nearest retention in days above or below with another cheapest option."""
    end = RETENTION_MAX_DAYS if up else RETENTION_MIN_DAYS
    return _turn(lambda at: kept(inputs, at), prices, inputs.retention, end)


def _turn(
    vary: Callable[[float], CostInputs], prices: Prices, start: float, end: float
) -> Turn | None:
    """Walk in steps until the cheapest changes, then halve the last step."""

    def ranked(at: float) -> list[OptionCost]:
        varied = vary(at)
        return fitting(all_options(varied, prices), varied)

    def cheapest(at: float) -> OptionCost | None:
        return next(iter(ranked(at)), None)

    best = cheapest(start)
    same, step = start, _STEP if end > start else 1 / _STEP
    for _ in range(_STEPS_MAX):
        other = same * step
        if (other > end) if step > 1 else (other < end):
            return None
        found = cheapest(other)
        if best is None or found is None:
            return None
        if found.key != best.key:
            turn = _halved(cheapest, best.key, same, other, found)
            fits = best.key in [option.key for option in ranked(turn.at)]
            return replace(turn, unfit=not fits)
        same = other
    return None


def _halved(
    cheapest: Callable[[float], OptionCost | None],
    key: str,
    same: float,
    other: float,
    found: OptionCost,
) -> Turn:
    for _ in range(_HALVINGS):
        middle = sqrt(same * other)
        one = cheapest(middle)
        if one is None or one.key == key:
            same = middle
        else:
            other, found = middle, one
    return Turn(at=other, option=found)


SWING: Final = 0.5
"""Share by which each input is moved down and up."""
BARS_MAX: Final = 10
SHOWN_SHARE: Final = 0.001
"""Share of the total below which a change is not shown."""
_POINTS_EACH_WAY: Final = 10
_VOLUME_STEP: Final = 10 ** (3 / _POINTS_EACH_WAY)
_RETENTION_DAYS: Final = (
    1 / 24, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365,
)  # fmt: skip
_SKIPPED: Final = frozenset({"rate", "latency-p99"})


def volume_chart(inputs: CostInputs, prices: Prices) -> Chart:
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
    values: Sequence[float], vary: Callable[[float], CostInputs], prices: Prices
) -> tuple[Curve, ...]:
    columns = [all_options(vary(at), prices) for at in values]
    return tuple(
        [
            Curve(
                label=option.label,
                x=tuple(values),
                y=tuple([column[index].total_usd for column in columns]),
            )
            for index, option in enumerate(columns[0])
        ]
    )


def input_chart(inputs: CostInputs, prices: Prices, key: str) -> Chart | None:
    """Return the changes of one option's total by ±50 % of each input, the largest first.

    None if no change reaches `SHOWN_SHARE`.
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
    return {option.key: option.total_usd for option in all_options(inputs, prices)}[key]


def _moved(inputs: CostInputs, prices: Prices, key: str, info: SettingInfo, factor: float) -> float:
    """Return the total with one input moved within its bounds; whole numbers stay whole."""
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
