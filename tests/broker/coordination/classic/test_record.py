"""The saved form of a group: there and back, and truncated at every position."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.coordination.classic import CorruptGroup, Protocol
from penstock.broker.coordination.classic.group import Group, Member
from penstock.broker.coordination.classic.limits import GENERATIONS_PER_EPOCH
from penstock.broker.coordination.classic.record import decode_group, encode_group
from penstock.broker.coordination.classic.states import GroupState

texts = st.text(max_size=12)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    group = Group(draw(texts), touched_ms=0)
    group.generation = draw(st.integers(0, 2**31 - 1))
    group.version = draw(st.integers(0, 2**53))
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
    record = encode_group(group)
    restored = decode_group(record, epoch=50, now_ms=0)
    assert encode_group(restored) == record
    assert restored.state is group.state
    assert restored.static == group.static
    assert restored.generation_gap == max(1, 50 - group.epoch) * GENERATIONS_PER_EPOCH


@given(groups(), st.data())
def test_what_is_cut_off_is_refused(group: Group, data: st.DataObject) -> None:
    record = encode_group(group)
    size = data.draw(st.integers(0, len(record.state) - 1))
    with pytest.raises(CorruptGroup):
        decode_group(replace(record, state=record.state[:size]), epoch=1, now_ms=0)
