"""The cores of replication in every order of events, within bounds; and bugs that must be found.

`python -m sim.replication --full` and `--plants` are the whole of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim.replication.bounds import QUICK, Bounds
from sim.replication.exploring import Result, explore
from sim.replication.folding import quiet_states
from sim.replication.plants import HARMLESS, PLANTS

pytestmark = pytest.mark.timeout(1_800)

SHY = {"mark-before-truncation", "truncate-at-start-only", "cut-stays-durable", "no-truncation",
       "leader-skips-own-fence", "promise-not-synced", "accept-lower-epoch", "move-after-cancel",
       "truncate-below-commit", "limbo-not-durable", "absent-from-too-few",
       "stream-outlives-promise", "answer-before-sync", "end-found-without-fencing-reads",
       "hole-ends-the-log", "limbo-answers-absent", "limbo-ends-at-mark", "limbo-forgets-promise",
       "literal-fence-invariant", "move-before-learnt", "new-placement-fenced", "no-write-back",
       "open-without-compare", "present-by-offset", "reuse-epoch", "seal-at-one-mark",
       "sync-covers-all"}  # fmt: skip
"""Planted bugs that take more than a second of exploring."""


# The moves of replicas are the largest of the quick ones.
SAMPLE = [
    pytest.param(bounds, marks=pytest.mark.long) if bounds.target else bounds for bounds in QUICK
]


def holds(bounds: Bounds) -> Result:
    result = explore(bounds)
    print(f"{bounds}: {result.states} states, {result.steps} steps, {result.cpu_seconds:.1f} CPU s")
    assert not result.trace, "\n".join(result.trace)
    assert result.complete
    return result


@pytest.mark.parametrize("bounds", SAMPLE, ids=str)
def test_everything_holds(bounds: Bounds) -> None:
    assert holds(bounds).states > 100


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in PLANTS],
)
def test_a_planted_bug_is_found(name: str) -> None:
    result = explore(PLANTS[name].bounds, PLANTS[name])
    assert result.trace, f"{name} was not found in {result.states} states"
    assert result.trace[-1].startswith("VIOLATED: ")
    assert len(result.trace) == result.depth + 1, "the way there is missing"


@pytest.mark.long
@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_is_not_reported(name: str) -> None:
    result = explore(HARMLESS[name].bounds, HARMLESS[name])
    assert result.complete
    assert not result.trace, "\n".join(result.trace)


@pytest.mark.long
def test_folding_leaves_no_state_out() -> None:
    folded = Bounds(claims=1, entries=1)
    found = quiet_states(folded) ^ quiet_states(replace(folded, syncs="separate"))
    assert not found, f"{len(found)} states are reached in one way only"


def test_exploring_gives_the_same_each_time() -> None:
    bounds = Bounds(claims=1, entries=1)
    assert explore(bounds)[:3] == explore(bounds)[:3]
