"""Seeded stories of diskless topics; `sim.diskless.world` says what happens in them.

The whole of 60,000 is `python -m sim.diskless --sequences 60000 --seed 1`; here are some.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim.diskless.plants import PLANTS
from sim.diskless.world import run
from sim.host.scheduler import Violation

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(600)
PROCESSES = 2
PLANT_SEEDS = 400
"""The shyest of the planted bugs need some dozens."""
SHY = {"forgets epochs", "has no grace", "moves starts back", "takes late batches",
       "takes late markers", "lets late commits win", "takes new for orphans"}  # fmt: skip
"""Planted bugs that take some seconds to find."""


def stories(first: int, count: int, *more: str, hash_seed: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sim.diskless", f"--seed={first}", f"--sequences={count}", *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def told(count: int) -> list[str]:
    """Return the output of two processes over that many stories each."""
    processes = [stories(count * number, count) for number in range(PROCESSES)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, "".join(outputs)
    for line in outputs:
        assert line.startswith(f"{count} sequences, "), line
        assert "0 lost, 0 dangling, 0 duplicate, 0 leaked" in line
    return outputs


def test_nothing_is_lost() -> None:
    told(12)


EXPECTED = {
    "accepted", "duplicate", "out_of_order_sequence_number", "invalid_producer_epoch",
    "unknown_topic_id", "acknowledged", "read", "repeated commit", "retained", "deleted records",
    "deleted object", "deleted topic", "swap", "swap: StaleExtents", "swap: ControlUnavailable",
    "swap: ObjectLeaseLost", "known coordinates", "out of range", "gone under a reader", "orphan",
    "killed", "stalled", "zombie", "storm", "clock moved", "restarted", "lease lost",
    "written again", "given up", "fenced", "committed again",
    "numbered anew", "committed", "aborted", "marked again", "transaction written again",
}  # fmt: skip


@pytest.mark.long
def test_everything_happens_in_some_story() -> None:
    """A simulation in which faults do not happen shows nothing."""
    found = re.findall(r"[0-9] ([a-zA-Z_: ]+)[,)]", " ".join(told(1_000)))
    assert set(found) >= EXPECTED, EXPECTED.difference(found)


def test_a_story_does_not_depend_on_hash_seeds() -> None:
    processes = [stories(0, 12, "--tell", hash_seed=seed) for seed in ("0", "4711")]
    first, second = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first + second
    assert first == second
    assert len(first.splitlines()) > 150


@pytest.mark.parametrize(
    "plant",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in PLANTS],
)
def test_a_planted_bug_is_found(plant: str) -> None:
    for seed in range(PLANT_SEEDS):
        try:
            run(seed, plant)
        except Violation as violation:
            lines = str(violation).splitlines()
            assert lines[0].startswith(f"seed {seed}: "), lines[0]
            assert "Violation(" in lines[0] or "Corrupt" in lines[0], lines[0]
            assert len(lines) > 1, "the end of the story is missing"
            return
    pytest.fail(f"{plant} was not found in {PLANT_SEEDS} seeds")
