"""The core of transactions in every order of events, within bounds; and bugs that must be found.

`python -m sim.transactions --full` and `--plants` are the whole of it.
"""

from __future__ import annotations

import pytest
from sim.transactions.bounds import FULL, QUICK, Bounds
from sim.transactions.exploring import explore
from sim.transactions.plants import PLANTS

pytestmark = pytest.mark.timeout(1_800)

SHY = {"complete-at-first-marker", "end-for-any-epoch"}
"""Planted bugs that take some seconds of exploring."""


def holds(bounds: Bounds) -> bool:
    result = explore(bounds)
    print(f"{bounds}: {result.states} states, {result.steps} steps, {result.cpu_seconds:.1f} CPU s")
    assert not result.trace, "\n".join(result.trace)
    assert result.states > 1_000
    return result.complete


@pytest.mark.parametrize("bounds", QUICK, ids=str)
def test_everything_holds(bounds: Bounds) -> None:
    assert holds(bounds)


@pytest.mark.long
@pytest.mark.parametrize("bounds", [bounds for bounds in FULL if bounds not in QUICK], ids=str)
def test_everything_holds_in_larger_bounds(bounds: Bounds) -> None:
    holds(bounds)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in PLANTS],
)
def test_a_planted_bug_is_found(name: str) -> None:
    result = explore(PLANTS[name].bounds, PLANTS[name].kind)
    assert result.trace, f"{name} was not found in {result.states} states"
    assert result.trace[-1].startswith("VIOLATED: ")
    assert len(result.trace) >= 2, "the way there is missing"
