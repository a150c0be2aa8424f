"""Thousands of seeded runs of a group; `simulation` states the invariants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.groups.classic import group as record
from penstock.broker.groups.classic import membership
from penstock.broker.groups.classic.group import Group, Purpose, SaveWaiter
from penstock.broker.groups.classic.rebalance import Rebalancer
from penstock.broker.groups.classic.states import UNKNOWN_MEMBER_ID
from tests.broker.coordination.classic import simulation
from tests.sampling import sample

ROOT = Path(__file__).resolve().parents[4]
SEEDS = 2_400
SEEDS_A_TEST = 200


def run_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        simulation.run(seed)


@pytest.mark.parametrize("first", sample(range(0, SEEDS, SEEDS_A_TEST), 4))
def test_seeds(first: int) -> None:
    run_seeds(first)


def test_a_seed_determines_the_run_under_any_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-m", "tests.broker.coordination.classic.simulation", "0", "30"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def no_fencing(group: Group, member_id: str, group_instance_id: str | None) -> str:
    return "" if member_id in group.members else UNKNOWN_MEMBER_ID


def answer_before_the_save(rebalancer: Rebalancer, group: Group, waiter: SaveWaiter) -> None:
    group.next_waiters.append(waiter)
    rebalancer.start_save(group)
    if waiter.purpose is Purpose.ASSIGNMENT and group.store_busy:
        membership._fulfil(rebalancer, group, waiter)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Group, "validate", no_fencing),
        (Rebalancer, "save", answer_before_the_save),
        (Group, "is_current", lambda group, waiter: True),
        (record, "GENERATIONS_PER_EPOCH", 1),
        (Rebalancer, "members_left", lambda rebalancer, group: None),
        (Rebalancer, "_expire_pending", lambda rebalancer, group, member_id: None),
    ],
    ids=["fencing", "order of saving", "overtaken saves", "generations", "leaving", "pending"],
)
def test_a_planted_fault_is_found(
    owner: object, name: str, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(simulation.Violation):
        run_seeds(0)
