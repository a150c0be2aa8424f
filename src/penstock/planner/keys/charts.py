"""Curves of a census: share by rank, loads before and after salting, the hottest share by salts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.planner.keys.census import CensusResult
from penstock.planner.keys.salting import SaltEffect
from penstock.planner.results import Chart, Curve

POINTS_MAX: Final = 200
"""Points of one curve."""


def charts(
    census: CensusResult, hot: Sequence[SaltEffect], everything: Sequence[SaltEffect], salts: int
) -> tuple[Chart, ...]:
    """All charts; `salts` is the number of names that is recommended, or tried last."""
    loads = (_partitions(hot, everything, salts), _salts(hot, everything))
    return (_ranks(census), *loads) if len(census.keys) else loads


def _ranks(census: CensusResult) -> Chart:
    last = len(census.key_records)
    places = _places(last)
    shares = 100 * census.key_records[places - 1] / census.keyed_records
    even = 100 / census.distinct
    ranks = tuple(places.tolist())
    return Chart(
        title="share of records by rank of key",
        x_label="rank",
        y_label="% of keyed records",
        x_log=True,
        y_log=True,
        curves=(
            Curve(label="measured", x=ranks, y=tuple(shares.tolist())),
            Curve(label="if all were equal", x=ranks, y=(even,) * len(ranks)),
        ),
    )


def _partitions(
    hot: Sequence[SaltEffect], everything: Sequence[SaltEffect], salts: int
) -> Chart:  # fmt: skip
    shown = [("as it is", hot[0])]
    shown += [(f"hot keys × {one.salts} salts", one) for one in hot if one.salts == salts]
    shown += [(f"all keys × {one.salts} salts", one) for one in everything if one.salts == salts]
    return Chart(
        title=f"load of {len(hot[0].loads)} partitions, the hottest first",
        x_label="rank of partition",
        y_label="% of keyed records",
        curves=tuple([_loads(label, one) for label, one in shown]),
    )


def _loads(label: str, effect: SaltEffect) -> Curve:
    falling = np.sort(effect.loads)[::-1]
    count = len(falling)
    places = _places(count)
    shares = 100 * falling[places - 1] / falling.sum()
    return Curve(label=label, x=tuple(places.tolist()), y=tuple(shares.tolist()))


def _places(last: int) -> npt.NDArray[np.int64]:
    """Ranks from 1 to the last: all, or as many as a curve has points, closer at the front."""
    if last <= POINTS_MAX:
        return np.arange(1, last + 1)
    return np.unique(np.geomspace(1, last, POINTS_MAX).round().astype(np.int64))


def _salts(hot: Sequence[SaltEffect], everything: Sequence[SaltEffect]) -> Chart:
    return Chart(
        title="hottest partition by number of salts",
        x_label="salts",
        y_label="% of keyed records",
        x_log=True,
        curves=tuple(
            [
                Curve(
                    label=label,
                    x=tuple([one.salts for one in effects]),
                    y=tuple([100 * one.hottest_share for one in effects]),
                )
                for label, effects in (("hot keys salted", hot), ("all keys salted", everything))
            ]
        ),
    )
