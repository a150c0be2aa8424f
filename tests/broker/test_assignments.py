"""Factors and manual assignments that the registered brokers cannot hold are refused."""

from uuid import UUID

import pytest

from penstock.broker.net.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.broker.topics.plan import check_assignment, check_factor
from penstock.control import Broker

TWO = [
    Broker(
        broker_id=broker_id,
        host="127.0.0.1",
        port=9092,
        rack=None,
        incarnation=UUID(int=broker_id),
        epoch=1,
    )
    for broker_id in (1, 2)
]


@pytest.mark.parametrize("factor", [0, -2, 3])
def test_refuses_a_factor_that_the_brokers_cannot_hold(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=str(factor)):
        check_factor(factor, TWO)


def test_takes_what_they_can_hold() -> None:
    assert check_factor(2, TWO) == 2
    assert check_assignment([2, 1], TWO, partition=0, replication_factor=2) == (2, 1)


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
        check_assignment(replicas, TWO, partition=0, replication_factor=factor)
