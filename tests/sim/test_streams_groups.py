"""Streams groups in a seeded world; bugs that must be found; and a group of 1,000 members."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from sim.consumer_groups.plants import planted
from sim.consumer_groups.world import Violation, topic
from sim.streams_groups.plants import PLANTS
from sim.streams_groups.world import run, tasks_of

from penstock.base.errors import BugError
from penstock.broker.groups.runtime.core import Compute, Computed, Effect, Reply, Save, Saved
from penstock.broker.groups.runtime.kinds import Groups, Turn
from penstock.broker.groups.streams import (
    InternalTopic,
    StreamsGroups,
    StreamsHeartbeat,
    StreamsLimits,
    StreamsResponse,
    Subtopology,
    Topology,
)
from penstock.broker.groups.streams.assignor import ACTIVE, STANDBY

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
    with planted(PLANTS[name]) as plant:
        for seed in range(PLANTED_SEEDS):
            try:
                run(seed, plant)
            except (Violation, BugError) as found:
                print(found)
                return
    pytest.fail(f"{name} was not found by {PLANTED_SEEDS} seeds")


class _Large:
    """Coordinator of one large group, whose saves and computations succeed at once."""

    def __init__(self) -> None:
        turn = Turn()
        limits = StreamsLimits(standbys=1, assignment_interval=0, initial_delay=3_000)
        streams = StreamsGroups(turn, limits)
        streams.topics = {
            name: topic(name, PARTITIONS, number) for number, name in enumerate(("in", "log"), 1)
        }
        self.core = Groups(turn, [streams])
        self.responses: dict[int, StreamsResponse] = {}
        self.now_ms = 0

    def send(self, event: object, token: int) -> None:
        pending: list[Effect] = self.core.handle(event, self.now_ms, token)
        while pending:
            effect = pending.pop(0)
            if isinstance(effect, Reply):
                assert isinstance(effect.response, StreamsResponse), effect.response
                self.responses[effect.token] = effect.response
            elif isinstance(effect, Save):
                pending += self.core.handle(Saved(key="g"), self.now_ms)
            elif isinstance(effect, Compute):
                done = Computed(key="g", ticket=effect.ticket, result=effect.work())
                pending += self.core.handle(done, self.now_ms)


def test_a_group_of_1000_members_gets_all_tasks_in_bounded_time() -> None:
    """The members join within the initial delay, and take their tasks from one target."""
    large = _Large()
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
            large.send(event, number)
            response = large.responses.pop(number)
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
