"""Describe, list, delete, offset deletion, simple commits, and the limits."""

from __future__ import annotations

import struct

import pytest
from msgspec.structs import replace

from penstock.broker.groups.classic import Heartbeat, LeaveGroup, LeavingMember, Protocol, SyncGroup
from penstock.broker.groups.classic.group import subscribed_topics
from penstock.broker.groups.runtime.core import Refused, SaveFailed
from penstock.broker.groups.runtime.kinds import (
    Accepted,
    CommitCheck,
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    ListedGroups,
    ListGroups,
    OffsetDeleteCheck,
    OffsetsDeletable,
)
from tests.broker.coordination.classic.driver import LIMITS, RANGE, Driver, join_event


def subscription(*topics: str, version: int = 1) -> bytes:
    body = b"".join(struct.pack(">h", len(t.encode())) + t.encode() for t in topics)
    return struct.pack(">hi", version, len(topics)) + body + struct.pack(">i", -1)


def listed(driver: Driver, **filters: tuple[str, ...]) -> list[tuple[str, str, str]]:
    answer = driver.ask(ListGroups(**filters))
    assert isinstance(answer, ListedGroups)
    return [(group.group_id, group.state, group.group_type) for group in answer.groups]


def test_describe_hides_assignments_of_unstable_groups() -> None:
    driver = Driver()
    (first,) = driver.stable()
    answer = driver.ask(DescribeGroup(group_id="g"))
    assert isinstance(answer, DescribedGroup)
    assert (answer.state, answer.protocol_type, answer.protocol) == ("Stable", "consumer", "range")
    (member,) = answer.members
    assert member.member_id == first.member_id
    assert member.metadata == RANGE[0].metadata
    assert member.assignment == first.member_id.encode()
    driver.join()
    answer = driver.ask(DescribeGroup(group_id="g"))
    assert isinstance(answer, DescribedGroup)
    assert (answer.state, answer.protocol) == ("PreparingRebalance", "")
    assert answer.members[0].assignment == answer.members[0].metadata == b""
    assert driver.refusal(DescribeGroup(group_id="other")) == "group_id_not_found"


def test_lists_are_filtered_by_state_and_type() -> None:
    driver = Driver()
    driver.stable()
    driver.ask(CommitCheck(group_id="a-simple-one", generation=-1, member_id=""))
    everything = [("a-simple-one", "Empty", "classic"), ("g", "Stable", "classic")]
    assert listed(driver) == everything
    assert listed(driver, states=("stable",)) == everything[1:]
    assert listed(driver, states=("Empty", "Dead")) == everything[:1]
    assert listed(driver, types=("Classic",)) == everything
    assert listed(driver, types=("consumer",)) == []


def test_only_empty_groups_are_deleted() -> None:
    driver = Driver()
    (first,) = driver.stable()
    assert driver.refusal(DeleteGroup(group_id="g")) == "non_empty_group"
    assert driver.refusal(DeleteGroup(group_id="other")) == "group_id_not_found"
    assert driver.refusal(DeleteGroup(group_id="")) == "group_id_not_found"
    driver.leave(first.member_id)
    assert driver.ask(DeleteGroup(group_id="g")) == Accepted()
    assert driver.records == {}
    assert driver.state() == "absent"


def test_a_group_under_deletion_refuses_members() -> None:
    driver = Driver()
    driver.ask(CommitCheck(group_id="g", generation=-1, member_id=""))
    driver.holding = True
    token = driver.send(DeleteGroup(group_id="g"))
    assert token not in driver.answers
    assert driver.state() == "Dead"
    assert driver.refusal(join_event()) == "coordinator_not_available"
    assert driver.refusal(DeleteGroup(group_id="g")) == "group_id_not_found"
    driver.held.clear()
    driver.tell(SaveFailed(key="g", reason="locked"))
    answer = driver.answers[token]
    assert isinstance(answer, Refused)
    assert answer.error == "coordinator_not_available"
    assert driver.state() == "Empty"


def test_offsets_of_subscribed_topics_are_kept() -> None:
    driver = Driver()
    check = OffsetDeleteCheck(group_id="g", topics=("flights", "weather"))
    assert driver.refusal(check) == "group_id_not_found"
    (first,) = driver.stable(
        protocols=(Protocol(name="range", metadata=subscription("flights", "planes")),)
    )
    assert driver.ask(check) == OffsetsDeletable(subscribed=frozenset({"flights"}))
    driver.leave(first.member_id)
    assert driver.ask(check) == OffsetsDeletable(subscribed=frozenset())


def test_a_subscription_that_cannot_be_read_keeps_all_offsets() -> None:
    driver = Driver()
    driver.stable()
    check = OffsetDeleteCheck(group_id="g", topics=("flights",))
    assert driver.ask(check) == OffsetsDeletable(subscribed=frozenset({"flights"}))


def test_offsets_of_other_protocols_are_kept_while_there_are_members() -> None:
    driver = Driver()
    driver.stable(protocol_type="connect")
    assert driver.refusal(OffsetDeleteCheck(group_id="g", topics=("t",))) == "non_empty_group"


def test_subscriptions_are_read_in_all_versions_and_truncations() -> None:
    for version in range(4):
        whole = subscription("flights", "wetter-ü", version=version)
        assert subscribed_topics(whole) == ["flights", "wetter-ü"]
        for size in range(len(whole) - 4):
            assert subscribed_topics(whole[:size]) is None
    assert subscribed_topics(struct.pack(">hi", 0, 2**31 - 1)) is None
    assert subscribed_topics(struct.pack(">hi", 0, -1)) is None
    assert subscribed_topics(struct.pack(">hih", 0, 1, -1)) is None
    assert subscribed_topics(struct.pack(">hih", 0, 1, 1) + b"\xff") is None


def test_consumers_outside_a_group_commit_while_it_is_empty() -> None:
    driver = Driver()
    simple = CommitCheck(group_id="g", generation=-1, member_id="")
    assert driver.refusal(replace(simple, generation=1)) == "illegal_generation"
    assert driver.ask(simple) == Accepted()
    assert driver.ask(simple) == Accepted()
    assert driver.refusal(replace(simple, generation=0, member_id="m")) == "unknown_member_id"
    (first,) = driver.stable()
    assert driver.refusal(simple) == "unknown_member_id"
    stale = replace(simple, member_id=first.member_id)
    assert driver.refusal(stale) == "illegal_generation"


def test_the_empty_group_id_is_a_group_without_members() -> None:
    driver = Driver()
    simple = CommitCheck(group_id="", generation=-1, member_id="")
    assert driver.refusal(OffsetDeleteCheck(group_id="", topics=())) == "invalid_group_id"
    assert driver.ask(simple) == Accepted()
    assert driver.refusal(replace(simple, generation=1, member_id="m")) == "unknown_member_id"
    assert listed(driver) == [("", "Empty", "classic")]
    assert driver.ask(DeleteGroup(group_id="")) == Accepted()
    assert listed(driver) == []


def test_commits_are_signs_of_life() -> None:
    driver = Driver()
    (first,) = driver.stable()
    for _ in range(10):
        driver.advance(5_000)
        driver.ask(CommitCheck(group_id="g", generation=1, member_id=first.member_id))
    assert driver.state() == "Stable"
    driver.advance(10_000)
    assert driver.state() == "Empty"


@pytest.mark.parametrize("timeout_ms", [0, -1, 5_999, 1_800_001])
def test_session_timeouts_have_bounds(timeout_ms: int) -> None:
    driver = Driver()
    event = join_event(session_timeout_ms=timeout_ms)
    answer = driver.ask(event)
    assert isinstance(answer, Refused)
    assert answer.error == "invalid_session_timeout"
    assert str(timeout_ms) in answer.message


def test_malformed_requests_are_refused() -> None:
    driver = Driver()
    assert driver.refusal(join_event(group_id="")) == "invalid_group_id"
    assert driver.refusal(join_event(protocols=())) == "inconsistent_group_protocol"
    assert driver.refusal(join_event(protocol_type="")) == "inconsistent_group_protocol"
    assert driver.refusal(join_event("stranger")) == "unknown_member_id"
    assert driver.refusal(Heartbeat(group_id="", generation=1, member_id="m")) == "invalid_group_id"
    assert driver.refusal(SyncGroup(group_id="", generation=1, member_id="m")) == "invalid_group_id"
    leave = LeaveGroup(group_id="", members=(LeavingMember(member_id="m"),))
    assert driver.refusal(leave) == "invalid_group_id"
    many = tuple(Protocol(name=str(number), metadata=b"") for number in range(65))
    assert driver.refusal(join_event(protocols=many)) == "invalid_request"
    assert driver.state() == "absent"


def test_groups_members_and_bytes_have_limits() -> None:
    limits = replace(
        LIMITS, groups_max=2, group_max_size=2, member_bytes_max=100, group_bytes_max=150
    )
    driver = Driver(limits)
    large = (Protocol(name="range", metadata=bytes(101)),)
    assert driver.refusal(join_event(protocols=large)) == "invalid_request"
    first, second = driver.stable(2)
    assert driver.refusal(join_event()) == "group_max_size_reached"
    assert driver.refusal(join_event(first.member_id, protocols=large)) == "invalid_request"
    driver.leave(second.member_id)
    driver.join(first.member_id)
    heavy = (Protocol(name="range", metadata=bytes(95)),)
    assert driver.ask(join_event(first.member_id, protocols=heavy))
    assert driver.refusal(join_event(protocols=heavy)) == "group_max_size_reached"
    driver.ask(CommitCheck(group_id="second", generation=-1, member_id=""))
    third = CommitCheck(group_id="third", generation=-1, member_id="")
    assert driver.refusal(third) == "coordinator_not_available"
    assert driver.refusal(join_event(group_id="third")) == "coordinator_not_available"


def test_ids_handed_out_are_bounded() -> None:
    driver = Driver(replace(LIMITS, group_max_size=3))
    for number in range(3):
        assert driver.refusal(join_event(fresh_id=str(number))) == "member_id_required"
    assert driver.refusal(join_event(fresh_id="x")) == "group_max_size_reached"


def test_sync_names_the_protocol_that_is_used() -> None:
    driver = Driver()
    joined = driver.joined(driver.join())
    sync = SyncGroup(group_id="g", generation=1, member_id=joined.member_id)
    wrong_type = replace(sync, protocol_type="connect")
    assert driver.refusal(wrong_type) == "inconsistent_group_protocol"
    assert driver.refusal(replace(sync, protocol="sticky")) == "inconsistent_group_protocol"
    assert driver.refusal(replace(sync, generation=2)) == "illegal_generation"
    assert driver.synced(driver.send(replace(sync, protocol_type="consumer", protocol="range")))
