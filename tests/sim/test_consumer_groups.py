"""Consumer groups in a seeded world; and bugs that must be found."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sim.consumer_groups.plants import PLANTS, find
from sim.consumer_groups.world import run

SEEDS = 40
PLANTED_SEEDS = 300


def test_everything_holds() -> None:
    for seed in range(SEEDS):
        run(seed)


def test_everything_holds_while_members_move_between_the_protocols() -> None:
    for seed in range(SEEDS // 2):
        run(seed, rolling=True)


@pytest.mark.long
@pytest.mark.parametrize("rolling", [False, True], ids=["new protocol", "both"])
def test_everything_holds_for_many_seeds(rolling: bool) -> None:
    for seed in range(SEEDS, 5_000):
        run(seed, rolling=rolling)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert find(run, PLANTS[name], PLANTED_SEEDS)


def test_a_seed_is_one_story_whatever_the_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-m", "sim.consumer_groups", "0", "5"],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
