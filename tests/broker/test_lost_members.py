"""Members of classic groups whose connection ends while their request waits.

As in Apache Kafka, a closed connection does not remove a member: it stays until its pending
response is due, and its session begins then and expires. So it is held at most until the end of the
rebalance plus a session's length.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient

SESSION_MS = 2_000
REBALANCE_MS = 1_000
JOIN = 5
SYNC = 4
MEMBER_ID_REQUIRED = 79


def joining(member: str) -> dict[str, Any]:
    metadata = struct.pack(">hiii", 0, 0, -1, 0)
    return {
        "group_id": "g",
        "session_timeout": SESSION_MS,
        "rebalance_timeout": REBALANCE_MS,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }


def syncing(generation: int, member: str) -> dict[str, Any]:
    return {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "assignments": [],
    }


async def new_member(client: WireClient) -> str:
    answer = await client.call("JoinGroup", JOIN, joining(""))
    assert int(answer.error_code) == MEMBER_ID_REQUIRED
    return str(answer.member_id)


async def described(client: WireClient) -> tuple[str, int]:
    """The group's state, and how many members it has."""
    request = {"groups": ["g"], "include_authorized_operations": False}
    [group] = (await client.call("DescribeGroups", 5, request)).groups
    return str(group.group_state), len(group.members)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("waits_in", ["JoinGroup", "SyncGroup"])
async def test_a_member_lost_while_waiting_expires_with_its_session(
    start_broker: StartBroker,
    connect: Callable[[BrokerServer], Awaitable[WireClient]],
    waits_in: str,
) -> None:
    broker = await start_broker(
        {"group.min.session.timeout.ms": 1, "group.initial.rebalance.delay.ms": 0}
    )
    looking, first, second = [await connect(broker) for _ in range(3)]
    leader = await new_member(first)
    joined = await first.call("JoinGroup", JOIN, joining(leader))
    assert joined.leader == leader
    follower = await new_member(second)
    second.writer.write(second.frame("JoinGroup", JOIN, joining(follower)))
    await until(lambda: _is(looking, "PreparingRebalance"), 30)
    if waits_in == "JoinGroup":
        await second.close()
    joined = await first.call("JoinGroup", JOIN, joining(leader))
    assert {member.member_id for member in joined.members} == {leader, follower}, "it counts"
    if waits_in == "SyncGroup":
        answer = await second.response("JoinGroup", JOIN)
        request = syncing(answer.generation_id, follower)
        second.writer.write(second.frame("SyncGroup", SYNC, request))
        await second.close()
    # The leader goes without a word, too: nobody is there to end what the other waits for.
    await first.close()
    await until(lambda: _is(looking, "Empty"), (2 * REBALANCE_MS + SESSION_MS) / 1000 + 30)
    assert await described(looking) == ("Empty", 0)
    await until(lambda: _connections(broker, 1), 30)


async def _is(client: WireClient, state: str) -> bool:
    return (await described(client))[0] == state


async def _connections(broker: BrokerServer, count: int) -> bool:
    """Whether so many connections are left, and no task of others'."""
    return len(broker._connections) == count
