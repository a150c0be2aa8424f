"""Restarts of the broker: members continue, and generations never repeat."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from penstock.broker.groups.classic.group import GENERATIONS_PER_EPOCH
from penstock.broker.groups.runtime.core import Refused, Save, Saved, SaveFailed, Stored
from penstock.broker.groups.runtime.kinds import (
    GROUP_ROW,
    Accepted,
    CommitCheck,
    CorruptGroup,
    DescribedGroup,
    DescribeGroup,
    Prune,
)
from tests.broker.coordination.classic.driver import LIMITS, Core, Driver


def test_members_continue_to_heartbeat() -> None:
    driver = Driver()
    members = driver.stable(3)
    before = driver.ask(DescribeGroup(group_id="g"))
    driver.advance(9_000)
    driver.restart()
    driver.advance(9_000)
    assert driver.ask(DescribeGroup(group_id="g")) == before
    assert all(driver.heartbeat(member) == Accepted() for member in members)


def test_members_that_died_meanwhile_expire() -> None:
    driver = Driver()
    first, _ = driver.stable(2)
    driver.restart()
    driver.advance(6_000)
    driver.heartbeat(first)
    driver.advance(6_000)
    assert driver.state() == "PreparingRebalance"


def test_a_generation_that_was_not_saved_does_not_come_again() -> None:
    driver = Driver()
    (first,) = driver.stable()
    driver.leave(first.member_id)
    saved = driver.stored_generation()
    driver.holding = True
    for crashes in range(4):
        unsaved = driver.joined(driver.join()).generation
        assert unsaved == saved + max(1, crashes * GENERATIONS_PER_EPOCH)
        driver.restart()


def test_a_group_above_its_size_rebalances() -> None:
    driver = Driver()
    driver.stable(3)
    driver.limits = replace(LIMITS, group_max_size=2)
    driver.restart()
    assert driver.state() == "PreparingRebalance"


def test_a_failed_save_without_a_waiter_is_retried() -> None:
    driver = Driver()
    (first,) = driver.stable()
    driver.holding = True
    driver.leave(first.member_id)
    driver.held.clear()
    driver.tell(SaveFailed(key="g", reason="locked"))
    driver.holding = False
    assert driver.stored_generation() == 1
    driver.advance(1_000)
    assert driver.stored_generation() == 2


def test_simple_groups_come_back_by_their_offsets() -> None:
    core = Core(LIMITS)
    core.load(Stored(key="simple", rows=None, has_offsets=True), 0)
    (effect,) = core.handle(DescribeGroup(group_id="simple"), 0, 1)
    assert effect.response == DescribedGroup(group_id="simple", state="Empty")  # type: ignore[union-attr]


def test_empty_groups_without_offsets_are_forgotten_after_a_while() -> None:
    driver = Driver()
    driver.ask(CommitCheck(group_id="simple", generation=-1, member_id=""))
    (first,) = driver.stable()
    driver.leave(first.member_id)
    driver.advance(30_000)
    driver.tell(Prune(with_offsets=()))
    assert driver.state("simple") == "Empty", "its offsets may be on their way"
    driver.advance(30_000)
    driver.tell(Prune(with_offsets={"simple"}))
    assert driver.state("simple") == "Empty"
    assert driver.state("g") == "absent"
    assert driver.records == {}
    driver.tell(Prune(with_offsets=()))
    assert driver.state("simple") == "absent"


def test_a_removal_waits_for_the_save_under_way() -> None:
    driver = Driver()
    (first,) = driver.stable()
    driver.holding = True
    driver.leave(first.member_id)
    driver.advance(60_000)
    driver.tell(Prune(with_offsets=()))
    assert len(driver.held) == 1
    driver.store_one()
    (removal,) = driver.held
    assert removal == Save(key="g", rows={}, deletes_offsets=True)
    driver.tell(Saved(key="g"))
    assert driver.state() == "absent"


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"format":3,"leader":"","members":[]}'])
def test_a_corrupt_record_is_refused(damage: str) -> None:
    driver = Driver()
    driver.stable()
    rows = {**driver.records["g"], GROUP_ROW: damage.encode()}
    with pytest.raises(CorruptGroup, match="'g'"):
        Core().load(Stored(key="g", rows=rows), 0)


def test_members_without_their_group_are_refused() -> None:
    driver = Driver()
    driver.stable()
    rows = {member: row for member, row in driver.records["g"].items() if member != GROUP_ROW}
    with pytest.raises(CorruptGroup):
        Core().load(Stored(key="g", rows=rows), 0)


@pytest.mark.parametrize("field", ["number", "protocols", "assignment", "session_timeout_ms"])
def test_a_record_without_a_field_is_refused(field: str) -> None:
    driver = Driver()
    (member,) = driver.stable()
    saved = json.loads(driver.records["g"][member.member_id])
    saved.pop(field)
    rows = {**driver.records["g"], member.member_id: json.dumps(saved).encode()}
    with pytest.raises(CorruptGroup):
        Core().load(Stored(key="g", rows=rows), 0)


def test_a_record_whose_protocol_no_member_has_is_refused() -> None:
    driver = Driver()
    driver.stable()
    group = json.loads(driver.records["g"][GROUP_ROW])
    rows = {**driver.records["g"], GROUP_ROW: json.dumps({**group, "protocol": "other"}).encode()}
    with pytest.raises(CorruptGroup, match="other"):
        Core().load(Stored(key="g", rows=rows), 0)


def test_requests_to_a_coordinator_that_forgot_the_group() -> None:
    driver = Driver()
    (first,) = driver.stable()
    driver.core.forget("g")
    answer = driver.heartbeat(first)
    assert isinstance(answer, Refused)
    assert answer.error == "unknown_member_id"
    assert driver.core.next_deadline_ms() is None
