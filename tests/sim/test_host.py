"""Thousands of seeded stories of producers and agents; `sim.host.world` says what must hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sim.host import plants
from sim.host.scheduler import Violation
from sim.host.world import World, run

from penstock.host.errors import (
    FrameFailed,
    FrameRefused,
    FrameTooLarge,
    LostOnDisconnect,
    PublishTimedOut,
)

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
QUICK_SEEDS = 200
PLANT_SEEDS = 2_000
"""The shyest of the planted bugs need some hundreds."""
SHY = {"reuse ring"}


def story_process(
    first: int, count: int, *more: str, hash_seed: str = "0"
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sim.host.world", str(first), str(count), *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_stories(seeds: int) -> None:
    share = seeds // PROCESSES
    processes = [story_process(number * share, share) for number in range(PROCESSES)]
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output
        assert output.startswith(f"{share} seeds, ")


def test_a_story_does_not_depend_on_hash_seeds() -> None:
    processes = [story_process(0, 12, "--tell", hash_seed=seed) for seed in ("0", "4711")]
    first, second = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first + second
    assert first == second
    assert len(first.splitlines()) > 500


def test_everything_happens_in_some_story() -> None:
    """A simulation in which faults do not happen shows nothing."""
    happened: Counter[object] = Counter()
    for seed in range(QUICK_SEEDS):
        world = run(seed)
        happened.update(what(world))
    assert happened.keys() >= EXPECTED, EXPECTED - happened.keys()


EXPECTED = {
    "cut", "rude", "clock", "killed agent", "drained agent", "killed producer", "grant",
    "log: written", "log: duplicate", "log: out of order",
    "sent again", "epoch raised", "new id after the last epoch", "cheated", "in the ring", "batch",
    "accepted", "nobody knows",
    FrameFailed, FrameRefused, FrameTooLarge, LostOnDisconnect, PublishTimedOut,
}  # fmt: skip


def what(world: World) -> Counter[object]:
    seen: Counter[object] = Counter()
    for _, kind, *rest in world.trace:
        if kind == "append":
            seen[f"log: {rest[-1]}"] += 1
        elif kind in ("agent", "producer"):
            name = {"drains": "drained ", "is killed": "killed "}.get(str(rest[-1]), "other ")
            seen[f"{name}{kind}"] += 1
        else:
            seen[kind] += 1
    for producer in world.producers:
        delivery = producer.delivery
        seen["sent again"] += delivery.resent
        seen["epoch raised"] += delivery.epochs_raised
        seen["new id after the last epoch"] += producer.began_last and delivery.epochs_raised > 0
    for agent in world.agents:
        seen["cheated"] += agent.overdrafts
        seen["in the ring"] += agent.sink.from_ring
    for item in world.history.items:
        seen["batch"] += len(item.chunks) > 1
        if not item.ends:
            seen["nobody knows"] += 1
        else:
            seen["accepted" if item.error is None else type(item.error)] += 1
    return +seen


@pytest.mark.parametrize(
    "plant",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in plants.ALL],
)
def test_a_planted_bug_is_found(plant: str) -> None:
    for seed in range(PLANT_SEEDS):
        try:
            run(seed, plant)
        except Violation as violation:
            lines = str(violation).splitlines()
            assert lines[0].startswith(f"seed {seed}: "), lines[0]
            assert len(lines) > 1, "the end of the story is missing"
            return
    pytest.fail(f"{plant} was not found in {PLANT_SEEDS} seeds")
