"""Stored form of a group: round trips, and truncation at every position."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.classic import Protocol
from penstock.broker.groups.classic.group import (
    GENERATIONS_PER_EPOCH,
    Group,
    Member,
    decode_group,
    encode_group,
)
from penstock.broker.groups.classic.states import GroupState
from penstock.broker.groups.runtime.kinds import GROUP_ROW, CorruptGroup
from tests.control.before.contents import GROUP_OF_ONE_RECORD

texts = st.text(max_size=12)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    group = Group(draw(texts), touched_ms=0)
    group.generation = draw(st.integers(0, 2**31 - 1))
    group.epoch = draw(st.integers(0, 50))
    for member_id in draw(st.lists(texts.filter(bool), max_size=4, unique=True)):
        extra = tuple(
            Protocol(name=name, metadata=draw(st.binary(max_size=20)))
            for name in draw(st.lists(texts.filter(lambda name: name != "common"), max_size=2))
        )
        group.add(
            Member(
                member_id=member_id,
                group_instance_id=draw(st.none() | texts.map(member_id.__add__)),
                client_id=draw(texts),
                client_host=draw(texts),
                session_timeout_ms=draw(st.integers(1, 10**6)),
                rebalance_timeout_ms=draw(st.integers(1, 10**6)),
                protocols=(*extra, Protocol(name="common", metadata=draw(st.binary(max_size=20)))),
                assignment=draw(st.binary(max_size=20)),
            ),
            "consumer",
        )
    if group.members:
        group.state = GroupState.STABLE
        group.protocol = "common"
    return group


@given(groups())
def test_there_and_back(group: Group) -> None:
    rows = encode_group(group)
    restored = decode_group(group.group_id, dict(sorted(rows.items())), epoch=50, now_ms=0)
    assert encode_group(restored) == rows
    assert list(restored.members) == list(group.members), "in their order"
    assert restored.state is group.state
    assert restored.static == group.static
    assert restored.generation_gap == max(1, 50 - group.epoch) * GENERATIONS_PER_EPOCH


@given(groups(), st.data())
def test_what_is_cut_off_is_refused(group: Group, data: st.DataObject) -> None:
    rows = encode_group(group)
    member = data.draw(st.sampled_from(sorted(rows)))
    size = data.draw(st.integers(0, len(rows[member]) - 1))
    with pytest.raises(CorruptGroup):
        decode_group(group.group_id, {**rows, member: rows[member][:size]}, epoch=1, now_ms=0)


@given(groups())
def test_the_form_of_before_is_read(group: Group) -> None:
    rows = encode_group(group)
    members = [
        {"id": member_id, **{k: v for k, v in json.loads(row).items() if k != "number"}}
        for member_id, row in rows.items()
        if member_id != GROUP_ROW
    ]
    saved = {**json.loads(rows[GROUP_ROW]), "format": 1, "members": members}
    restored = decode_group(
        group.group_id, {GROUP_ROW: json.dumps(saved).encode()}, epoch=1, now_ms=0
    )
    assert encode_group(restored) == rows


def test_a_group_of_a_migrated_database_is_read() -> None:
    restored = decode_group("g", {GROUP_ROW: GROUP_OF_ONE_RECORD}, epoch=2, now_ms=0)
    (member,) = restored.members.values()
    assert (restored.generation, restored.leader, restored.protocol) == (3, "m-1", "range")
    assert (member.member_id, member.assignment) == ("m-1", b"\x00\x02")
    assert list(encode_group(restored)) == ["", "m-1"], "the next save makes rows of it"


def test_a_member_that_leaves_changes_no_other_members_row() -> None:
    group = Group("g", touched_ms=0)
    for number in range(3):
        group.add(
            Member(
                member_id=f"m{number}",
                group_instance_id=None,
                client_id="c",
                client_host="h",
                session_timeout_ms=1,
                rebalance_timeout_ms=1,
                protocols=(Protocol(name="range", metadata=b""),),
            ),
            "consumer",
        )
    before = encode_group(group)
    group.remove("m1")
    after = encode_group(group)
    assert {**before, **after} == {**before, GROUP_ROW: after[GROUP_ROW]}
