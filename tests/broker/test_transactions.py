"""Transactions of two brokers: either coordinates, and either leads the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from penstock.base.ids import TopicPartition
from penstock.broker.groups.runtime.saving import owner_of
from penstock.broker.server import BrokerServer
from penstock.control import GROUP_MEMBER, TRANSACTION, OpenTransaction
from penstock.records.transactions import Marker
from tests.broker.test_several_brokers import Start, known, start, until
from tests.broker.wire_client import WireClient

__all__ = ["start"]

pytestmark = pytest.mark.timeout(120)

BUSY = "concurrent_transactions"


class Cluster(NamedTuple):
    """Two brokers, a client of each, and partitions of `t` by the broker that leads them."""

    brokers: dict[int, BrokerServer]
    clients: dict[int, WireClient]
    led: dict[int, list[int]]


@pytest.fixture
async def cluster(start: Start) -> AsyncIterator[Cluster]:
    brokers = {broker_id: await start(broker_id) for broker_id in (1, 2)}
    await until(lambda: all(known(broker) == [1, 2] for broker in brokers.values()))
    clients = {
        broker_id: await WireClient.connect(broker.kafka_address)
        for broker_id, broker in brokers.items()
    }
    await clients[1].create("t", partitions=8)
    await until(lambda: all("t" in broker.cluster.image.topics for broker in brokers.values()))
    led: dict[int, list[int]] = {1: [], 2: []}
    for row in brokers[1].cluster.image.topics["t"].partitions:
        led[row.leader].append(row.index)
    assert all(led.values())
    yield Cluster(brokers, clients, led)
    for client in clients.values():
        await client.close()


def owned(cluster: Cluster, broker_id: int) -> str:
    """A transactional id that a broker coordinates."""
    image = cluster.brokers[1].cluster.image
    names = (f"id{number}" for number in range(1000))
    return next(name for name in names if owner_of(image, name).broker_id == broker_id)


async def begin(client: WireClient, name: str, version: int = 5, **identity: int) -> Any:
    request = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1}
    return await client.call(
        "InitProducerId", version, {**request, "producer_epoch": -1, **identity}
    )


async def add(client: WireClient, name: str, began: Any, partitions: list[int]) -> set[str]:
    topics = [{"name": "t", "partitions": partitions}]
    answer = await client.call(
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": began.producer_id,
            "v3_and_below_producer_epoch": began.producer_epoch,
            "v3_and_below_topics": topics,
        },
    )
    return {
        result.partition_error_code.name
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }


async def end(client: WireClient, name: str, began: Any, *, commit: bool, version: int = 5) -> Any:
    identity = {"producer_id": began.producer_id, "producer_epoch": began.producer_epoch}
    request = {"transactional_id": name, **identity, "committed": commit}
    return await client.call("EndTxn", version, request)


async def described(client: WireClient, name: str) -> Any:
    answer = await client.call("DescribeTransactions", 0, {"transactional_ids": [name]})
    return answer.transaction_states[0]


async def completed(client: WireClient, name: str) -> str:
    """The state of an id once its markers are written."""
    async with asyncio.timeout(60):
        while True:
            state = str((await described(client, name)).transaction_state)
            if not state.startswith("Prepare"):
                return state
            await asyncio.sleep(0.01)


def ends(cluster: Cluster) -> list[int]:
    """Return the end offsets of the partitions, each from its leader."""
    found = {
        index: cluster.brokers[leader].partitions.partition("t", index).log_end_offset
        for leader, indexes in cluster.led.items()
        for index in indexes
    }
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("coordinator", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
async def test_markers_come_to_all_leaders(
    cluster: Cluster, coordinator: int, commit: bool
) -> None:
    client, name = cluster.clients[coordinator], owned(cluster, coordinator)
    began = await begin(client, name)
    assert (began.error_code, began.producer_epoch) == (0, 0)
    assert await add(client, name, began, list(range(7))) == {"none"}
    assert (await described(client, name)).transaction_state == "Ongoing"
    ended = await end(client, name, began, commit=commit)
    assert (ended.error_code, ended.producer_id) == (0, began.producer_id)
    assert ended.producer_epoch == 1
    assert await completed(client, name) == ("CompleteCommit" if commit else "CompleteAbort")
    assert ends(cluster) == [1] * 7 + [0]
    again = await end(client, name, began, commit=commit)
    assert (again.error_code, again.producer_epoch) == (0, 1)


async def test_the_other_broker_does_not_coordinate(cluster: Cluster) -> None:
    name = owned(cluster, 1)
    answer = await begin(cluster.clients[2], name)
    assert answer.error_code.name == "not_coordinator"
    state = await described(cluster.clients[2], name)
    assert state.error_code.name == "not_coordinator"


async def test_version_1_ends_in_its_own_epoch_and_fences_zombies(cluster: Cluster) -> None:
    client, name = cluster.clients[1], owned(cluster, 1)
    began = await begin(client, name, version=1)
    assert await add(client, name, began, [0, 1]) == {"none"}
    ended = await end(client, name, began, commit=True, version=3)
    assert ended.error_code == 0
    assert await completed(client, name) == "CompleteCommit"
    second = await begin(client, name)
    assert second.producer_epoch == 1
    assert await add(client, name, began, [0]) == {"producer_fenced"}
    fenced = await end(client, name, began, commit=True, version=1)
    assert fenced.error_code.name == "invalid_producer_epoch"
    identity = {"producer_id": began.producer_id, "producer_epoch": began.producer_epoch}
    assert (await begin(client, name, **identity)).error_code.name == "producer_fenced"
    assert (await begin(client, name, 3, **identity)).error_code.name == "invalid_producer_epoch"


async def test_a_new_producer_aborts_what_is_open(cluster: Cluster) -> None:
    client, name = cluster.clients[2], owned(cluster, 2)
    began = await begin(client, name)
    await add(client, name, began, list(range(8)))
    second = await begin(client, name)
    assert (second.error_code, second.producer_epoch) == (0, 2)
    assert ends(cluster) == [1] * 8
    [marker] = {
        Marker(
            producer.producer_id, producer.producer_epoch, producer.coordinator_epoch, commit=False
        )
        for producer in await cluster.brokers[1]
        .partitions.partition("t", cluster.led[1][0])
        .producers()
    }
    assert (marker.producer_id, marker.producer_epoch) == (began.producer_id, 1)


async def test_what_is_not_there_is_not_added(cluster: Cluster) -> None:
    client, name = cluster.clients[1], owned(cluster, 1)
    began = await begin(client, name)
    refused = await add(client, name, began, [0, 99])
    assert refused == {"unknown_topic_or_partition", "operation_not_attempted"}
    assert (await described(client, name)).transaction_state == "Empty"
    other = await client.call(
        "EndTxn", 5,
        {"transactional_id": name, "producer_id": 77, "producer_epoch": 0, "committed": True},
    )  # fmt: skip
    assert other.error_code.name == "invalid_producer_id_mapping"
    assert (await described(client, "id?")).error_code.name in (
        "transactional_id_not_found",
        "not_coordinator",
    )
    empty = await begin(client, "")
    assert empty.error_code.name == "invalid_request"


@pytest.mark.parametrize("asking", [1, 2])
async def test_leaders_ask_whichever_broker_coordinates(cluster: Cluster, asking: int) -> None:
    client, name = cluster.clients[1], owned(cluster, 1)
    began = await begin(client, name)
    link = cluster.brokers[asking].transaction_link
    where = [TopicPartition("t", index) for index in range(3)]
    identity = (int(began.producer_id), int(began.producer_epoch))

    async def ask(*partitions: TopicPartition, add: bool = False, epoch: int = 0) -> list[str]:
        answers = await link.verify(name, identity[0], epoch, partitions, add=add)
        return ["" if error is None else error.code for error in answers]

    assert await ask(*where) == ["transaction_abortable"] * 3
    assert await ask(where[0], where[1], add=True) == ["", ""]
    assert await ask(*where) == ["", "", "transaction_abortable"]
    assert await ask(where[0], epoch=1) == ["producer_fenced"]
    together = await asyncio.gather(
        *[ask(partition, add=True) for partition in where], ask(where[2])
    )
    assert together[:3] == [[""]] * 3
    ended = await end(client, name, began, commit=True)
    # As clients do: the answer to a commit may come before its markers are written.
    while (answers := await ask(where[0], add=True, epoch=ended.producer_epoch)) == [BUSY]:
        await asyncio.sleep(0.01)
    assert answers == [""], "the next one"


@pytest.mark.parametrize("asking", [1, 2])
async def test_groups_are_part_of_transactions(cluster: Cluster, asking: int) -> None:
    client, name = cluster.clients[1], owned(cluster, 1)
    began = await begin(client, name)
    opened = OpenTransaction(
        transactional_id=name,
        producer_id=int(began.producer_id),
        producer_epoch=int(began.producer_epoch),
    )
    await cluster.brokers[asking].transaction_link.add_group(opened, "readers")
    rows = await cluster.brokers[1].control.records(TRANSACTION, [name])
    assert {row.member: row.value for row in rows}[f"{GROUP_MEMBER}readers"] == opened.group_row
    assert (await end(client, name, began, commit=True)).error_code == 0
    rows = await cluster.brokers[1].control.records(TRANSACTION, [name])
    assert [row.member for row in rows] == [""]
    with pytest.raises(Exception, match="PRODUCER_FENCED"):
        await cluster.brokers[asking].transaction_link.add_group(opened, "readers")


async def test_transactions_are_listed(cluster: Cluster) -> None:
    client, name = cluster.clients[1], owned(cluster, 1)
    began = await begin(client, name)
    await add(client, name, began, [0])

    async def listed(**filters: Any) -> list[str]:
        request = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, **filters}
        answer = await client.call("ListTransactions", 1, request)
        return [
            transaction_state.transactional_id for transaction_state in answer.transaction_states
        ]

    assert await listed() == [name]
    assert await listed(state_filters=("Ongoing",)) == [name]
    assert not await listed(state_filters=("Empty",))
    assert not await listed(producer_id_filters=(0x7FFF,))
    assert not await listed(duration_filter=60_000)


async def test_a_deleted_topic_needs_no_marker(cluster: Cluster) -> None:
    client, name = cluster.clients[1], owned(cluster, 1)
    began = await begin(client, name)
    await add(client, name, began, list(range(8)))
    await client.call(
        "DeleteTopics", 6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 10_000}
    )
    assert (await end(client, name, began, commit=True)).error_code == 0
    assert await completed(client, name) == "CompleteCommit"


async def test_another_broker_finishes_what_is_decided(cluster: Cluster, start: Start) -> None:
    """The coordinator decides, and hands the id over before it has written any marker."""
    client = cluster.clients[1]
    names = (f"id{number}" for number in range(1000))
    name = next(name for name in names if crc32(name.encode()) % 6 == 2)  # of 2: 1; of 3: 3
    began = await begin(client, name)
    await add(client, name, began, cluster.led[1])
    markers = cluster.brokers[1].transactions.markers
    markers.write = lambda request: None  # type: ignore[method-assign]
    assert (await end(client, name, began, commit=True)).error_code == 0
    assert (await described(client, name)).transaction_state == "PrepareCommit"
    third = await start(3)
    await until(lambda: all(known(broker) == [1, 2, 3] for broker in cluster.brokers.values()))
    taker = await WireClient.connect(third.kafka_address)
    assert await completed(taker, name) == "CompleteCommit"
    assert [ends(cluster)[index] for index in cluster.led[1]] == [1] * len(cluster.led[1])
    assert (await described(client, name)).error_code.name == "not_coordinator"
    again = await end(taker, name, began, commit=True)
    assert (again.error_code, again.producer_epoch) == (0, 1)
    await taker.close()
