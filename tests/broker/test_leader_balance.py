"""Leaders go back to preferred replicas by themselves, unless that is turned off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.leader_balance import imbalanced
from tests.broker.test_cluster_status import asked, facts
from tests.broker.test_replicated import Cluster, until

pytestmark = pytest.mark.timeout(300)
INTERVAL = "leader.imbalance.check.interval.seconds"


@pytest.fixture
async def trio(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    made.settings[INTERVAL] = 1
    async with made.running(1, 2, 3):
        yield made


def preferred_lead(cluster: Cluster) -> bool:
    image = next(iter(cluster.brokers.values())).cluster.image
    return all(row.leader == row.replicas[0] for row in image.topics["t"].partitions)


async def test_a_broker_that_comes_back_leads_again(trio: Cluster) -> None:
    leader = await trio.create()
    assert await trio.produce(b"before") == 0
    await trio.stop(leader)
    via = next(iter(trio.brokers.values()))
    await until(lambda: via.cluster.image.topics["t"].partitions[0].leader != leader)
    assert imbalanced(via.cluster.image, 10) == {leader}
    assert imbalanced(via.cluster.image, 100) == frozenset()
    await trio.start(leader)
    await until(lambda: preferred_lead(trio))
    assert imbalanced(via.cluster.image, 0) == frozenset()
    assert await trio.produce(b"after") == 1


async def test_leaders_stay_where_they_are_when_told_to(tmp_path: Path, postgres_url: str) -> None:
    made = Cluster(tmp_path, postgres_url)
    made.settings |= {INTERVAL: 1, "auto.leader.rebalance.enable": False}
    async with made.running(1, 2, 3):
        leader = await made.create()
        await made.stop(leader)
        via = next(iter(made.brokers.values()))
        await until(lambda: via.cluster.image.topics["t"].partitions[0].leader != leader)
        await made.start(leader)
        await until(lambda: leader in via.cluster.image.topics["t"].partitions[0].isr)
        (balance,) = {
            bool(broker.replicas._balance.due(1e12, broker.cluster.image, []))
            for broker in made.brokers.values()
            if broker.replicas is not None
        }
        assert not balance
        assert not preferred_lead(made)
        advice = json.loads(await asked(made, "cluster", "advise", "--output", "json"))
        leads = {row["broker"]: row["leads"] for row in advice["brokers"]}
        assert leads == {row["broker"]: row["leads"] for row in (await facts(made))["brokers"]}
        assert {row["broker"]: row["preferred"] for row in advice["brokers"]} == {
            broker_id: int(broker_id == leader) for broker_id in (1, 2, 3)
        }
        assert leads[leader] == 0
