"""All ways of carrying a workload, and where one stops being the cheapest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

from penstock.planner.cost.diskless import diskless
from penstock.planner.cost.inputs import CostInputs
from penstock.planner.cost.lines import OptionCost
from penstock.planner.cost.managed import (
    kinesis_on_demand,
    kinesis_provisioned,
    msk_express,
    msk_provisioned,
    msk_serverless,
)
from penstock.planner.cost.outbox import outbox_options
from penstock.planner.cost.own import local, tiered
from penstock.planner.cost.prices import Prices
from penstock.planner.cost.workload import kept, produced_bytes_s, scaled

VOLUME_MIN: Final = 1e8
VOLUME_MAX: Final = 1e18
"""Bytes a day between which a break-even is looked for."""
RETENTION_MIN_DAYS: Final = 1 / 24
RETENTION_MAX_DAYS: Final = 3650.0
_STEP: Final = 10 ** (1 / 6)
_STEPS_MAX: Final = 80
_HALVINGS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where another option becomes the cheapest: at which volume or retention, and which.

    `unfit` says that the one before does not fit from there on, whatever it costs.
    """

    at: float
    option: OptionCost
    unfit: bool = False


def all_options(inputs: CostInputs, prices: Prices) -> tuple[OptionCost, ...]:
    """Every option, whether it fits or not, in the order of `inputs.OPTIONS`."""
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
    """Why an option cannot carry the workload; empty if it can."""
    found = list(option.unfit)
    slow = option.latency_p99_ms
    if inputs.latency_p99 and slow is not None and slow > inputs.latency_p99:
        found.append(f"takes up to {slow:g} ms at p99; latency-p99 is {inputs.latency_p99:g} ms")
    if inputs.per_record and option.batched:
        found.append("delivers files, not records; per-record is true")
    return tuple(found)


def fitting(options: Sequence[OptionCost], inputs: CostInputs) -> list[OptionCost]:
    """Those that can carry the workload, cheapest first."""
    found = [one for one in options if not reasons_against(one, inputs)]
    return sorted(found, key=lambda one: one.total_usd)


def volume_turn(inputs: CostInputs, prices: Prices, *, up: bool) -> Turn | None:
    """The nearest volume in bytes a day above or below at which another option is the cheapest."""
    now = produced_bytes_s(inputs) * 86_400
    end = VOLUME_MAX if up else VOLUME_MIN
    return _turn(lambda at: scaled(inputs, at / now), prices, now, end)


def retention_turn(inputs: CostInputs, prices: Prices, *, up: bool) -> Turn | None:
    """The nearest retention in days above or below at which another option is the cheapest."""
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
            fits = best.key in [one.key for one in ranked(turn.at)]
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
