"""Offsets of share groups: described, set and deleted by requests, and swept with their topics."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.server import BrokerServer
from penstock.broker.share.values import Acknowledge
from tests.broker.share.conftest import Join, Member
from tests.broker.wire_client import WireClient, batch

ACCEPT, RENEW = Acknowledge.ACCEPT, Acknowledge.RENEW
Place = tuple[UUID, int]


@pytest.fixture
async def place(client: WireClient) -> Place:
    """Make a partition with offsets 0 to 9."""
    await client.create("t")
    await client.produce("t", batch(*(b"%d" % number for number in range(10))))
    return await Member(client, "g", "m").topic("t"), 0


async def beat(client: WireClient, epoch: int = 0, group: str = "g", member: str = "m") -> Any:
    request = {
        "group_id": group, "member_id": member, "member_epoch": epoch, "rack_id": None,
        "subscribed_topic_names": ("t",) if epoch == 0 else None,
    }  # fmt: skip
    return await client.call("ShareGroupHeartbeat", 1, request)


async def stands(client: WireClient, *, named: bool = True) -> Any:
    topics = [{"topic_name": "t", "partitions": (0,)}] if named else None
    request = {"groups": [{"group_id": "g", "topics": topics}]}
    answer = await client.call("DescribeShareGroupOffsets", 1, request)
    return answer.groups[0]


async def where(client: WireClient, *, named: bool = True) -> tuple[int, int]:
    """Return start offset and lag."""
    found = await stands(client, named=named)
    assert not found.error_code, found
    (one,) = found.topics[0].partitions
    assert not one.error_code
    return one.start_offset, one.lag


async def alter(client: WireClient, offset: int, topic: str = "t", index: int = 0) -> Any:
    partitions = [{"partition_index": index, "start_offset": offset}]
    request = {"group_id": "g", "topics": [{"topic_name": topic, "partitions": partitions}]}
    return await client.call("AlterShareGroupOffsets", 0, request)


async def delete(client: WireClient, topic: str = "t") -> Any:
    request = {"group_id": "g", "topics": [{"topic_name": topic}]}
    return await client.call("DeleteShareGroupOffsets", 0, request)


async def test_start_and_lag_are_shown(client: WireClient, place: Place, join: Join) -> None:
    assert (await stands(client)).error_code.name == "group_id_not_found"
    await beat(client)
    assert await where(client) == (-1, -1)
    one = await join("m")
    await one.acquire(place)
    assert await where(client) == (0, 10)
    await one.say(place, 0, 1, ACCEPT)
    await one.say(place, 5, 6, ACCEPT)
    assert await where(client) == await where(client, named=False) == (2, 6)


async def test_offsets_are_set_while_the_group_is_empty(
    client: WireClient, place: Place, join: Join
) -> None:
    await beat(client)
    one = await join("m")
    await one.acquire(place)
    await one.say(place, 0, 9, ACCEPT)
    assert (await alter(client, 4)).error_code.name == "non_empty_group"
    await beat(client, -1)
    answer = await alter(client, 4)
    assert not answer.error_code
    assert not answer.responses[0].partitions[0].error_code
    assert await where(client) == (4, 6)
    assert await one.acquire() == [(4, 9, 1)]
    for answer in (await alter(client, 4, index=1), await alter(client, 4, topic="u")):
        refused = answer.responses[0].partitions[0]
        assert refused.error_code.name == "unknown_topic_or_partition"
    assert (await alter(client, -3)).responses[0].partitions[0].error_code.name == "invalid_request"


async def test_offsets_of_a_new_group_are_set(client: WireClient, place: Place, join: Join) -> None:
    """kafka-share-groups.sh --reset-offsets and franz-go rely on it."""
    answer = await alter(client, 4)
    assert answer.error_code.name == "none", answer.error_message
    assert await where(client) == (4, 6)
    listed = await client.call("ListGroups", 5, {"states_filter": (), "types_filter": ("share",)})
    assert [(group.group_id, group.group_state) for group in listed.groups] == [("g", "Empty")]
    await beat(client)
    one = await join("m")
    assert await one.acquire(place) == [(4, 9, 1)]


async def test_offsets_of_a_group_of_another_kind_are_not_set(
    client: WireClient, place: Place
) -> None:
    partition = {
        "partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1,
        "committed_metadata": None,
    }  # fmt: skip
    request = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": [{"name": "t", "partitions": [partition]}],
    }  # fmt: skip
    await client.call("OffsetCommit", 8, request)
    assert (await alter(client, 4)).error_code.name == "group_id_not_found"


async def test_offsets_are_deleted(client: WireClient, place: Place, join: Join) -> None:
    await beat(client)
    one = await join("m")
    await one.acquire(place)
    assert (await delete(client)).error_code.name == "non_empty_group"
    await beat(client, -1)
    answer = await delete(client, topic="u")
    assert answer.responses[0].error_code.name == "unknown_topic_or_partition"
    assert not (await delete(client)).responses[0].error_code
    assert await where(client) == (-1, -1)
    assert await one.acquire() == [(0, 9, 1)], "it begins as a new one"


async def test_what_a_deleted_group_had_goes_with_it(
    client: WireClient, place: Place, join: Join, broker: BrokerServer
) -> None:
    await beat(client)
    one = await join("m")
    await one.acquire(place)
    refused = await client.call("DeleteGroups", 2, {"groups_names": ("g",)})
    assert refused.results[0].error_code.name == "non_empty_group"
    assert await where(client) == (0, 10)
    await beat(client, -1)
    deleted = await client.call("DeleteGroups", 2, {"groups_names": ("g",)})
    assert not deleted.results[0].error_code
    assert await broker.share.offsets.keys() == []


async def test_what_was_stored_of_a_deleted_topic_is_swept(
    client: WireClient, place: Place, join: Join, broker: BrokerServer
) -> None:
    one = await join("m")
    await one.acquire(place)
    assert await broker.share.offsets.keys() == [f"g/{place[0]}/0"]
    await client.call(
        "DeleteTopics", 6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 5000}
    )
    async with asyncio.timeout(60):
        while await broker.share.offsets.keys():
            await asyncio.sleep(0)
    assert len(broker.share.shares) == 0


async def test_a_leader_with_older_state_is_answered_with_nothing_once(
    client: WireClient, place: Place, join: Join, broker: BrokerServer
) -> None:
    """The reset bypasses the leader, as one by another broker."""
    one = await join("m")
    await one.acquire(place)
    await one.say(place, 0, 9, ACCEPT)
    broker.share.offsets._forget = lambda _: None
    await broker.share.offsets.set("g", {place: 7})
    await client.produce("t", batch(b"more"))
    assert await one.acquire() == []
    assert await one.acquire() == [(7, 10, 1)]
