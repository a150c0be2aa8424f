"""Aims: the figures that the product should reach, beside those that were measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmarks.harness import Result, Row, figure

COLUMNS: Final = ("benchmark", "what", "aim", "measured", "result")
MET, MISSED, LIMITED = "met", "**not met**", "limit"


def aims(results: Iterable[Result]) -> Iterable[tuple[str, ...]]:
    """Return the cells of each row that has an aim; rows that differ in nothing else are one."""
    return dict.fromkeys(
        (result.benchmark, row.name, _aim(row), _measured(row), _verdict(row))
        for result in results
        for row in result.rows
        if row.met is not None
    )


def _verdict(row: Row) -> str:
    return MET if row.met else LIMITED if row.limited else MISSED


def limits(results: Iterable[Result]) -> Iterable[tuple[str, str]]:
    """Return the name of each row that misses its aim for a known reason, and the reason."""
    return dict.fromkeys(
        (f"{result.benchmark}, {row.name}", row.limit)
        for result in results
        for row in result.rows
        if row.met is False and row.limit
    )


def _aim(row: Row) -> str:
    parts = []
    if row.aim_value is not None:
        bound = "≤" if row.lower_is_better else "≥"
        parts.append(f"{bound} {figure(row.aim_value)} {row.unit}")
    if row.aim_ratio is not None:
        parts.append(f"≥ {figure(row.aim_ratio)} × {row.reference_name}")
    return ", ".join(parts)


def _measured(row: Row) -> str:
    parts = []
    if row.aim_value is not None:
        parts.append(f"{figure(row.value)} {row.unit}")
    if row.aim_ratio is not None:
        parts.append(f"{figure(row.ratio)} ×")
    return ", ".join(parts)
