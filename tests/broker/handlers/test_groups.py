"""Group requests over the wire: every version, and where each puts its errors."""

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.broker.groups.classic.rebalance import RESERVED_ID_DELAY_MS
from penstock.broker.server import BrokerServer
from penstock.control import ControlUnavailable, MetadataImage
from tests.broker.handlers.calls import call, names, versions


def subscription(*topics: str) -> bytes:
    """A consumer protocol subscription, version 0."""
    encoded = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + encoded + struct.pack(">i", -1)


async def join(
    broker: BrokerServer,
    group: str,
    *,
    version: int = 9,
    member: str = "",
    topics: tuple[str, ...] = ("a",),
    session_ms: int = 10_000,
    protocols: tuple[str, ...] = ("range",),
    instance: str | None = None,
    again: bool = True,
) -> Any:
    """Join; with the member id that the broker asks for, if it does and `again` is set."""
    request = {
        "group_id": group,
        "session_timeout": session_ms,
        "rebalance_timeout": 10_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": subscription(*topics)} for name in protocols],
        "reason": None,
    }
    response = await call(broker, "JoinGroup", version, request)
    if again and names(response.error_code) == "member_id_required":
        request["member_id"] = response.member_id
        response = await call(broker, "JoinGroup", version, request)
    return response


async def sync(
    broker: BrokerServer,
    group: str,
    joined: Any,
    assignments: Mapping[str, bytes],
    version: int = 5,
) -> Any:
    request = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": joined.protocol_name,
        "assignments": [
            {"member_id": member, "assignment": assignment}
            for member, assignment in assignments.items()
        ],
    }
    return await call(broker, "SyncGroup", version, request)


async def heartbeat(
    broker: BrokerServer, group: str, generation: int, member: str, version: int = 4
) -> str:
    request = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
    }
    return names((await call(broker, "Heartbeat", version, request)).error_code)


async def leave(broker: BrokerServer, group: str, *members: str, version: int = 5) -> list[str]:
    request = {
        "group_id": group,
        "member_id": members[0],
        "members": [{"member_id": member, "group_instance_id": None} for member in members],
    }
    response = await call(broker, "LeaveGroup", version, request)
    if version < 3:
        return [names(response.error_code)]
    return [names(member.error_code) for member in response.members]


async def describe(broker: BrokerServer, *groups: str, version: int = 6) -> Any:
    request = {"groups": groups, "include_authorized_operations": True}
    return (await call(broker, "DescribeGroups", version, request)).groups


@pytest.mark.parametrize("version", versions("FindCoordinator"))
async def test_finds_coordinators(broker: BrokerServer, version: int) -> None:
    request: dict[str, Any] = {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]}
    response = await call(broker, "FindCoordinator", version, request)
    found = response.coordinators if version >= 4 else [response]
    assert [(c.node_id, c.host, c.port) for c in found] == [(1, "127.0.0.1", 9092)] * len(found)
    if version >= 4:
        assert [c.key for c in found] == ["g", "h"]


@pytest.mark.parametrize("failure", [None, ControlUnavailable("away")])
async def test_finds_coordinators_while_the_database_is_away(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
) -> None:
    """It uses the image: fetches of the same connection wait behind the response."""

    async def image() -> MetadataImage:
        if failure is not None:
            raise failure
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(broker.control, "image", image)
    request: dict[str, Any] = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
    response = await asyncio.wait_for(call(broker, "FindCoordinator", 4, request), 60)
    assert [coordinator.node_id for coordinator in response.coordinators] == [1]


async def test_finds_no_coordinators_of_other_kinds(broker: BrokerServer) -> None:
    request: dict[str, Any] = {"key": "g", "key_type": 7, "coordinator_keys": ["g"]}
    response = await call(broker, "FindCoordinator", 3, request)
    assert (names(response.error_code), response.node_id) == ("invalid_request", -1)
    response = await call(broker, "FindCoordinator", 4, request)
    assert names(response.coordinators[0].error_code) == "invalid_request"


@pytest.mark.parametrize("version", versions("JoinGroup"))
async def test_joins(broker: BrokerServer, version: int) -> None:
    first = await join(broker, "g", version=version, again=False)
    if version >= 4:
        assert names(first.error_code) == "member_id_required"
        assert first.member_id.startswith("tests-")
        assert (first.generation_id, first.leader, first.members) == (-1, "", ())
        assert first.protocol_name == (None if version >= 7 else "")
        first = await join(broker, "g", version=version, member=first.member_id)
    assert names(first.error_code) == "none"
    assert (first.generation_id, first.leader) == (1, first.member_id)
    assert first.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in first.members] == [
        (first.member_id, subscription("a"))
    ]


async def test_the_first_reserved_id_of_a_group_is_delayed(broker: BrokerServer) -> None:
    now = asyncio.get_running_loop().time
    began = now()
    answer = await join(broker, "g", again=False)
    assert names(answer.error_code) == "member_id_required"
    assert now() - began >= RESERVED_ID_DELAY_MS / 1000


@pytest.mark.parametrize("version", versions("SyncGroup"))
async def test_syncs(broker: BrokerServer, version: int) -> None:
    joined = await join(broker, "g")
    answer = await sync(broker, "g", joined, {joined.member_id: b"mine"}, version=version)
    assert (names(answer.error_code), answer.assignment) == ("none", b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", versions("Heartbeat"))
async def test_heartbeats(broker: BrokerServer, version: int) -> None:
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {})
    assert await heartbeat(broker, "g", 1, joined.member_id, version) == "none"
    assert await heartbeat(broker, "g", 2, joined.member_id, version) == "illegal_generation"
    assert await heartbeat(broker, "g", 1, "stranger", version) == "unknown_member_id"
    assert await heartbeat(broker, "nobody", 1, "m", version) == "unknown_member_id"
    assert await heartbeat(broker, "", 1, "m", version) == "invalid_group_id"


@pytest.mark.parametrize("version", versions("LeaveGroup"))
async def test_leaves(broker: BrokerServer, version: int) -> None:
    joined = await join(broker, "g")
    assert await leave(broker, "g", "stranger", version=version) == ["unknown_member_id"]
    assert await leave(broker, "g", joined.member_id, version=version) == ["none"]
    (group,) = await describe(broker, "g")
    assert group.group_state == "Empty"


async def test_two_members_share_a_group(broker: BrokerServer) -> None:
    first = await join(broker, "g")
    await sync(broker, "g", first, {first.member_id: b"all"})
    waiting = asyncio.create_task(join(broker, "g"))
    while await heartbeat(broker, "g", 1, first.member_id) == "none":
        await asyncio.sleep(0)
    assert await heartbeat(broker, "g", 1, first.member_id) == "rebalance_in_progress"
    again = await join(broker, "g", member=first.member_id)
    second = await waiting
    assert (again.generation_id, second.generation_id) == (2, 2)
    assert again.leader == second.leader == first.member_id
    assert len(again.members) == 2
    assert second.members == ()
    follower = asyncio.create_task(sync(broker, "g", second, {}))
    leader = await sync(broker, "g", again, {first.member_id: b"one", second.member_id: b"two"})
    assert (leader.assignment, (await follower).assignment) == (b"one", b"two")


@pytest.mark.parametrize("version", versions("DescribeGroups"))
async def test_describes(broker: BrokerServer, version: int) -> None:
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {joined.member_id: b"mine"})
    known, unknown = await describe(broker, "g", "nobody", version=version)
    assert (known.group_state, known.protocol_type, known.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = known.members
    assert (member.client_id, member.client_host) == ("tests", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("a"), b"mine")
    assert unknown.group_state == "Dead"
    assert names(unknown.error_code) == ("group_id_not_found" if version >= 6 else "none")
    if version >= 3:
        assert known.authorized_operations > 0


@pytest.mark.parametrize("version", versions("ListGroups"))
async def test_lists(broker: BrokerServer, version: int) -> None:
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {})
    await leave(broker, "h", (await join(broker, "h")).member_id)
    response = await call(broker, "ListGroups", version, {"states_filter": []})
    assert [(g.group_id, g.protocol_type) for g in response.groups] == [
        ("g", "consumer"),
        ("h", "consumer"),
    ]
    if version >= 4:
        response = await call(broker, "ListGroups", version, {"states_filter": ["stable"]})
        assert [g.group_id for g in response.groups] == ["g"]
    if version >= 5:
        for kind, found in (("classic", 2), ("Consumer", 0)):
            request = {"states_filter": [], "types_filter": [kind]}
            response = await call(broker, "ListGroups", version, request)
            assert len(response.groups) == found


@pytest.mark.parametrize("version", versions("DeleteGroups"))
async def test_deletes(broker: BrokerServer, version: int) -> None:
    await join(broker, "busy")
    await leave(broker, "idle", (await join(broker, "idle")).member_id)
    request = {"groups_names": ["busy", "idle", "nobody"]}
    response = await call(broker, "DeleteGroups", version, request)
    assert {r.group_id: names(r.error_code) for r in response.results} == {
        "busy": "non_empty_group",
        "idle": "none",
        "nobody": "group_id_not_found",
    }
    (group,) = await describe(broker, "idle")
    assert group.group_state == "Dead"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"session_ms": 1}, "invalid_session_timeout"),
        ({"session_ms": 2_000_000}, "invalid_session_timeout"),
        ({"protocols": ()}, "inconsistent_group_protocol"),
        ({"member": "stranger"}, "unknown_member_id"),
    ],
)
async def test_refuses_to_join(broker: BrokerServer, more: dict[str, Any], code: str) -> None:
    assert names((await join(broker, "g", **more)).error_code) == code
    assert names((await join(broker, "")).error_code) == "invalid_group_id"


@pytest.mark.parametrize("version", versions("ListGroups"))
async def test_a_list_that_may_be_anothers_now_is_an_error(
    broker: BrokerServer, version: int
) -> None:
    broker.coordinator.suspend()
    request = {"states_filter": (), "types_filter": ()}
    listed = await call(broker, "ListGroups", version, request)
    assert names(listed.error_code) == "coordinator_not_available"


@pytest.mark.parametrize("version", versions("DescribeGroups"))
async def test_a_group_that_may_be_anothers_now_is_not_dead(
    broker: BrokerServer, version: int
) -> None:
    broker.coordinator.suspend()
    request = {"groups": ["g"], "include_authorized_operations": False}
    (group,) = (await call(broker, "DescribeGroups", version, request)).groups
    assert (names(group.error_code), group.group_state) == ("coordinator_not_available", "")
