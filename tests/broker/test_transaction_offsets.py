"""TxnOffsetCommit in all versions, with group and transaction coordinators on any broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import CommitCheck
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.server import BrokerServer
from penstock.control import GROUP_MEMBER, TRANSACTION
from tests.broker.handlers.calls import names, versions
from tests.broker.test_several_brokers import Start, known, start, until
from tests.broker.wire_client import WireClient

__all__ = ["start"]

pytestmark = pytest.mark.timeout(120)

VERSIONS: Final = list(versions("TxnOffsetCommit"))
ADDS_GROUP: Final = 5
TOPIC_IDS: Final = 6


class Producer:
    """A transactional producer that commits offsets of group `g` in topic `t`."""

    def __init__(self, client: WireClient, version: int, name: str = "tx") -> None:
        self.client = client
        self.version = version
        self.name = name
        self.identity: dict[str, Any] = {}

    async def begin(self) -> None:
        request = {"transactional_id": self.name, "transaction_timeout": 60_000}
        answer = await self.client.call(
            "InitProducerId", 4, {**request, "producer_id": -1, "producer_epoch": -1}
        )
        assert names(answer.error_code) == "none"
        self._know(answer)

    def _know(self, answer: Any) -> None:
        self.identity = {
            "transactional_id": self.name,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }

    async def add_group(self, group: str = "g") -> None:
        """Send AddOffsetsToTxn, as producers of older versions do."""
        if self.version < ADDS_GROUP:
            request = {**self.identity, "group_id": group}
            answer = await self.client.call("AddOffsetsToTxn", 3, request)
            assert names(answer.error_code) == "none"

    async def send(
        self, offsets: dict[int, int], *, to: WireClient | None = None, **more: Any
    ) -> list[str]:
        request = {
            **self.identity,
            "group_id": "g",
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": offset,
                            "committed_leader_epoch": 0,
                            "committed_metadata": "m",
                        }
                        for partition, offset in offsets.items()
                    ],
                }
            ],
            **more,
        }
        if self.version >= TOPIC_IDS:
            named = {"topics": [{"topic_id": None, "name": "t"}]}
            (topic,) = (await self.client.call("Metadata", 12, named)).topics
            request["topics"] = [
                {**asked, "topic_id": topic.topic_id} for asked in request["topics"]
            ]
        answer = await (to or self.client).call("TxnOffsetCommit", self.version, request)
        return [names(item.error_code) for topic in answer.topics for item in topic.partitions]

    async def end(self, *, commit: bool) -> None:
        version = 5 if self.version >= ADDS_GROUP else 4
        answer = await self.client.call("EndTxn", version, {**self.identity, "committed": commit})
        assert names(answer.error_code) == "none"
        if version >= ADDS_GROUP:
            self._know(answer)


async def fetched(client: WireClient, *, stable: bool, group: str = "g") -> dict[int, int | str]:
    topics = [{"name": "t", "partition_indexes": [0, 1]}]
    request = {"group_id": group, "topics": topics, "require_stable": stable}
    answer = await client.call("OffsetFetch", 7, request)
    return {
        item.partition_index: names(item.error_code) if item.error_code else item.committed_offset
        for topic in answer.topics
        for item in topic.partitions
    }


@pytest.fixture
async def lone(broker: BrokerServer, client: WireClient) -> WireClient:
    """A client of one broker, which has topic `t`."""
    await client.create("t", partitions=2)
    return client


@pytest.mark.parametrize("version", VERSIONS)
async def test_offsets_count_when_their_transaction_does(lone: WireClient, version: int) -> None:
    producer = Producer(lone, version)
    await producer.begin()
    await producer.add_group()
    assert await producer.send({0: 5, 1: 6}) == ["none", "none"]
    assert await fetched(lone, stable=False) == {0: -1, 1: -1}
    assert await fetched(lone, stable=True) == dict.fromkeys((0, 1), "unstable_offset_commit")
    await producer.end(commit=True)
    assert await fetched(lone, stable=True) == {0: 5, 1: 6}
    await producer.add_group()
    assert await producer.send({0: 9}) == ["none"]
    await producer.end(commit=False)
    assert await fetched(lone, stable=True) == {0: 5, 1: 6}


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_are_returned_for_each_partition(lone: WireClient, version: int) -> None:
    producer = Producer(lone, version)
    await producer.begin()
    if version < ADDS_GROUP:
        missing = "transaction_abortable" if version == 4 else "invalid_txn_state"
        assert await producer.send({0: 5}) == [missing]
    await producer.add_group()
    assert await producer.send({0: 5, 9: 6}) == ["none", "unknown_topic_or_partition"]
    assert await producer.send({0: 5}, group_id="") == ["invalid_group_id"]
    metadata = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 4097}
    large = [{"name": "t", "partitions": [metadata]}]
    assert await producer.send({}, topics=large) == ["offset_metadata_too_large"]
    if version >= 3:
        stranger: dict[str, Any] = {"generation_id": 1, "member_id": "stranger"}
        assert await producer.send({0: 7}, **stranger) == ["unknown_member_id"]
        assert await producer.send({0: 7}, group_id="new", **stranger) == ["illegal_generation"]
    old = {"producer_epoch": producer.identity["producer_epoch"] - 1}
    if version >= ADDS_GROUP:
        assert await producer.send({0: 7}, **old) == ["invalid_producer_epoch"]
        other = {"producer_id": producer.identity["producer_id"] + 1000}
        assert await producer.send({0: 7}, **other) == ["invalid_producer_id_mapping"]
    await producer.end(commit=True)
    assert await fetched(lone, stable=True) == {0: 5, 1: -1}


@pytest.mark.parametrize("version", [3, 5])
async def test_zombies_commit_nothing(lone: WireClient, version: int) -> None:
    zombie = Producer(lone, version)
    await zombie.begin()
    await zombie.add_group()
    assert await zombie.send({0: 5}) == ["none"]
    following = Producer(lone, version)
    await following.begin()
    refusals = {3: "invalid_txn_state", 5: "invalid_producer_epoch"}
    assert await zombie.send({0: 6}) == [refusals[version]]
    await following.add_group()
    if version == 3:
        assert await zombie.send({0: 6}) == ["invalid_producer_epoch"]
    assert await following.send({0: 7}) == ["none"]
    assert await zombie.send({0: 6}) == ["invalid_producer_epoch"]
    await following.end(commit=True)
    assert await fetched(lone, stable=True) == {0: 7, 1: -1}


async def test_a_member_that_is_replaced_meanwhile_is_refused(
    lone: WireClient, broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets may have been staged after those who follow it had looked."""
    answers = iter([None, Refused(error="illegal_generation")])

    async def check(coordinator: GroupCoordinator, asked: CommitCheck) -> Refused | None:
        assert (asked.generation, asked.member_id, asked.transactional) == (4, "m", True)
        return next(answers)

    producer = Producer(lone, 5)
    await producer.begin()
    with monkeypatch.context() as patched:
        patched.setattr(GroupCoordinator, "check_commit", check)
        refused = await producer.send({0: 5}, generation_id=4, member_id="m")
    assert refused == ["illegal_generation"]
    await producer.end(commit=False)
    assert await fetched(lone, stable=True) == {0: -1, 1: -1}


# Two brokers


@pytest.fixture
async def pair(start: Start) -> AsyncIterator[dict[int, tuple[BrokerServer, WireClient]]]:
    servers = {broker_id: await start(broker_id) for broker_id in (1, 2)}
    await until(lambda: all(known(server) == [1, 2] for server in servers.values()))
    clients = {
        broker_id: await WireClient.connect(server.kafka_address)
        for broker_id, server in servers.items()
    }
    await clients[1].create("t", partitions=2)
    await until(lambda: all("t" in broker.cluster.image.topics for broker in servers.values()))
    yield {broker_id: (servers[broker_id], clients[broker_id]) for broker_id in servers}
    for client in clients.values():
        await client.close()


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("coordinator", [1, 2])
async def test_each_coordinator_is_another_broker(
    pair: dict[int, tuple[BrokerServer, WireClient]], coordinator: int, version: int
) -> None:
    server, client = pair[coordinator]
    _, other = pair[3 - coordinator]
    image = server.cluster.image

    def owned(broker_id: int) -> str:
        found = (f"id{number}" for number in range(1000))
        return next(name for name in found if owner_of(image, name).broker_id == broker_id)

    name, group = owned(coordinator), owned(3 - coordinator)
    producer = Producer(client, version, name)
    await producer.begin()
    await producer.add_group(group)
    assert await producer.send({0: 5}, to=client, group_id=group) == ["not_coordinator"]
    assert await producer.send({0: 5}, to=other, group_id=group) == ["none"]
    members = {row.member for row in await server.control.records(TRANSACTION, [name])}
    assert GROUP_MEMBER + group in members
    assert (await fetched(other, stable=True, group=group))[0] == "unstable_offset_commit"
    await producer.end(commit=True)
    assert await fetched(other, stable=True, group=group) == {0: 5, 1: -1}
