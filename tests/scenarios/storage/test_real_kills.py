"""Processes that are killed at a system call, and disks that fail a sync, as the kernel says it.

strace waits for the N-th of a kind of call, and kills the process before that is made, or lets it
fail. What was acknowledged must be there afterwards with the same bytes, nothing else,
and appends continue: the next process works on with the same directory.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.scenarios.storage.strace import life
from tests.storage.test_kill import Replica, check, parse

STEPS = 60
"""Turns of a process that is not killed before."""
KILLS = ("pwritev2", "fdatasync", "fsync", "rename", "openat", "unlink", "ftruncate", "close")
LATEST = {
    "pwritev2": 200, "fdatasync": 100, "fsync": 25, "rename": 25, "openat": 150, "unlink": 30,
    "ftruncate": 12, "close": 150,
}  # fmt: skip
"""About how many of each there are in a process' life."""


class Life:
    """Processes that work on one directory, one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.replica = Replica()
        self.acknowledged: set[tuple[int, int, int, int]] = set()
        self.kills = self.ends = 0

    def one(self, seed: int, fault: str) -> int:
        """A process' life under a fault; its status."""
        lines, status = life("tests.storage.kill_target", self.directory, seed, STEPS, fault=fault)
        self.acknowledged |= set(parse(lines, self.replica))
        check(self.directory, self.acknowledged, self.replica)
        if status == -9:
            self.kills += 1
        else:
            self.ends += 1
        return status


def fault_of(dice: random.Random, call: str) -> str:
    return f"{call}:signal=KILL:when={dice.randint(1, LATEST[call])}"


@pytest.mark.timeout(120)
def test_killed_at_calls(tmp_path: Path) -> None:
    dice, life = random.Random(3), Life(tmp_path)
    for seed, call in enumerate(("pwritev2", "fdatasync", "rename", "unlink", "openat")):
        life.one(seed, fault_of(dice, call))
    assert life.kills >= 3


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_sync_that_fails(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for seed, fault in enumerate(
        ("fdatasync:error=EIO:when=20", "fsync:error=EIO:when=2", "pwritev2:error=ENOSPC:when=30")
    ):
        life.one(seed, fault)
    assert life.acknowledged


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_killed_at_every_kind_of_call(tmp_path: Path) -> None:
    dice, life, seed = random.Random(8), Life(tmp_path / "0"), 0
    wanted = 25 * len(KILLS)
    while life.kills < wanted:
        call = KILLS[seed % len(KILLS)]
        life.one(seed, fault_of(dice, call))
        seed += 1
        assert life.ends <= wanted, f"{life.ends} processes were not killed"


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_sync_that_fails(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for seed in range(1, 40):
        call = ("fdatasync", "fsync")[seed % 2]
        life.one(seed, f"{call}:error=EIO:when={seed}")
