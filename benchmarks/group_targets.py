"""Consumer groups of 1,000 members on 10,000 partitions: targets, and what they cost the loop.

Targets are computed apart from requests; what remains for the event loop is to hand the group to
the assignor, to take over what comes of it, and to gather the rows that are saved. A member joins a
group whose target is there, and leaves again, so that most of each target is as it was.

The reference of a target is to write it down: the JSON of all assignments, in the same run. That of
the loop is the time between two heartbeats of one member, 5 s, divided by the members.

Predictions (one core): an assignor touches each partition some three times, at 0.3 µs, and each
member once, at 3 µs: 12 ms; members that read different topics cost it a heap, 1 µs a step, and a
pass over all readers of each topic: 50 ms. The loop's turns touch members, not partitions: 3 ms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from random import Random
from typing import Final
from uuid import UUID

from benchmarks.harness import Row
from penstock.base.errors import BugError
from penstock.broker.groups.consumer import ConsumerGroups, ConsumerHeartbeat, ConsumerLimits
from penstock.broker.groups.modern.group import encode_partitions
from penstock.broker.groups.runtime.assignors import (
    ASSIGNORS,
    NOTHING,
    GroupSpec,
    MemberSpec,
    Partitions,
)
from penstock.broker.groups.runtime.core import Compute, Computed, Effect, Save, Saved
from penstock.broker.groups.runtime.kinds import Groups, Turn
from penstock.control import Partition, Topic

MEMBERS: Final = 1_000
TOPICS: Final = 100
PARTITIONS: Final = 100
IDS: Final = [UUID(int=number + 1).bytes for number in range(TOPICS)]
PREDICTIONS_MS: Final = {"uniform, alike": 12.0, "uniform, different": 50.0, "range, alike": 30.0}


def _group(members: int, held: Mapping[str, Partitions], *, alike: bool) -> GroupSpec:
    dice = Random(1)
    return GroupSpec(
        members=[
            MemberSpec(
                member_id=f"m{number}",
                instance_id=None,
                topics=frozenset(IDS if alike else dice.sample(IDS, TOPICS // 2)),
                assigned=held.get(f"m{number}", NOTHING),
            )
            for number in range(members)
        ],
        partitions=dict.fromkeys(IDS, PARTITIONS),
    )


def _milliseconds(start: float) -> float:
    return (time.perf_counter() - start) * 1_000


def _targets(rounds: int) -> Iterator[Row]:
    for what, predicted in PREDICTIONS_MS.items():
        name, subscriptions = what.split(", ")
        assign, alike = ASSIGNORS[name], subscriptions == "alike"
        held = assign(_group(MEMBERS, {}, alike=alike))
        took: list[float] = []
        written: list[float] = []
        for turn in range(rounds):
            group = _group(MEMBERS + (turn + 1) % 2, held, alike=alike)
            start = time.perf_counter()
            held = assign(group)
            took.append(_milliseconds(start))
            start = time.perf_counter()
            for partitions in held.values():
                encode_partitions(partitions)
            written.append(_milliseconds(start))
        yield Row(
            name=f"target of {MEMBERS:,} members on {TOPICS * PARTITIONS:,} partitions, {what}",
            value=statistics.median(took),
            unit="ms",
            prediction=predicted,
            reference=statistics.median(written),
            reference_name="writing it as JSON",
            lower_is_better=True,
        )


class _Group:
    """A group in the core, whose saves are done at once and whose targets are computed beside."""

    def __init__(self) -> None:
        turn = Turn()
        consumer = ConsumerGroups(turn, ConsumerLimits(assignment_interval=0))
        partitions = tuple(
            Partition(index=index, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
            for index in range(PARTITIONS)
        )
        consumer.topics = {
            str(number): Topic(
                topic_id=UUID(bytes=topic_id), name=str(number), configs={}, partitions=partitions
            )
            for number, topic_id in enumerate(IDS)
        }
        self._core = Groups(turn, [consumer])
        self._left: list[Effect] = []
        self.turns: list[float] = []

    def turn(self, event: object, token: int = 0) -> None:
        start = time.perf_counter()
        effects = self._core.handle(event, 0, token)
        self.turns.append(_milliseconds(start))
        self._left += effects

    def settle(self) -> None:
        while self._left:
            effect = self._left.pop(0)
            if isinstance(effect, Save):
                self.turn(Saved(key=effect.key))
            elif isinstance(effect, Compute):
                result = effect.work()
                self.turn(Computed(key=effect.key, ticket=effect.ticket, result=result))

    def beat(self, member: int, epoch: int) -> None:
        joins = epoch == 0
        event = ConsumerHeartbeat(
            group_id="g",
            member_id=f"m{member}",
            epoch=epoch,
            client_id="",
            client_host="",
            rebalance_timeout_ms=1_000 if joins else -1,
            topics=frozenset(map(str, range(TOPICS))) if joins else None,
            owned=NOTHING if joins else None,
        )
        self.turn(event, 1)


def _turns(rounds: int) -> Iterator[Row]:
    group = _Group()
    for member in range(MEMBERS):
        group.beat(member, 0)
    group.settle()
    group.turns.clear()
    worst: list[float] = []
    for _ in range(rounds):
        for epoch in (0, -1):
            group.beat(MEMBERS, epoch)
            group.settle()
        worst.append(max(group.turns))
        group.turns.clear()
    if not worst:
        raise BugError("nothing was measured")
    yield Row(
        name=f"longest turn of the loop while one of {MEMBERS:,} members joins and leaves",
        value=statistics.median(worst),
        unit="ms",
        prediction=3.0,
        reference=5_000 / MEMBERS,
        reference_name="between two heartbeats",
        lower_is_better=True,
    )


def measure(quick: bool) -> list[Row]:
    """Milliseconds of targets, and of turns; see the module's text."""
    rounds = 5 if quick else 25
    return [*_targets(rounds), *_turns(rounds)]
