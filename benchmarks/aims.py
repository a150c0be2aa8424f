"""Aims: the figures that the product should reach, beside those that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from benchmarks.harness import Result, Row, figure

COLUMNS: Final = ("benchmark", "what", "aim", "measured", "result")
MET, MISSED, LIMITED = "met", "**not met**", "limit"


def aims(results: Iterable[Result]) -> Iterator[tuple[str, ...]]:
    """Return the cells of each row that has an aim."""
    for result in results:
        for row in result.rows:
            if row.met is not None:
                verdict = MET if row.met else LIMITED if row.limited else MISSED
                yield result.benchmark, row.name, _aim(row), _measured(row), verdict


def limits(results: Iterable[Result]) -> Iterator[tuple[str, str]]:
    """Return the name of each row that misses its aim for a known reason, and the reason."""
    for result in results:
        for row in result.rows:
            if row.met is False and row.limit:
                yield f"{result.benchmark}, {row.name}", row.limit


def _aim(row: Row) -> str:
    parts = []
    if row.aim_value is not None:
        bound = "≤" if row.lower_is_better else "≥"
        parts.append(f"{bound} {figure(row.aim_value)} {row.unit}")
    if row.aim_ratio is not None:
        parts.append(f"≥ {row.aim_ratio:g} × {row.reference_name}")
    return ", ".join(parts)


def _measured(row: Row) -> str:
    parts = []
    if row.aim_value is not None:
        parts.append(f"{figure(row.value)} {row.unit}")
    if row.aim_ratio is not None:
        parts.append(f"{figure(row.ratio)} ×")
    return ", ".join(parts)
