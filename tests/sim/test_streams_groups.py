"""Streams groups in a seeded world; bugs that must be found; and a group of 1,000 members."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from sim.consumer_groups.plants import find
from sim.consumer_groups.world import topic
from sim.streams_groups.plants import PLANTS
from sim.streams_groups.world import run, tasks_of

from penstock.broker.groups.streams import (
    InternalTopic,
    StreamsHeartbeat,
    StreamsLimits,
    Subtopology,
    Topology,
)
from penstock.broker.groups.streams.assignor import ACTIVE, STANDBY
from tests.broker.coordination.streams.test_core import Coordinator

SEEDS = 20
PLANTED_SEEDS = 400
MEMBERS = 1_000
PARTITIONS = 4_000
MEMBERS_SECONDS_MAX = 20.0


def test_everything_holds() -> None:
    for seed in range(SEEDS):
        run(seed)


@pytest.mark.long
def test_everything_holds_for_many_seeds() -> None:
    for seed in range(SEEDS, 5_000):
        run(seed)


def test_a_seed_has_one_outcome() -> None:
    assert [run(seed) for seed in range(3)] == [run(seed) for seed in range(3)]


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert find(run, PLANTS[name], PLANTED_SEEDS)


def test_a_group_of_1000_members_gets_all_tasks_in_bounded_time() -> None:
    """The members join within the initial delay, and take their tasks from one target."""
    topics = {name: topic(name, PARTITIONS, number) for number, name in enumerate(("in", "log"), 1)}
    limits = StreamsLimits(standbys=1, assignment_interval=0, initial_delay=3_000)
    large = Coordinator(limits, topics)
    topology = Topology(
        epoch=0,
        subtopologies=(
            Subtopology(
                subtopology_id="0",
                source_topics=("in",),
                changelogs=(InternalTopic(name="log"),),
            ),
        ),
    )
    began = time.process_time()
    epochs = dict.fromkeys(range(1, MEMBERS + 1), 0)
    owned: dict[int, dict[bytes, frozenset[int]]] = {number: {} for number in epochs}
    for turn in range(3):
        for number in epochs:
            event = StreamsHeartbeat(
                group_id="g",
                member_id=f"m{number}",
                epoch=epochs[number],
                client_id="c",
                client_host="/sim",
                rebalance_timeout_ms=1_000 if turn == 0 else -1,
                topology=topology if turn == 0 else None,
                process_id=f"p{number // 4}" if turn == 0 else None,
                owned=owned[number],
            )
            response = large.ask(event)
            epochs[number] = response.epoch
            owned[number] = dict(response.assigned or {})
        large.now_ms += 4_000
    seconds = time.process_time() - began
    active = Counter(task for tasks in owned.values() for task in tasks_of(tasks, ACTIVE))
    standby = Counter(task for tasks in owned.values() for task in tasks_of(tasks, STANDBY))
    expected = {("0", number): 1 for number in range(PARTITIONS)}
    assert dict(active) == dict(standby) == expected
    assert {sum(map(len, tasks.values())) for tasks in owned.values()} == {8}
    assert seconds < MEMBERS_SECONDS_MAX
