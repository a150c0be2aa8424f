"""Seeded stories of compacted diskless partitions; `sim.diskless.compaction` says what they are."""

from __future__ import annotations

from collections import Counter

import pytest
from sim.diskless.compaction import Violation, run
from sim.diskless.compaction_plants import PLANTS

STORIES = 5
PLANT_SEEDS = range(50, 300)
"""Where some dozens find all of them."""

SHY = {"takes lost races for won", "swaps blindly"}
"""Planted bugs that take some seconds to find."""
HAPPENS = {
    "append", "consolidated", "died", "gone under a reader", "passes", "races", "read", "segments",
    "swept",
}  # fmt: skip


def test_nothing_that_counts_is_lost() -> None:
    happened: Counter[str] = Counter()
    for seed in range(STORIES):
        happened += run(seed).seen
    assert happened.keys() >= HAPPENS


def test_a_seed_determines_the_run() -> None:
    assert run(3).trace.hexdigest() == run(3).trace.hexdigest()


@pytest.mark.parametrize(
    "plant",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in PLANTS],
)
def test_planted_bugs_are_found(plant: str) -> None:
    for seed in PLANT_SEEDS:
        try:
            run(seed, plant)
        except Violation:
            return
    pytest.fail(f"{len(PLANT_SEEDS)} stories, and nothing was noticed")
