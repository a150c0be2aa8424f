"""A local topic of several leaders becomes diskless: brokers on sockets, one plane, one store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.base.retry import Backoff
from penstock.broker.migration import leader
from penstock.broker.migration import leader as follower
from penstock.broker.server import BrokerServer
from penstock.control import (
    ControlUnavailable,
    MigrationParticipant,
    MigrationRequest,
    TopicMigration,
)
from penstock.objects import StoreUnavailable
from penstock.records import split_batches
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.test_configs import altered
from tests.broker.wire_client import WireClient, batch
from tests.storage.batches import batch as numbered

QUICK = {"broker.heartbeat.interval.ms": 20, "broker.session.timeout.ms": 60_000}
PARTITIONS = 4
NOT_LEADER = 6
STORAGE_ERROR = 56


class House:
    """Three brokers, of which the first two lead the partitions of the topic in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.brokers: list[BrokerServer] = []
        self.clients: list[WireClient] = []

    async def start(self) -> None:
        for _ in range(2):
            await self.add()
        await self.clients[0].create("t", PARTITIONS)
        await self.add()
        for broker in self.brokers:
            await broker.cluster.refresh()
        leaders = [
            partition.leader
            for partition in self.brokers[0].partitions.topics["t"].topic.partitions
        ]
        assert sorted(leaders) == [1, 1, 2, 2]
        self.leaders = leaders

    async def add(self) -> None:
        self.brokers.append(await self.cluster.start(QUICK))
        self.clients.append(await self.cluster.connect(self.brokers[-1]))

    async def produce(
        self, partition: int, data: bytes | None = None, at: int | None = None
    ) -> Any:
        """Produce at the partition's leader, or at a broker by its index."""
        client = self.clients[self.leaders[partition] - 1 if at is None else at]
        return await client.produce("t", data or batch(b"v"), partition=partition)

    async def other_clients(self) -> list[WireClient]:
        """Return another client for each broker: a connection has one request at a time."""
        return [await self.cluster.connect(broker) for broker in self.brokers]

    async def records(self, partition: int, at: int, count: int) -> list[int]:
        """Wait for so many offsets and return all: brokers learn of commits with a delay."""
        client, offset = self.clients[at], 0
        found: list[int] = []
        async with asyncio.timeout(60):
            while True:
                answer = await client.fetch("t", offset, partition=partition, max_wait=200)
                assert answer.error_code == 0
                for header in split_batches(answer.records or b""):
                    found += range(header.base_offset, header.next_offset)
                    offset = header.next_offset
                if offset >= answer.high_watermark and len(found) >= count:
                    return found

    async def diskless(self) -> list[bool]:
        for broker in self.brokers:
            await broker.cluster.refresh()
        return [broker.partitions.topics["t"].diskless for broker in self.brokers]

    async def settled(self) -> None:
        """Wait until no broker runs a switch."""
        topic_id = self.brokers[0].partitions.topics["t"].topic.topic_id
        async with asyncio.timeout(60):
            while any(broker.migrations.view(topic_id) for broker in self.brokers):
                await self.clients[0].fetch("t", max_wait=10)

    async def assert_local(self) -> None:
        """Assert that all leaders accept records, and no trace of a switch is left."""
        await self.settled()
        assert await self.diskless() == [False] * 3
        assert await self.cluster.control.running_migrations() == []
        for partition in range(PARTITIONS):
            assert (await self.produce(partition)).error_code == 0

    async def assert_diskless(self, count: int) -> None:
        """Assert that all partitions have so many records, and any broker accepts more."""
        await self.settled()
        assert await self.diskless() == [True] * 3
        for partition in range(PARTITIONS):
            assert await self.records(partition, partition % 3, count) == list(range(count))
            done = await self.produce(partition, at=2)
            assert (done.error_code, done.base_offset) == (0, count)
        assert await self.cluster.control.running_migrations() == []


@pytest.fixture
async def house(cluster: Cluster) -> House:
    house = House(cluster)
    await house.start()
    for partition in range(PARTITIONS):
        assert (await house.produce(partition, batch(b"a", b"b"))).error_code == 0
    return house


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_any_broker_accepts_the_request(house: House, asked: int) -> None:
    """The third one leads no partition."""
    answer = await altered(house.clients[asked], "t", diskless_enable="true", retention_ms="77")
    assert (answer.error_code, answer.error_message) == (0, None)
    await house.assert_diskless(2)
    topic = house.brokers[1].partitions.topics["t"].topic
    assert topic.configs["retention.ms"] == "77"
    assert {partition.leader_epoch for partition in topic.partitions} == {1}
    assert not any(broker.store.partitions for broker in house.brokers)


async def test_two_requests_make_one_switch(house: House) -> None:
    answers = await asyncio.gather(
        *[altered(client, "t", diskless_enable="true") for client in house.clients]
    )
    assert [(answer.error_code, answer.error_message) for answer in answers] == [(0, None)] * 3
    await house.assert_diskless(2)


async def test_a_stale_broker_accepts_the_request(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for shares that no broker would add."""
    third = house.brokers[2]

    async def nothing() -> None:
        """Do nothing."""

    monkeypatch.setattr(third.migrations, "look", nothing)
    assert (await altered(house.clients[0], "t", diskless_enable="true")).error_code == 0
    assert not third.partitions.topics["t"].diskless
    answer = await altered(house.clients[2], "t", diskless_enable="true")
    assert (answer.error_code, answer.error_message) == (0, None)
    assert third.partitions.topics["t"].diskless
    await house.assert_diskless(2)


async def test_a_forgotten_request_of_its_own_broker_is_deleted(house: House) -> None:
    """It was stored after its broker had failed; producers are not fenced for it."""
    broker = house.brokers[0]
    assert broker.diskless is not None
    request = broker.diskless.migration.request(broker.partitions.topics["t"].topic)
    await house.cluster.control.open_migration(request)
    async with asyncio.timeout(60):
        while await house.cluster.control.running_migrations():
            assert (await house.produce(1)).error_code == 0
    await house.assert_local()
    answer = await altered(house.clients[1], "t", diskless_enable="true")
    assert (answer.error_code, answer.error_message) == (0, None)


async def test_producers_continue_through_the_switch(house: House) -> None:
    """Each retries at the brokers in turn, with its sequence."""
    over = asyncio.Event()
    sent = [0] * PARTITIONS

    async def producing(partition: int) -> None:
        clients = await house.other_clients()
        while not over.is_set():
            data = bytes(numbered(1, producer_id=50 + partition, epoch=0, sequence=sent[partition]))
            async with asyncio.timeout(60):
                at = house.leaders[partition] - 1
                while (
                    answer := await clients[at].produce("t", data, partition=partition)
                ).error_code:
                    assert answer.error_code == NOT_LEADER
                    at = (at + 1) % 3
            assert answer.base_offset == 2 + sent[partition]
            sent[partition] += 1

    tasks = [asyncio.create_task(producing(partition)) for partition in range(PARTITIONS)]
    answer = await altered(house.clients[2], "t", diskless_enable="true")
    assert (answer.error_code, answer.error_message) == (0, None)
    reached = list(sent)
    async with asyncio.timeout(60):
        while any(now <= then for now, then in zip(sent, reached, strict=True)):
            await house.clients[2].fetch("t", max_wait=10)
    over.set()
    await asyncio.gather(*tasks)
    for partition in range(PARTITIONS):
        count = 2 + sent[partition]
        assert await house.records(partition, 2, count) == list(range(count))


async def test_a_failing_broker_reports_the_cause(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = house.cluster.objects.put

    async def refuse(key: str, pieces: Any) -> None:
        if key.startswith("archive/"):
            raise StoreUnavailable("the store is away")
        await put(key, pieces)

    monkeypatch.setattr(house.cluster.objects, "put", refuse)
    monkeypatch.setattr("penstock.diskless.topics.migration.PUT_BACKOFF", Backoff(first_ms=1))
    answer = await altered(house.clients[2], "t", diskless_enable="true")
    assert answer.error_code == STORAGE_ERROR
    assert "broker 1: the store is away" in answer.error_message
    await house.assert_local()
    monkeypatch.setattr(house.cluster.objects, "put", put)
    assert (await altered(house.clients[2], "t", diskless_enable="true")).error_code == 0
    await house.assert_diskless(3)


async def test_broker_that_is_away_is_named(house: House) -> None:
    await house.brokers[1].stop()
    await house.brokers[0].cluster.refresh()
    answer = await altered(house.clients[0], "t", diskless_enable="true")
    assert answer.error_code == STORAGE_ERROR
    assert "participating broker 2 has failed" in answer.error_message
    assert (await house.produce(house.leaders.index(1))).error_code == 0


Patched = Callable[[str, Callable[..., Awaitable[Any]]], None]


@pytest.fixture
def patched(house: House, monkeypatch: pytest.MonkeyPatch) -> Patched:
    def patch(name: str, call: Callable[..., Awaitable[Any]]) -> None:
        monkeypatch.setattr(house.cluster.control, name, call)

    return patch


async def test_fences_hold_until_the_commit_is_known(house: House, patched: Patched) -> None:
    """The first commit is lost, the second takes effect without a response."""
    real = house.cluster.control.migrate_topic
    refused: list[int] = []
    commits: list[TopicMigration] = []

    async def lossy(migration: TopicMigration) -> Any:
        commits.append(migration)
        refused.extend([(await house.produce(index)).error_code for index in range(PARTITIONS)])
        if len(commits) == 1:
            raise ControlUnavailable("nothing came back")
        answer = await real(migration)
        if len(commits) == 2:
            raise ControlUnavailable("the answer was lost")
        return answer

    patched("migrate_topic", lossy)
    client = (await house.other_clients())[0]
    answer = await altered(client, "t", diskless_enable="true")
    assert (answer.error_code, answer.error_message) == (0, None)
    assert len(commits) == 3
    assert set(refused[: 2 * PARTITIONS]) == {NOT_LEADER}
    await house.settled()
    assert await house.diskless() == [True] * 3
    for partition, last in enumerate(refused[-PARTITIONS:]):
        count = 2 if last else 3
        assert await house.records(partition, 2, count) == list(range(count))


async def test_a_fenced_broker_cancels_a_switch_that_does_not_end(
    house: House, patched: Patched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit hangs, and arrives after the others have lifted their fences."""
    real = house.cluster.control.migrate_topic
    go_on = asyncio.Event()

    async def late(migration: TopicMigration) -> Any:
        await go_on.wait()
        return await real(migration)

    patched("migrate_topic", late)
    monkeypatch.setattr(follower, "SWITCH_FENCE_SECONDS", 0.2)
    client = (await house.other_clients())[0]
    asked = asyncio.create_task(altered(client, "t", diskless_enable="true"))
    async with asyncio.timeout(60):
        while (await house.produce(house.leaders.index(2))).error_code != NOT_LEADER:
            pass
        while (await house.produce(house.leaders.index(2))).error_code == NOT_LEADER:
            pass
    assert (await house.produce(house.leaders.index(1))).error_code == NOT_LEADER
    go_on.set()
    answer = await asked
    assert answer.error_code != 0
    assert "is closed" in answer.error_message
    await house.assert_local()


async def test_a_share_with_a_lost_response_is_repeated(house: House, patched: Patched) -> None:
    real = house.cluster.control.join_migration
    lost: list[MigrationParticipant] = []

    async def lossy(request: MigrationRequest, participant: MigrationParticipant) -> None:
        await real(request, participant)
        if participant.state == "fenced" and not lost:
            lost.append(participant)
            raise ControlUnavailable("the answer was lost")

    patched("join_migration", lossy)
    assert (await altered(house.clients[2], "t", diskless_enable="true")).error_code == 0
    assert lost
    await house.assert_diskless(2)


async def test_request_of_a_broker_that_died_is_ended(house: House) -> None:
    """Its successor, or any other broker, lifts the fence."""
    topic_id = house.brokers[0].partitions.topics["t"].topic.topic_id
    plane = house.cluster.control
    await plane.register_broker(broker_id=9, host="h", port=9, rack=None, incarnation=topic_id)
    request = MigrationRequest(topic_id, topic_id, 9, topic_id)
    await plane.open_migration(request)
    ready = MigrationParticipant(broker_id=9, incarnation=topic_id, state="ready")
    await plane.join_migration(request, ready)
    async with asyncio.timeout(60):
        for partition in range(PARTITIONS):
            while (await house.produce(partition)).error_code != NOT_LEADER:
                pass
    await plane.unregister_broker(broker_id=9, incarnation=topic_id)
    await house.brokers[0].cluster.refresh()
    async with asyncio.timeout(60):
        while await plane.running_migrations():
            await house.clients[0].fetch("t", max_wait=10)
    await house.assert_local()


@pytest.fixture
def joins_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the second broker from joining switches, with a short time limit."""

    async def nothing() -> None:
        """Do nothing."""

    monkeypatch.setattr(house.brokers[1].migrations, "look", nothing)
    monkeypatch.setattr(leader, "SWITCH_JOIN_SECONDS", 0.3)


@pytest.mark.usefixtures("joins_nothing")
async def test_broker_that_never_joins_is_named(house: House) -> None:
    answer = await altered(house.clients[0], "t", diskless_enable="true")
    assert answer.error_code == STORAGE_ERROR
    assert "participating brokers [2] did not join" in answer.error_message
    await house.assert_local()


@pytest.mark.usefixtures("joins_nothing")
async def test_shares_of_dead_processes_fence_no_producers(house: House, patched: Patched) -> None:
    """The broker was restarted after it had reported that it was ready."""
    real = house.cluster.control.join_migration

    async def join(request: MigrationRequest, participant: MigrationParticipant) -> None:
        await real(request, participant)
        dead = MigrationParticipant(broker_id=2, incarnation=request.topic_id, state="ready")
        await real(request, dead)

    patched("join_migration", join)
    client = (await house.other_clients())[0]
    asked = asyncio.create_task(altered(client, "t", diskless_enable="true"))
    while not asked.done():
        assert (await house.produce(house.leaders.index(1))).error_code == 0
    assert "participating brokers [2] did not join" in (await asked).error_message
    await house.assert_local()
