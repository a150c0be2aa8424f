"""Leaders go back to preferred replicas by themselves, unless that is turned off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.partitions.leadership import (
    BATCH_MAX,
    BATCH_SECONDS,
    LeaderBalance,
    imbalanced,
)
from penstock.control import MetadataImage, Partition, Topic
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


ROWS = st.lists(
    st.tuples(st.permutations([1, 2, 3]), st.integers(0, 2), st.booleans(), st.integers(0, 1)),
    max_size=60,
)


@given(ROWS, st.integers(0, 100))
def test_leaders_go_back_in_small_batches(
    rows: list[tuple[list[int], int, bool, int]], percentage: int
) -> None:
    """An oracle counts, for each broker, the partitions that prefer it and are led by others."""
    partitions = [
        Partition(
            index=index, leader=replicas[leader], leader_epoch=1, replicas=tuple(replicas),
            isr=tuple(replicas if in_sync else replicas[1:]), move=move,
        )
        for index, (replicas, leader, in_sync, move) in enumerate(rows)
    ]  # fmt: skip
    settings = BrokerSettings(leader_imbalance_per_broker_percentage=percentage)
    interval = settings.leader_imbalance_check_interval_seconds
    balance, now = LeaderBalance(settings, 0.0), float(interval)
    leading = SimpleNamespace(leads=True, successor=None, may_inherit=lambda broker_id: True)
    logs: list[Any] = [_Log(leading, row.index) for row in partitions]
    while True:
        topic = Topic(topic_id=UUID(int=1), name="t", configs={}, partitions=tuple(partitions))
        image = MetadataImage(version=1, cluster_id="c", topics={"t": topic})
        assert balance.due(now - 0.5, image, []) == {}, "it looks no earlier"
        successors = balance.due(now, image, zip(logs, partitions, strict=True))
        assert len(successors) <= BATCH_MAX
        over = {
            broker_id
            for broker_id in (1, 2, 3)
            if 100 * sum(_prefers(row, broker_id) and row.leader != broker_id for row in partitions)
            > percentage * sum(_prefers(row, broker_id) for row in partitions)
        }
        possible = [
            row
            for row in partitions
            if row.replicas[0] in over and row.leader != row.replicas[0]
            and row.replicas[0] in row.isr and not row.move
        ]  # fmt: skip
        assert len(successors) == min(BATCH_MAX, len(possible))
        if not successors:
            break
        for log, successor in successors.items():
            index = cast("_Log", log).index
            assert successor == partitions[index].replicas[0]
            partitions[index] = replace(partitions[index], leader=successor)
        now += BATCH_SECONDS if len(possible) > BATCH_MAX else interval


class _Log:
    """A log that this broker leads."""

    def __init__(self, leading: Any, index: int) -> None:
        self.leading = leading
        self.index = index


def _prefers(row: Partition, broker_id: int) -> bool:
    return row.replicas[0] == broker_id


async def test_leaders_stay_without_automatic_rebalance(tmp_path: Path, postgres_url: str) -> None:
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
