"""Lag of a group over time, by partition, from the commits that its coordinator keeps.

A window has the last commits of a group in a partition (`broker/lag/rules.py`): about a minute, or
longer for a group that commits rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from penstock.broker.admin.access import Caller
    from penstock.broker.lag.service import EvaluatedGroup, EvaluatedPartition

LINES_MAX: Final = 8
"""Partitions that are drawn, those with the most lag first."""
_UNITS: Final = ((36_000, 3600, "Hours"), (600, 60, "Minutes"), (0, 1, "Seconds"))
"""Units of time, with the seconds of a chart from which they are used, and their own seconds."""
_MS: Final = 1000


class LagPoint(Struct, frozen=True, kw_only=True):
    """Lag in records at a time, in ms; `offset` is the committed one."""

    at_ms: int
    offset: int
    lag: int


class LagLine(Struct, frozen=True, kw_only=True):
    """Lag of a group in a partition over time: at its commits, and now."""

    topic: str
    partition: int
    points: Sequence[LagPoint]

    @property
    def title(self) -> str:
        return f"{self.topic}-{self.partition}"


class _Curve(Struct, frozen=True):
    label: str
    x: list[float]
    y: list[int]


class _Chart(Struct, frozen=True):
    """Chart as `planner.js` draws it."""

    x_label: str
    y_label: str
    curves: list[_Curve]
    kind: str = "line"


def lag_lines(caller: Caller, evaluated: EvaluatedGroup) -> list[LagLine]:
    """Return the lines of the partitions with the most lag that the caller may see."""
    lagging = sorted(
        (found for found in evaluated.partitions if caller.sees(found.where.topic)),
        key=lambda found: (-(found.evaluation.lag or 0), found.where),
    )
    return sorted(map(_line, lagging[:LINES_MAX]), key=lambda line: (line.topic, line.partition))


def chart_of(lines: Sequence[LagLine]) -> str:
    """Return the lines as the JSON of a chart; empty without a time that passed between points."""
    times = [point.at_ms for line in lines for point in line.points]
    now_ms = max(times, default=0)
    seconds = (now_ms - min(times, default=0)) / _MS
    if not seconds:
        return ""
    factor, unit = next((factor, unit) for least, factor, unit in _UNITS if seconds >= least)
    curves = []
    for line in lines:
        values = {(point.at_ms - now_ms) / _MS / factor: point.lag for point in line.points}
        curves.append(_Curve(line.title, list(values), list(values.values())))
    return msgspec.json.encode(_Chart(f"{unit} from now", "Lag in records", curves)).decode()


def _line(found: EvaluatedPartition) -> LagLine:
    points = [
        LagPoint(at_ms=commit.at_ms, offset=commit.offset, lag=commit.lag)
        for commit in found.window.commits()
        if commit.lag is not None
    ]
    position, lag = found.position, found.evaluation.lag
    if lag is not None:
        points.append(LagPoint(at_ms=position.now_ms, offset=position.offset, lag=lag))
    return LagLine(topic=found.where.topic, partition=found.where.partition, points=points)
