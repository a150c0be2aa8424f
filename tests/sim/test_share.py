"""Share partitions in every order of events, within bounds; and bugs that must be found."""

from __future__ import annotations

import pytest
from sim.share.exploring import explore
from sim.share.model import DEAD_LETTERS, ONE_BROKER, Bounds
from sim.share.plants import PLANTS

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    "bounds",
    [Bounds(crashes=0, depth=4), ONE_BROKER._replace(depth=6), DEAD_LETTERS],
    ids=["two brokers", "one broker", "dead letters"],
)
def test_everything_holds(bounds: Bounds) -> None:
    result = explore(bounds)
    assert not result.trace, "\n".join(result.trace)
    assert result.states > 3_000


@pytest.mark.long
@pytest.mark.parametrize(
    "bounds",
    [Bounds(depth=6), ONE_BROKER, DEAD_LETTERS._replace(depth=8)],
    ids=["two brokers", "one broker", "dead letters"],
)
def test_everything_holds_further_on(bounds: Bounds) -> None:
    result = explore(bounds)
    assert not result.trace, "\n".join(result.trace)
    assert result.states > 50_000


SHY = {"not-counted", "accepted-again", "no-renewal", "releases-others", "no-limit",
       "keeps-refused", "start-too-far", "early-expiry", "one-dead-letter-for-all",
       "resolves-first"}  # fmt: skip
"""Planted bugs that take some seconds of exploring."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in PLANTS],
)
def test_a_planted_bug_is_found(name: str) -> None:
    result = explore(PLANTS[name].bounds, PLANTS[name])
    assert result.trace, f"{name} was not found in {result.states} states"
    assert result.trace[-1].startswith("VIOLATED: ")
    print(*result.trace, sep="\n")
