"""Replicas spread over brokers and racks, and manual placements are checked."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.admin_errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.broker.placement import check_assignment, place
from penstock.control import Broker


def brokers(count: int, racks: int = 0) -> list[Broker]:
    return [
        Broker(
            broker_id=broker_id,
            host="127.0.0.1",
            port=9092,
            rack=f"rack-{broker_id % racks}" if racks else None,
            incarnation=UUID(int=broker_id),
            epoch=1,
        )
        for broker_id in range(1, count + 1)
    ]


def test_leaders_go_round_and_carry_on_from_the_start() -> None:
    placed = place(brokers(3), partition_count=4, replication_factor=1, start=1)
    assert placed == ((2,), (3,), (1,), (2,))


@given(
    count=st.integers(1, 9),
    racks=st.integers(0, 4),
    partitions=st.integers(1, 40),
    start=st.integers(0, 100),
    data=st.data(),
)
def test_any_placement_is_balanced_and_spans_racks(
    count: int, racks: int, partitions: int, start: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, count))
    known = brokers(count, racks)
    rack_of = {broker.broker_id: broker.rack for broker in known}
    placed = place(known, partition_count=partitions, replication_factor=factor, start=start)
    assert len(placed) == partitions
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(b.broker_id, 0) for b in known) <= 1
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert len({rack_of[b] for b in replicas}) == min(factor, len(set(rack_of.values())))


def test_followers_of_one_leader_differ_between_turns() -> None:
    placed = place(brokers(4), partition_count=12, replication_factor=2, start=0)
    followers = {replicas[1] for replicas in placed if replicas[0] == 1}
    assert followers == {2, 3, 4}


@pytest.mark.parametrize("factor", [0, -2, 3])
def test_refuses_a_factor_that_the_brokers_cannot_hold(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=str(factor)):
        place(brokers(2), partition_count=1, replication_factor=factor, start=0)


@pytest.mark.parametrize(
    ("replicas", "factor", "named"),
    [
        ([], None, "empty"),
        ([9], None, "broker 9"),
        ([1, 1], None, "more than once"),
        ([1, 2], 1, "2 replica"),
    ],
)
def test_refuses_a_manual_assignment(replicas: list[int], factor: int | None, named: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=named):
        check_assignment(replicas, brokers(2), partition=0, replication_factor=factor)
