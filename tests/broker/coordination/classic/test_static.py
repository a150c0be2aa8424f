"""Static members: restarts without a rebalance, fencing, administrative removal."""

from __future__ import annotations

import pytest

from penstock.broker.groups.classic import (
    Heartbeat,
    Joined,
    LeaveGroup,
    LeavingMember,
    Left,
    LeftMember,
    Protocol,
    SyncGroup,
)
from penstock.broker.groups.runtime.core import Refused, SaveFailed
from penstock.broker.groups.runtime.kinds import Accepted, CommitCheck
from tests.broker.coordination.classic.driver import Driver, join_event


def static_pair(driver: Driver) -> tuple[Joined, Joined]:
    """Make a stable group of two static members; instance "a" leads."""
    token = driver.join(group_instance_id="a")
    driver.sync(driver.joined(token))
    late = driver.join(group_instance_id="b")
    token = driver.join(driver.joined(token).member_id, group_instance_id="a")
    first, second = driver.joined(token), driver.joined(late)
    driver.sync(first, group_instance_id="a")
    driver.sync(second, group_instance_id="b")
    return first, second


def test_a_static_member_needs_no_second_join() -> None:
    driver = Driver()
    first, second = static_pair(driver)
    assert first.generation == second.generation == 2
    assert [member.group_instance_id for member in first.members] == ["a", "b"]


def test_a_follower_restarts_without_a_rebalance() -> None:
    driver = Driver()
    first, second = static_pair(driver)
    again = driver.joined(driver.join(group_instance_id="b"))
    assert again.generation == second.generation
    assert again.leader == first.member_id
    assert again.members == ()
    assert not again.skip_assignment
    assert driver.state() == "Stable"
    synced = driver.synced(driver.sync(again, group_instance_id="b"))
    assert synced.assignment == second.member_id.encode(), "the instance keeps its assignment"


def test_a_leader_of_version_9_restarts_and_skips_the_assignment() -> None:
    driver = Driver()
    first, _ = static_pair(driver)
    again = driver.joined(driver.join(group_instance_id="a"))
    assert again.skip_assignment
    assert again.leader == again.member_id != first.member_id
    assert len(again.members) == 2
    assert driver.state() == "Stable"


def test_a_restarted_leader_of_version_8_gets_its_old_id_as_leader() -> None:
    driver = Driver()
    first, _ = static_pair(driver)
    again = driver.joined(driver.join(group_instance_id="a", skip_assignment_known=False))
    assert again.leader == first.member_id != again.member_id
    assert again.members == ()
    assert not again.skip_assignment


def test_the_old_process_is_fenced() -> None:
    driver = Driver()
    _, second = static_pair(driver)
    driver.join(group_instance_id="b")
    heartbeat = driver.heartbeat(second, group_instance_id="b")
    assert isinstance(heartbeat, Refused)
    assert heartbeat.error == "fenced_instance_id"
    fields = {
        "group_id": "g",
        "generation": second.generation,
        "member_id": second.member_id,
        "group_instance_id": "b",
    }
    assert driver.refusal(SyncGroup(**fields)) == "fenced_instance_id"  # type: ignore[arg-type]
    assert driver.refusal(CommitCheck(**fields)) == "fenced_instance_id"  # type: ignore[arg-type]
    rejoin = join_event(second.member_id, group_instance_id="b")
    assert driver.refusal(rejoin) == "fenced_instance_id"
    left = driver.leave(second.member_id, "b")
    assert isinstance(left, Left)
    assert left.members[0].error == "fenced_instance_id"


def test_a_parked_request_of_the_old_process_is_fenced() -> None:
    driver = Driver()
    first, second = static_pair(driver)
    parked = driver.join(first.member_id, group_instance_id="a")
    assert driver.state() == "PreparingRebalance"
    fresh = driver.join(group_instance_id="a")
    answer = driver.answers[parked]
    assert isinstance(answer, Refused)
    assert answer.error == "fenced_instance_id"
    driver.join(second.member_id, group_instance_id="b")
    assert driver.joined(fresh).leader == driver.joined(fresh).member_id


def test_a_restart_while_members_sync_rebalances() -> None:
    driver = Driver()
    first, second = static_pair(driver)
    tokens = [
        driver.join(first.member_id, group_instance_id="a"),
        driver.join(second.member_id, group_instance_id="b"),
    ]
    waiting = driver.sync(driver.joined(tokens[1]), group_instance_id="b")
    driver.join(group_instance_id="a")
    answer = driver.answers[waiting]
    assert isinstance(answer, Refused)
    assert answer.error == "rebalance_in_progress"
    assert driver.state() == "PreparingRebalance"


def test_a_restart_with_another_choice_of_protocol_rebalances() -> None:
    driver = Driver()
    both = tuple(Protocol(name=name, metadata=b"") for name in ("range", "sticky"))
    driver.sync(driver.joined(driver.join(group_instance_id="a", protocols=both)))
    again = driver.joined(driver.join(group_instance_id="a", protocols=both[::-1]))
    assert again.generation == 2
    assert again.protocol == "sticky"


def test_a_restart_is_answered_when_it_is_saved() -> None:
    driver = Driver()
    _, second = static_pair(driver)
    driver.holding = True
    token = driver.join(group_instance_id="b")
    assert token not in driver.answers
    driver.store_one()
    assert driver.joined(token).generation == second.generation


def test_a_rebalance_overtakes_the_save_of_a_restart() -> None:
    driver = Driver()
    _, second = static_pair(driver)
    driver.holding = True
    token = driver.join(group_instance_id="b")
    driver.advance(10_000)
    again = driver.joined(token)
    assert again.generation == second.generation + 1, "the leader expired meanwhile"
    assert again.leader == again.member_id
    driver.holding = False
    driver.store_one()
    assert driver.synced(driver.sync(again, group_instance_id="b"))


def test_a_restart_that_cannot_be_saved_is_refused_with_a_retriable_error() -> None:
    driver = Driver()
    static_pair(driver)
    driver.holding = True
    token = driver.join(group_instance_id="b")
    driver.held.clear()
    driver.tell(SaveFailed(key="g", reason="locked"))
    answer = driver.answers[token]
    assert isinstance(answer, Refused)
    assert answer.error == "coordinator_not_available"
    driver.holding = False
    again = driver.joined(driver.join(group_instance_id="b"))
    assert driver.heartbeat(again, group_instance_id="b") == Accepted()


def test_static_members_stay_while_they_restart_slowly() -> None:
    driver = Driver()
    first, _second = static_pair(driver)
    changed = (Protocol(name="range", metadata=b"changed"),)
    driver.join(first.member_id, group_instance_id="a", protocols=changed)
    driver.advance(5_000)
    assert driver.state() == "PreparingRebalance"
    driver.advance(5_000)
    assert driver.state() == "CompletingRebalance", "its session has ended"


def test_members_leave_in_one_batch_with_a_result_each() -> None:
    driver = Driver()
    _, second = static_pair(driver)
    answer = driver.ask(
        LeaveGroup(
            group_id="g",
            members=(
                LeavingMember(member_id="", group_instance_id="a"),
                LeavingMember(member_id="", group_instance_id="nobody"),
                LeavingMember(member_id="nobody"),
                LeavingMember(member_id="nobody", group_instance_id="b"),
                LeavingMember(member_id=second.member_id, group_instance_id="b"),
            ),
        )
    )
    assert answer == Left(
        members=(
            LeftMember(member_id="", group_instance_id="a"),
            LeftMember(member_id="", group_instance_id="nobody", error="unknown_member_id"),
            LeftMember(member_id="nobody", group_instance_id=None, error="unknown_member_id"),
            LeftMember(member_id="nobody", group_instance_id="b", error="fenced_instance_id"),
            LeftMember(member_id=second.member_id, group_instance_id="b"),
        )
    )
    assert driver.state() == "Empty"


@pytest.mark.parametrize("instance", ["a", "b"])
def test_a_restart_of_the_broker_and_of_a_member(instance: str) -> None:
    driver = Driver()
    first, second = static_pair(driver)
    driver.restart()
    assert driver.state() == "Stable"
    other = second if instance == "a" else first
    again = driver.joined(driver.join(group_instance_id=instance))
    assert again.generation == first.generation
    check = Heartbeat(group_id="g", generation=other.generation, member_id=other.member_id)
    assert driver.ask(check) == Accepted()
