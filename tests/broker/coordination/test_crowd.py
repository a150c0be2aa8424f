"""A thousand members on ten thousand partitions, which join and leave in masses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.groups.consumer import ConsumerHeartbeat, DescribedConsumerGroup
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import NOTHING, Partitions
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.metadata import ClusterMetadata
from penstock.control import SqliteControlPlane

MEMBERS, TOPICS, PARTITIONS = 1_000, 10, 1_000
HEARTBEAT_SECONDS = 5.0
SESSION_SECONDS = 45.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Follower:
    """Stand-in for a partition without data."""

    async def prepare(self, delta: object) -> None: ...

    def apply(self, delta: object) -> None: ...

    async def clean_up(self, delta: object) -> None: ...


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[GroupCoordinator]:
    """Make a coordinator over a database in a file, with topics."""
    control = SqliteControlPlane(tmp_path / "control.sqlite")
    await control.start()
    await control.register_broker(broker_id=1, host="h", port=1, rack=None, incarnation=UUID(int=1))
    for number in range(TOPICS):
        await control.create_topic(
            name=f"t{number}",
            topic_id=UUID(int=number + 1),
            partitions=[[1]] * PARTITIONS,
            configs={},
        )
    cluster = ClusterMetadata(control, Follower())
    await cluster.refresh()
    coordinator = GroupCoordinator(
        settings=load(BrokerSettings, {}),
        control=control,
        clock=SYSTEM_CLOCK,
        cluster=cluster,
    )
    coordinator.start()
    yield coordinator
    await coordinator.stop()
    await control.close()


class Member:
    """A member that follows assignments at once; `slowest` is its longest wait for a response."""

    def __init__(self, coordinator: GroupCoordinator, number: int) -> None:
        self.coordinator = coordinator
        self.member_id = f"m{number:05}"
        self.epoch = 0
        self.owned: Partitions = NOTHING
        self.slowest = 0.0
        self.fenced = 0
        self.task: asyncio.Task[None] | None = None

    async def beat(self, epoch: int) -> None:
        joins = epoch == 0
        started = time.monotonic()
        answer = await self.coordinator.call(
            ConsumerHeartbeat(
                group_id="crowd",
                member_id=self.member_id,
                epoch=epoch,
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=60_000 if joins else -1,
                topics=frozenset(f"t{number}" for number in range(TOPICS)) if joins else None,
                owned=NOTHING if joins else self.owned,
            )
        )
        self.slowest = max(self.slowest, time.monotonic() - started)
        if isinstance(answer, Refused):
            assert answer.error in ("fenced_member_epoch", "unknown_member_id"), answer
            self.fenced += 1
            self.epoch, self.owned = 0, NOTHING
            return
        assert isinstance(answer, HeartbeatResponse)
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.owned = answer.assigned

    async def live(self, seconds: float = 0.0) -> None:
        """Join and heartbeat, at once after a change of the assignment."""
        await asyncio.sleep(seconds)
        while True:
            told = self.owned
            await self.beat(self.epoch)
            if self.owned == told:
                await asyncio.sleep(HEARTBEAT_SECONDS)

    def start(self, seconds: float = 0.0) -> None:
        self.task = asyncio.create_task(self.live(seconds))

    async def stop(self) -> None:
        """Leave after the heartbeat under way."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.beat(-1)


async def settle(coordinator: GroupCoordinator, members: list[Member]) -> float:
    """Wait until every partition has one member and the load is balanced; return the seconds."""
    started = time.monotonic()
    share = TOPICS * PARTITIONS // len(members)
    async with asyncio.timeout(300):
        while True:
            group = await coordinator.describe("crowd")
            sizes = [sum(map(len, member.owned.values())) for member in members]
            there = isinstance(group, DescribedConsumerGroup) and len(group.members) == len(members)
            stable = there and group is not None and group.state == "Stable"
            if stable and sum(sizes) == TOPICS * PARTITIONS and max(sizes) - share <= 1:
                break
            await asyncio.sleep(0.1)
    owners = {(t, n) for m in members for t, numbers in m.owned.items() for n in numbers}
    assert len(owners) == TOPICS * PARTITIONS, "a partition is two members' own"
    return time.monotonic() - started


async def test_a_thousand_members_are_balanced_and_churn_leaves_others_alone(
    coordinator: GroupCoordinator,
) -> None:
    members = [Member(coordinator, number) for number in range(MEMBERS)]
    for member in members:
        member.start()
    took = await settle(coordinator, members)
    waits = sorted(member.slowest for member in members)
    print(
        f"{MEMBERS} joined and balanced in {took:.1f} s, the slowest answer took {waits[-1]:.2f} s"
    )

    for member in members:
        member.slowest = 0.0
    storm = [Member(coordinator, MEMBERS + number) for number in range(MEMBERS)]
    for number, member in enumerate(storm):
        member.start(number / MEMBERS * 10)
    await asyncio.sleep(12)
    stops = [asyncio.create_task(member.stop()) for member in storm]
    await asyncio.gather(*stops)
    slowest = max(member.slowest for member in members)
    took = await settle(coordinator, members)
    slowest = max(slowest, *(member.slowest for member in members))
    print(f"after {MEMBERS} joins and leaves: balanced {took:.1f} s later, slowest {slowest:.2f} s")
    assert slowest < SESSION_SECONDS / 9
    assert not any(member.fenced for member in members)
    for member in members:
        assert member.task is not None
        member.task.cancel()
    await asyncio.wait([member.task for member in members if member.task])
