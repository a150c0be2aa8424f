"""Last stable offset in random worlds, and planted bugs that must be found."""

from __future__ import annotations

import pytest
from sim.stable.plants import PLANTS
from sim.stable.world import Kinds, Violation, World

SEEDS = 100


def run(kinds: Kinds) -> None:
    for seed in range(SEEDS):
        World(kinds, seed).run()


def test_nothing_that_is_undecided_is_stable_and_all_else_is() -> None:
    run(Kinds())


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    with pytest.raises(Violation):
        run(PLANTS[plant])
