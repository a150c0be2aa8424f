"""A process that is killed at a system call of one of its threads while it compacts a log: as
segments are rewritten, get second names and replace old ones, and while the next start does
the rest. After each kill the log must have the last value of every key.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.machine import MEMORY
from tests.scenarios.storage.strace import life
from tests.storage.compaction.kill_target import opened, pairs

TARGET = "tests.storage.compaction.kill_target"
STEPS = 40
CLEANER, CHECKPOINTS, OWNER = "penstock-cleaner-0", "penstock-checkpoint", "MainThread"
CALLS = {
    (CLEANER, "pwritev2"): 15, (CLEANER, "fdatasync"): 25, (CLEANER, "openat"): 120,
    (CLEANER, "close"): 120, (CHECKPOINTS, "linkat"): 25, (CHECKPOINTS, "fsync"): 30,
    (CHECKPOINTS, "unlink"): 25, (CHECKPOINTS, "rename"): 40, (OWNER, "rename"): 40,
    (OWNER, "unlink"): 20, (OWNER, "ftruncate"): 3,
}  # fmt: skip
"""About how many of each there are in a thread's life."""
AT_START = {"rename": 6, "unlink": 12, "fsync": 8, "openat": 30}
"""The same of what a start does."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory: a kill takes nothing that was written."""
    with tempfile.TemporaryDirectory(prefix="compaction-kills-", dir=MEMORY) as made:
        yield Path(made)


class Log:
    """Processes that work on one log, one after the other, and what they have said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: list[list[Any]] = []
        self.acknowledged = self.lives = self.kills = 0
        self.left: Counter[str] = Counter()
        """How often a kill has left files with a suffix."""

    def one(self, fault: str, thread: str = "") -> None:
        """A process' life under a fault: of a thread, or from its start on."""
        self.lives += 1
        arguments = [self.directory / "log", self.lives, STEPS, *([] if thread else ["START"])]
        lines, status = life(TARGET, *arguments, fault=fault, thread=thread)
        for line in lines:
            if line == "=\n":
                self.acknowledged = len(self.told)
            elif line.endswith("\n"):
                self.told.append(json.loads(line))
        if status == -9:
            self.kills += 1
            names = (self.directory / "log" / "orders-0").glob("*.*.*")
            self.left.update({f"{name.suffixes[-2]}{name.suffix}" for name in names})
        self.check(f"life {self.lives}, {thread} {fault}")

    def check(self, what: str) -> None:
        """The next process finds what the one before left; so this is done to a copy."""
        copied = self.directory / "copied"
        shutil.copytree(self.directory / "log", copied)
        place = opened(copied, self.lives)
        end = place.log.log_end_offset
        lost = [record for record in self.told[: self.acknowledged] if record[1] >= end]
        assert not lost, f"{what}: the log ends at {end} without {lost[0]}"
        self.told = [record for record in self.told if record[1] < end]
        self.acknowledged = len(self.told)
        for kind, offset, *told in self.told:
            if kind == "send":
                now_ms, texts, producer, transactional = told
                some = pairs(texts)
                opener = producer if transactional else None
                place.note_sent(offset, some, [now_ms] * len(some), opener)
            else:
                place.note_end(offset, *told)
        for _ in range(2):
            place.check()
            place.check_clean()
            assert place.log.state.damage is None
            place.compact()
        assert not [*copied.glob("*/*.cleaned"), *copied.glob("*/*.swap")], what
        place.harness.store.close()
        shutil.rmtree(copied)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_killed_while_a_segment_is_written_and_put_in_place(directory: Path) -> None:
    log = Log(directory)
    for thread, call in ((CLEANER, "fdatasync"), (CHECKPOINTS, "linkat"), (OWNER, "rename")):
        log.one(f"{call}:signal=KILL:when=6", thread)
        log.one("unlink,rename:signal=KILL:when=1")
    assert log.kills >= 4
    assert {".log.cleaned", ".log.swap"} <= log.left.keys()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_sync_of_a_pass_that_fails(directory: Path) -> None:
    log = Log(directory)
    log.one("fdatasync:error=EIO:when=4", CLEANER)
    log.one("fsync:error=EIO:when=6", CHECKPOINTS)
    assert log.acknowledged


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_killed_at_every_kind_of_call(directory: Path) -> None:
    dice, log = random.Random(8), Log(directory)
    for _ in range(12):
        for (thread, call), latest in CALLS.items():
            log.one(f"{call}:signal=KILL:when={dice.randint(1, latest)}", thread)
            call = dice.choice([*AT_START])
            log.one(f"{call}:signal=KILL:when={dice.randint(1, AT_START[call])}")
    assert log.kills >= 12 * len(CALLS)
    wanted = {".log.cleaned", ".index.cleaned", ".log.swap", ".index.swap", ".log.deleted"}
    assert wanted <= log.left.keys(), log.left


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_sync_of_a_pass_that_fails(directory: Path) -> None:
    log = Log(directory)
    for when in range(1, 20):
        for thread, call in (
            (CLEANER, "fdatasync"),
            (CHECKPOINTS, "fsync"),
            (CHECKPOINTS, "fdatasync"),
        ):
            log.one(f"{call}:error=EIO:when={when}", thread)
