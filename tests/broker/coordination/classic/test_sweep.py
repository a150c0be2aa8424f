"""Every state against every event: the error of the response, and the next state.

The group has had two dynamic members, the first of which leads. In the table "ok" is a response
without an error, "…" one that is pending, and an unchanged state is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.base.errors import BugError
from penstock.broker.groups.classic import (
    Assignment,
    Heartbeat,
    Joined,
    LeaveGroup,
    LeavingMember,
    Left,
    Protocol,
    SyncGroup,
)
from penstock.broker.groups.classic.group import Group
from penstock.broker.groups.classic.states import PREVIOUS, GroupState
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import (
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    OffsetDeleteCheck,
)
from tests.broker.coordination.classic.driver import Driver, join_event

Members = tuple[Joined, Joined]
OTHER = (Protocol(name="range", metadata=b"other"),)
STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
GENERATION = {"PreparingRebalance": 2, "CompletingRebalance": 3, "Stable": 2}


def in_state(state: str) -> tuple[Driver, Members]:
    driver = Driver()
    first, second = driver.stable(2)
    if state == "PreparingRebalance":
        driver.join(second.member_id, protocols=OTHER)
    elif state == "CompletingRebalance":
        driver.join(second.member_id, protocols=OTHER)
        driver.join(first.member_id)
    elif state in ("Empty", "Dead"):
        driver.leave(first.member_id)
        driver.leave(second.member_id)
    if state == "Dead":
        driver.holding = True
        driver.send(DeleteGroup(group_id="g"))
    driver.generation = GENERATION.get(state, 2)  # type: ignore[attr-defined]
    assert driver.state() == state
    return driver, (first, second)


def generation(driver: Driver) -> int:
    return int(driver.generation)  # type: ignore[attr-defined]


def outcome(driver: Driver, token: int) -> str:
    answer = driver.answers.get(token)
    if answer is None:
        return "…"
    if isinstance(answer, Refused):
        return answer.error
    if isinstance(answer, Left):
        return answer.members[0].error or "ok"
    return "ok"


def sync_of(driver: Driver, joined: Joined) -> int:
    return driver.send(
        SyncGroup(
            group_id="g",
            generation=generation(driver),
            member_id=joined.member_id,
            assignments=(Assignment(member_id=joined.member_id, assignment=b"a"),),
        )
    )


def expire(driver: Driver, members: Members) -> int:
    driver.advance(200_000)
    return -1


Action = Callable[[Driver, Members], int]
ACTIONS: dict[str, Action] = {
    "join, no id": lambda d, m: d.send(join_event(fresh_id="9")),
    "join, no id, old version": lambda d, m: d.send(
        join_event(member_id_required=False, fresh_id="9")
    ),
    "join, stranger": lambda d, m: d.send(join_event("stranger")),
    "join, new static": lambda d, m: d.send(join_event(group_instance_id="s")),
    "join, unknown instance": lambda d, m: d.send(join_event("x", group_instance_id="s")),
    "join, other protocol": lambda d, m: d.send(
        join_event(protocols=(Protocol(name="sticky", metadata=b""),))
    ),
    "rejoin, leader": lambda d, m: d.send(join_event(m[0].member_id)),
    "rejoin, follower, changed": lambda d, m: d.send(
        join_event(m[1].member_id, protocols=(Protocol(name="range", metadata=b"third"),))
    ),
    "sync, leader": lambda d, m: sync_of(d, m[0]),
    "sync, follower": lambda d, m: sync_of(d, m[1]),
    "sync, old generation": lambda d, m: d.send(
        SyncGroup(group_id="g", generation=1, member_id=m[0].member_id)
    ),
    "heartbeat": lambda d, m: d.send(
        Heartbeat(group_id="g", generation=generation(d), member_id=m[0].member_id)
    ),
    "heartbeat, old generation": lambda d, m: d.send(
        Heartbeat(group_id="g", generation=1, member_id=m[0].member_id)
    ),
    "heartbeat, stranger": lambda d, m: d.send(
        Heartbeat(group_id="g", generation=generation(d), member_id="stranger")
    ),
    "leave": lambda d, m: d.send(
        LeaveGroup(group_id="g", members=(LeavingMember(member_id=m[0].member_id),))
    ),
    "commit": lambda d, m: d.send(
        CommitCheck(group_id="g", generation=generation(d), member_id=m[0].member_id)
    ),
    "commit, old generation": lambda d, m: d.send(
        CommitCheck(group_id="g", generation=1, member_id=m[0].member_id)
    ),
    "commit, simple": lambda d, m: d.send(CommitCheck(group_id="g", generation=-1, member_id="")),
    "describe": lambda d, m: d.send(DescribeGroup(group_id="g")),
    "delete": lambda d, m: d.send(DeleteGroup(group_id="g")),
    "delete offsets": lambda d, m: d.send(OffsetDeleteCheck(group_id="g", topics=("t",))),
    "everyone expires": expire,
}

UNKNOWN, REBALANCE = "unknown_member_id", "rebalance_in_progress"
NOT_AVAILABLE, OLD = "coordinator_not_available", "illegal_generation"
MISFIT, REQUIRED = "inconsistent_group_protocol", "member_id_required"
PREPARING, COMPLETING = "PreparingRebalance", "CompletingRebalance"

# One line an event, one column a state, in the order of STATES.
TABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "join, no id": ((REQUIRED,), (REQUIRED,), (REQUIRED,), (REQUIRED,), (NOT_AVAILABLE,)),
    "join, no id, old version": (
        ("ok", COMPLETING), ("…",), ("…", PREPARING), ("…", PREPARING), (NOT_AVAILABLE,),
    ),
    "join, stranger": ((UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (NOT_AVAILABLE,)),
    "join, new static": (
        ("ok", COMPLETING), ("…",), ("…", PREPARING), ("…", PREPARING), (NOT_AVAILABLE,),
    ),
    "join, unknown instance": ((UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (NOT_AVAILABLE,)),
    "join, other protocol": ((REQUIRED,), (MISFIT,), (MISFIT,), (MISFIT,), (NOT_AVAILABLE,)),
    "rejoin, leader": (
        (UNKNOWN,), ("ok", COMPLETING), ("ok",), ("…", PREPARING), (NOT_AVAILABLE,),
    ),
    "rejoin, follower, changed": (
        (UNKNOWN,), ("…",), ("…", PREPARING), ("…", PREPARING), (NOT_AVAILABLE,),
    ),
    "sync, leader": ((UNKNOWN,), (REBALANCE,), ("ok", "Stable"), ("ok",), (NOT_AVAILABLE,)),
    "sync, follower": ((UNKNOWN,), (REBALANCE,), ("…",), ("ok",), (NOT_AVAILABLE,)),
    "sync, old generation": ((UNKNOWN,), (OLD,), (OLD,), (OLD,), (NOT_AVAILABLE,)),
    "heartbeat": ((UNKNOWN,), (REBALANCE,), ("ok",), ("ok",), (NOT_AVAILABLE,)),
    "heartbeat, old generation": ((UNKNOWN,), (OLD,), (OLD,), (OLD,), (NOT_AVAILABLE,)),
    "heartbeat, stranger": ((UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (NOT_AVAILABLE,)),
    "leave": ((UNKNOWN,), ("ok", COMPLETING), ("ok", PREPARING), ("ok", PREPARING),
              (NOT_AVAILABLE,)),
    "commit": ((UNKNOWN,), ("ok",), (REBALANCE,), ("ok",), (NOT_AVAILABLE,)),
    "commit, old generation": ((UNKNOWN,), (OLD,), (OLD,), (OLD,), (NOT_AVAILABLE,)),
    "commit, simple": (("ok",), (UNKNOWN,), (UNKNOWN,), (UNKNOWN,), (NOT_AVAILABLE,)),
    "describe": (("ok",), ("ok",), ("ok",), ("ok",), ("ok",)),
    "delete": (("ok", "absent"), ("non_empty_group",), ("non_empty_group",),
               ("non_empty_group",), ("group_id_not_found",)),
    "delete offsets": (("ok",), ("ok",), ("ok",), ("ok",), ("group_id_not_found",)),
    "everyone expires": (("…",), ("…", "Empty"), ("…", "Empty"), ("…", "Empty"), ("…",)),
}  # fmt: skip


@pytest.mark.parametrize("column", range(len(STATES)), ids=STATES)
@pytest.mark.parametrize("event", ACTIONS)
def test_state_against_event(event: str, column: int) -> None:
    driver, members = in_state(STATES[column])
    expected = TABLE[event][column]
    token = ACTIONS[event](driver, members)
    assert outcome(driver, token) == expected[0]
    assert driver.state() == (expected[1] if len(expected) > 1 else STATES[column])


def test_the_sweep_is_whole() -> None:
    assert TABLE.keys() == ACTIONS.keys()
    assert set(STATES) == {state.value for state in GroupState}


@pytest.mark.parametrize("before", GroupState, ids=lambda state: state.value)
@pytest.mark.parametrize("after", GroupState, ids=lambda state: state.value)
def test_transitions(before: GroupState, after: GroupState) -> None:
    group = Group("g", touched_ms=0)
    group.state = before
    if before in PREVIOUS[after]:
        group.enter(after)
        assert group.previous_state is before
    else:
        with pytest.raises(BugError, match=after.value):
            group.enter(after)
