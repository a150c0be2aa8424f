"""Conversion of groups to consumer groups and back, while members keep reading."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.broker.groups.classic import (
    Assignment,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    Protocol,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.consumer import MigrationPolicy
from penstock.broker.groups.consumer.classic_requests import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import Accepted, CommitCheck, ListGroups
from tests.broker.coordination.consumer.driver import (
    LIMITS,
    Driver,
    heartbeat,
    joining,
    numbers,
)


def subscription(*topics: str, has: dict[str, list[int]] | None = None) -> bytes:
    """Make a subscription of version 1."""
    data = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        data += struct.pack(">h", len(topic)) + topic.encode()
    data += struct.pack(">ii", -1, len(has or {}))
    for topic, found in (has or {}).items():
        data += struct.pack(">h", len(topic)) + topic.encode()
        data += struct.pack(f">i{len(found)}i", len(found), *found)
    return data


def join(
    driver: Driver, member_id: str = "", *, has: list[int] | None = None, **fields: Any
) -> Any:
    """Join by the classic protocol; the response may come later."""
    metadata = subscription("orders", has={"orders": has} if has else None)
    event = JoinGroup(
        **{
            "group_id": "g",
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": (Protocol(name="cooperative-sticky", metadata=metadata),),
            "fresh_id": str(driver._token),
            **fields,
        }
    )
    token = driver.send(event)
    answer = driver.answers.get(token, token)
    if isinstance(answer, Refused) and answer.error == "member_id_required":
        return join(driver, answer.member_id, has=has, **fields)
    return answer


def sync(driver: Driver, joined: Joined, given: dict[str, list[int]] | None = None) -> Any:
    """Sync; a leader assigns partitions of orders to members."""
    assignments = tuple(
        Assignment(member_id=member, assignment=encode_assignment({"orders": frozenset(found)}, 1))
        for member, found in (given or {}).items()
    )
    return driver.ask(
        SyncGroup(
            group_id="g",
            generation=joined.generation,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol=joined.protocol,
            assignments=assignments,
        )
    )


def read(synced: Any) -> list[int]:
    assert isinstance(synced, Synced), synced
    return sorted(decode_assignment(synced.assignment).get("orders", ()))


def beat(driver: Driver, joined: Joined) -> str:
    event = Heartbeat(group_id="g", generation=joined.generation, member_id=joined.member_id)
    answer = driver.ask(event)
    return "" if isinstance(answer, Accepted) else str(answer.error)


def kind(driver: Driver) -> str:
    (listed,) = driver.ask(ListGroups()).groups
    return str(listed.group_type)


def classic_group(driver: Driver) -> Joined:
    """Make a classic group with one member that reads everything."""
    joined = join(driver)
    assert isinstance(joined, Joined)
    assert read(sync(driver, joined, {joined.member_id: [0, 1, 2, 3, 4, 5]})) == [0, 1, 2, 3, 4, 5]
    return joined


def converted(driver: Driver) -> tuple[Joined, HeartbeatResponse]:
    """Make a group of a classic and a new member, each with half of the partitions."""
    old = classic_group(driver)
    new = driver.join("new")
    assert numbers(new.assigned) == []
    assert beat(driver, old) == "rebalance_in_progress"
    again = join(driver, old.member_id, has=[0, 1, 2, 3, 4, 5])
    assert isinstance(again, Joined)
    assert read(sync(driver, again)) == [0, 1, 2]
    assert beat(driver, again) == "rebalance_in_progress", "it is to give up the others first"
    again = join(driver, old.member_id, has=[0, 1, 2])
    assert again.leader == ""
    assert read(sync(driver, again)) == [0, 1, 2]
    new = driver.beat("new", new.epoch)
    assert numbers(new.assigned) == [3, 4, 5]
    assert beat(driver, again) == ""
    return again, new


def test_a_classic_group_becomes_a_consumer_group_while_its_member_reads() -> None:
    driver = Driver()
    old, new = converted(driver)
    assert kind(driver) == "consumer"
    assert old.generation == new.epoch
    driver.restart()
    assert kind(driver) == "consumer"
    assert beat(driver, old) == ""
    assert driver.beat("new", new.epoch).epoch == new.epoch

    def commit(member_id: str, generation: int) -> Any:
        check = CommitCheck(group_id="g", member_id=member_id, generation=generation)
        answer = driver.ask(check)
        return answer.error if isinstance(answer, Refused) else answer

    assert commit(old.member_id, old.generation) == Accepted()
    assert commit(old.member_id, 1) == "illegal_generation"


def test_when_the_last_of_the_new_protocol_leaves_the_group_is_classic_again() -> None:
    driver = Driver()
    old, new = converted(driver)
    assert driver.beat("new", -1).epoch == -1
    assert kind(driver) == "classic"
    assert beat(driver, old) == "rebalance_in_progress"
    again = join(driver, old.member_id, has=[0, 1, 2])
    assert isinstance(again, Joined)
    assert again.generation > new.epoch
    assert again.leader == old.member_id
    assert read(sync(driver, again, {old.member_id: [0, 5]})) == [0, 5]
    driver.restart()
    assert (kind(driver), beat(driver, again)) == ("classic", "")


def test_a_conversion_waits_for_the_save_under_way() -> None:
    driver = Driver()
    converted(driver)
    driver.holding = True
    token = driver.send(heartbeat("new", -1))
    assert kind(driver) == "classic", "nothing was being saved"
    assert driver.answers[token].epoch == -1
    driver = Driver()
    converted(driver)
    driver.holding = True
    driver.send(joining("more"))
    driver.send(heartbeat("more", -1))
    token = driver.send(heartbeat("new", -1))
    assert kind(driver) == "consumer"
    driver.store()
    assert kind(driver) == "classic"
    assert driver.answers[token].epoch == -1


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        (MigrationPolicy.DISABLED, False, False),
        (MigrationPolicy.UPGRADE, True, False),
        (MigrationPolicy.DOWNGRADE, False, True),
    ],
)
def test_the_migration_policy_decides_conversions(
    policy: MigrationPolicy, up: bool, down: bool
) -> None:
    driver = Driver(replace(LIMITS, migration=policy))
    classic_group(driver)
    answer = driver.ask(joining("new"))
    assert isinstance(answer, HeartbeatResponse) is up
    driver = Driver(replace(LIMITS, migration=policy))
    driver.join("new")
    assert isinstance(join(driver), Joined)
    driver.beat("new", -1)
    assert (kind(driver) == "classic") is down


def test_what_cannot_be_a_consumer_group_stays() -> None:
    driver = Driver()
    joined = join(driver, protocol_type="connect")
    sync(driver, replace(joined, protocol="cooperative-sticky"))
    assert driver.refusal(joining("new")) == "group_id_not_found"
    assert driver.refusal(heartbeat("new", 3)) == "group_id_not_found"
    driver = Driver()
    strange = (Protocol(name="mine", metadata=b"?"),)
    join(driver, protocols=strange)
    assert driver.refusal(joining("new")) == "group_id_not_found"
    assert driver.refusal(joining("new", regex="(")) == "invalid_regular_expression"


def test_empty_groups_take_either_protocol() -> None:
    driver = Driver()
    old = classic_group(driver)
    leave = LeaveGroup(group_id="g", members=(LeavingMember(member_id=old.member_id),))
    driver.ask(leave)
    first = driver.join("new")
    assert first.epoch > old.generation
    driver.beat("new", -1)
    assert kind(driver) == "consumer"
    again = join(driver)
    assert isinstance(again, Joined)
    assert (kind(driver), again.generation > first.epoch) == ("classic", True)


def test_requests_of_classic_members_are_checked() -> None:
    driver = Driver()
    driver.join("new")
    member = join(driver)
    assert isinstance(member, Joined)
    for fields, error in (
        ({"session_timeout_ms": 1}, "invalid_session_timeout"),
        ({"protocol_type": "connect"}, "inconsistent_group_protocol"),
        ({"protocols": (Protocol(name="x", metadata=b"?"),)}, "inconsistent_group_protocol"),
        ({"protocols": (Protocol(name="cooperative-sticky", metadata=b"?"),)},
         "inconsistent_group_protocol"),
    ):  # fmt: skip
        assert join(driver, "other", **fields).error == error
    unknown = replace(member, member_id="nobody")
    assert (beat(driver, unknown), sync(driver, unknown).error) == ("unknown_member_id",) * 2
    stale = replace(member, generation=member.generation + 1)
    assert (beat(driver, stale), sync(driver, stale).error) == ("illegal_generation",) * 2
    assert sync(driver, replace(member, protocol="x")).error == "inconsistent_group_protocol"
    assert beat(driver, replace(member, member_id="new")) == "unknown_member_id"

    def leave(member_id: str, instance: str | None = None) -> str:
        leaving = LeavingMember(member_id=member_id, group_instance_id=instance)
        left = driver.ask(LeaveGroup(group_id="g", members=(leaving,)))
        assert isinstance(left, Left)
        return left.members[0].error

    assert (leave("nobody"), leave("new"), leave("", "i")) == ("unknown_member_id",) * 3
    static = join(driver, group_instance_id="i")
    assert leave("x", "i") == "fenced_instance_id"
    back = join(driver, group_instance_id="i")
    assert back.member_id != static.member_id
    assert join(driver, static.member_id, group_instance_id="i").error == "fenced_instance_id"
    assert (leave("", "i"), leave(member.member_id)) == ("", "")


def test_a_classic_member_that_does_not_join_again_in_time_is_out() -> None:
    driver = Driver()
    old = classic_group(driver)
    driver.join("new")
    for _ in range(4):
        assert beat(driver, old) == "rebalance_in_progress"
        driver.advance(5_000)
        driver.beat("new", 2)
    assert beat(driver, old) == "unknown_member_id"


def test_the_bytes_of_the_consumer_protocol() -> None:
    partitions: dict[str, frozenset[int]] = {"a": frozenset([1, 2]), "ü": frozenset([0])}
    encoded = encode_assignment(partitions, 3)
    assert decode_assignment(encoded) == partitions
    assert decode_assignment(b"") == {}
    told = decode_subscription(subscription("a", "b", has={"a": [1]}))
    assert sorted(told.topics) == ["a", "b"]
    assert told.owned == {"a": frozenset([1])}
    third = b"\x00\x03" + subscription("a")[2:] + struct.pack(">ih4s", 7, 4, b"rack")
    assert decode_subscription(third).rack_id == "rack"
    for data in (encoded, subscription("a", has={"a": [1]}), third):
        for cut in range(1, len(data) - 4):
            decode = decode_assignment if data is encoded else decode_subscription
            try:
                decode(data[:cut])
            except ValueError:
                continue
            assert data is encoded, cut
