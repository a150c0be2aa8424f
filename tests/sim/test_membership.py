"""Seeded stories of gossip; `sim.membership.watch` says what must hold in them.

More of them: `python -m sim.membership --count 20000`; with `--figures`, what is measured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim.host.scheduler import Violation
from sim.membership.figures import measure
from sim.membership.plants import PLANTS
from sim.membership.world import run

ROOT = Path(__file__).resolve().parents[2]
QUICK_SEEDS = 200
PLANT_SEEDS = 200
"""The shyest of the planted bugs need some dozens."""


def stories(first: int, count: int, *more: str, hash_seed: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sim.membership", f"--seed={first}", f"--count={count}", *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


EXPECTED = {
    "ALIVE", "SUSPECT", "DEAD", "asked others", "came back", "cut both", "cut in", "cut out",
    "death known", "expires", "hostile", "is killed", "is stopped", "is stopped for a minute",
    "joins", "leaves",
}  # fmt: skip


def test_all_know_who_is_alive_whatever_happens() -> None:
    process = stories(0, QUICK_SEEDS)
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert told.startswith(f"{QUICK_SEEDS} stories, ")
    found = set(re.findall(r"[0-9] ([a-zA-Z_ ]+)[,)]", told))
    assert found >= EXPECTED, EXPECTED - found  # what does not happen shows nothing


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("members", "count"), [(0, 10_000), (10, 500), (50, 40)])
def test_thousands_of_stories(members: int, count: int) -> None:
    processes = [
        stories(number * count // 2, count // 2, f"--members={members}") for number in range(2)
    ]
    for process in processes:
        told, _ = process.communicate()
        assert process.returncode == 0, told


def test_a_story_does_not_depend_on_hash_seeds() -> None:
    processes = [stories(0, 8, "--tell", hash_seed=seed) for seed in ("0", "4711")]
    first, second = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first + second
    assert first == second
    assert len(first.splitlines()) > 200


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    for seed in range(PLANT_SEEDS):
        try:
            run(seed, plant)
        except Violation as violation:
            lines = str(violation).splitlines()
            assert lines[0].startswith(f"seed {seed}: "), lines[0]
            assert "Violation(" in lines[0], lines[0]
            assert len(lines) > 1, "the end of the story is missing"
            return
    pytest.fail(f"{plant} was not found in {PLANT_SEEDS} seeds")


@pytest.mark.parametrize(("members", "most_ms"), [(3, 5_000), (10, 6_000)])
def test_a_death_is_known_in_some_periods_and_costs_do_not_grow(
    members: int, most_ms: float
) -> None:
    found = measure(1, members, 0.0)
    assert found.known_by_all_ms < most_ms < found.bound_ms
    assert found.datagrams == pytest.approx(2, abs=0.1)  # a ping and its acknowledgement
