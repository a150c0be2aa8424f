"""Core of streams groups: stored groups, and conversion of empty groups from and to classic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.consumer_groups.world import topic

from penstock.broker.groups.classic import ClassicGroups, GroupLimits, JoinGroup, Protocol
from penstock.broker.groups.runtime.core import (
    Compute,
    Computed,
    Refused,
    Reply,
    Save,
    Saved,
    Stored,
)
from penstock.broker.groups.runtime.kinds import CommitCheck, Groups, ListGroups, Turn
from penstock.broker.groups.streams import (
    InternalTopic,
    Status,
    StreamsGroups,
    StreamsHeartbeat,
    StreamsLimits,
    StreamsResponse,
    Subtopology,
    Topology,
)
from penstock.control import Topic

TOPOLOGY = Topology(
    epoch=0,
    subtopologies=(
        Subtopology(
            subtopology_id="0",
            source_regexes=("in-.*",),
            changelogs=(InternalTopic(name="log"),),
        ),
    ),
)
TOPICS = {"in-1": topic("in-1", 2, 1), "log": topic("log", 2, 2)}
ALL = {b"a0": frozenset([0, 1])}


class Coordinator:
    """Coordinator of classic and streams groups whose saves and computations succeed at once."""

    def __init__(
        self, limits: StreamsLimits | None = None, topics: Mapping[str, Topic] = TOPICS
    ) -> None:
        turn = Turn()
        self.classic = ClassicGroups(turn, GroupLimits(), epoch=1)
        self.made: list[StreamsGroups] = []

        def streams() -> StreamsGroups:
            groups = StreamsGroups(turn, limits)
            groups.topics = topics
            groups.convert_empty(self.classic)
            self.made.append(groups)
            return groups

        self.core = Groups(turn, [self.classic], {"streams": streams})
        self.rows: Mapping[str, bytes] = {}
        self.now_ms = 1_000

    def ask(self, event: Any) -> Any:
        answers = []
        pending = self.core.handle(event, self.now_ms, 1)
        while pending:
            effect = pending.pop(0)
            if isinstance(effect, Reply):
                answers.append(effect.response)
            elif isinstance(effect, Save):
                self.rows = effect.rows
                pending += self.core.handle(Saved(key=effect.key), self.now_ms)
            elif isinstance(effect, Compute):
                done = Computed(key=effect.key, ticket=effect.ticket, result=effect.work())
                pending += self.core.handle(done, self.now_ms)
        (answer,) = answers
        return answer

    def types(self) -> list[tuple[str, str]]:
        return [(found.group_id, found.group_type) for found in self.ask(ListGroups()).groups]


def beat(epoch: int = 0, **fields: Any) -> StreamsHeartbeat:
    joins: dict[str, Any] = {}
    if epoch == 0:
        joins = {
            "topology": TOPOLOGY,
            "process_id": "p",
            "rebalance_timeout_ms": 1_000,
            "owned": {},
        }
    return StreamsHeartbeat(
        **{
            "group_id": "g",
            "member_id": "m",
            "epoch": epoch,
            "client_id": "c",
            "client_host": "/h",
            **joins,
            **fields,
        }
    )


def test_streams_groups_are_constructed_at_their_first_use_and_loaded_from_rows() -> None:
    first = Coordinator()
    assert first.types() == []
    assert first.made == []
    joined = first.ask(beat())
    assert isinstance(joined, StreamsResponse)
    assert (joined.assigned, joined.statuses) == (ALL, ())
    second = Coordinator()
    second.core.load(Stored(key="g", rows=first.rows, has_offsets=True), second.now_ms)
    assert second.types() == [("g", "streams")]
    answer = second.ask(beat(joined.epoch))
    assert (answer.epoch, answer.assigned) == (joined.epoch, None)
    assert second.made[0].groups["g"].has_offsets


def test_the_first_assignment_waits_for_the_initial_delay() -> None:
    coordinator = Coordinator(StreamsLimits(initial_delay=3_000))
    joined = coordinator.ask(beat())
    assert [status for status, _ in joined.statuses] == [Status.ASSIGNMENT_DELAYED]
    assert (joined.assigned, joined.heartbeat_interval_ms) == ({}, 3_000)
    coordinator.now_ms += 3_000
    answer = coordinator.ask(beat(joined.epoch, owned={}))
    while answer.assigned != ALL:
        answer = coordinator.ask(beat(answer.epoch, owned={}))
    assert answer.statuses == ()


def join_classic() -> JoinGroup:
    return JoinGroup(
        group_id="g",
        member_id="",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(Protocol(name="range", metadata=b""),),
        fresh_id="fresh",
        member_id_required=True,
        skip_assignment_known=False,
        reason="",
    )


def commit(coordinator: Coordinator) -> None:
    check = CommitCheck(group_id="g", generation=-1, member_id="")
    assert not isinstance(coordinator.ask(check), Refused)


def test_an_empty_group_is_converted_from_and_to_the_classic_protocol() -> None:
    coordinator = Coordinator()
    commit(coordinator)
    assert coordinator.types() == [("g", "classic")]
    joined = coordinator.ask(beat())
    assert joined.assigned == ALL
    assert coordinator.types() == [("g", "streams")]
    refused = coordinator.ask(join_classic())
    assert refused.error == "group_id_not_found"
    coordinator.ask(beat(-1))
    pending = coordinator.ask(join_classic())
    assert pending.error == "member_id_required"
    assert coordinator.types() == [("g", "classic")]
    assert coordinator.classic.group("g").has_offsets
    busy = coordinator.ask(beat())
    assert "group.protocol=streams" in busy.message


def test_an_invalid_heartbeat_does_not_convert_a_classic_group() -> None:
    coordinator = Coordinator()
    commit(coordinator)
    refused = coordinator.ask(beat(topology=None))
    assert refused.error == "invalid_request"
    assert coordinator.types() == [("g", "classic")]


def test_tasks_of_former_processes_leave_no_trace() -> None:
    coordinator = Coordinator()
    for number in range(3):
        coordinator.ask(beat(process_id=f"p{number}"))
        coordinator.ask(beat(-1))
    group = coordinator.made[0].groups["g"]
    assert (group.holders, group.owners) == ({}, {})


def commits(coordinator: Coordinator, epoch: int) -> bool:
    answer = coordinator.ask(CommitCheck(group_id="g", generation=epoch, member_id="m"))
    return not isinstance(answer, Refused)


def test_an_earlier_epoch_may_commit_until_the_member_loses_a_task() -> None:
    coordinator = Coordinator()
    first = coordinator.ask(beat())
    coordinator.now_ms += 10_000
    kept = coordinator.ask(beat(first.epoch, client_id="renamed"))
    assert kept.epoch == first.epoch + 1
    assert [commits(coordinator, kept.epoch + step) for step in (-2, -1, 0, 1)] == [
        False, True, True, False,
    ]  # fmt: skip
    coordinator.now_ms += 10_000
    coordinator.ask(beat(member_id="other", process_id="q"))
    revoking = coordinator.ask(beat(kept.epoch, client_id="renamed", owned=ALL))
    assert (revoking.epoch, commits(coordinator, kept.epoch)) == (kept.epoch, True)
    lost = coordinator.ask(beat(kept.epoch, client_id="renamed", owned=revoking.assigned))
    assert lost.epoch > kept.epoch
    assert not commits(coordinator, kept.epoch)
