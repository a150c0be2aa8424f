"""StreamsGroupHeartbeat and StreamsGroupDescribe at a real broker, and its internal topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.groups.streams import Status
from penstock.broker.net.errors import error_number
from penstock.broker.server import BrokerServer
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient

WAIT_SECONDS = 30.0
NO_TASKS: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}


@pytest.fixture
async def broker(start_broker: StartBroker) -> BrokerServer:
    return await start_broker(
        {
            "group.streams.initial.rebalance.delay.ms": 0,
            "group.streams.assignment.interval.ms": 0,
            "group.streams.min.heartbeat.interval.ms": 1,
        }
    )


def info(name: str, partitions: int = 0) -> dict[str, Any]:
    return {
        "name": name, "partitions": partitions, "replication_factor": 0,
        "topic_configs": [{"key": "cleanup.policy", "value": "compact"}],
    }  # fmt: skip


def topology(epoch: int = 0, source: str = "lines") -> dict[str, Any]:
    """Return the topology of a word count."""
    none: dict[str, Any] = {
        "source_topics": [], "source_topic_regex": [], "state_changelog_topics": [],
        "repartition_sink_topics": [], "repartition_source_topics": [], "copartition_groups": [],
    }  # fmt: skip
    return {
        "epoch": epoch,
        "subtopologies": [
            {
                **none, "subtopology_id": "0", "source_topics": [source],
                "repartition_sink_topics": ["app-words"],
            },
            {
                **none, "subtopology_id": "1", "repartition_source_topics": [info("app-words")],
                "state_changelog_topics": [info("app-counts")],
            },
        ],
    }  # fmt: skip


class Member:
    version = 1

    def __init__(self, client: WireClient, name: str, group: str = "app") -> None:
        self.client, self.name, self.group = client, name, group
        self.epoch = 0
        self.owned = NO_TASKS

    async def beat(self, **fields: Any) -> Any:
        joins = self.epoch == 0
        body = {
            "group_id": self.group, "member_id": self.name, "member_epoch": self.epoch,
            "endpoint_information_epoch": -1, "instance_id": None, "rack_id": None,
            "rebalance_timeout": 10_000 if joins else -1,
            "topology": topology() if joins else None,
            "process_id": f"process-{self.name}" if joins else None, "user_endpoint": None,
            "client_tags": None, "task_offsets": None, "task_end_offsets": None,
            "shutdown_application": False, **self.owned, **fields,
        }  # fmt: skip
        answer = await self.client.call("StreamsGroupHeartbeat", self.version, body)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None:
                self.owned = {
                    role: [
                        {"subtopology_id": t.subtopology_id, "partitions": list(t.partitions)}
                        for t in getattr(answer, role)
                    ]
                    for role in NO_TASKS
                }
        return answer

    async def beat_until(self, *others: Member, tasks: int) -> Any:
        """Send heartbeats, also of `others`, until this member has so many active tasks."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for other in others:
                    await other.beat()
                answer = await self.beat()
                assert not answer.error_code, answer
                if self.tasks == tasks:
                    return answer

    @property
    def tasks(self) -> int:
        return sum(len(item["partitions"]) for item in self.owned["active_tasks"])


def statuses(answer: Any) -> dict[int, str]:
    return {status.status_code: status.status_detail for status in answer.status}


async def test_the_broker_creates_internal_topics_and_assigns_tasks(
    client: WireClient, broker: BrokerServer
) -> None:
    member = Member(client, "a")
    first = await member.beat()
    assert list(statuses(first)) == [Status.MISSING_SOURCE_TOPICS]
    assert first.heartbeat_interval.total_seconds() == 5
    await client.create("lines", partitions=3)
    answer = await member.beat()
    while Status.MISSING_SOURCE_TOPICS in statuses(answer):
        answer = await member.beat()
    answer = await member.beat_until(tasks=6)
    assert statuses(answer) == {}
    topics = broker.cluster.image.topics
    assert [len(topics[name].partitions) for name in ("app-words", "app-counts")] == [3, 3]
    assert topics["app-counts"].configs == {"cleanup.policy": "compact"}
    described = await describe(client)
    assert (described.group_state, described.topology.epoch) == ("Stable", 0)
    assert [sub.source_topics for sub in described.topology.subtopologies] == [("lines",), ()]
    (changelog,) = described.topology.subtopologies[1].state_changelog_topics
    assert (changelog.name, changelog.partitions) == ("app-counts", 3)
    (found,) = described.members
    assert found.process_id == "process-a"
    assert found.assignment == found.target_assignment
    listed = await client.call("ListGroups", 5, {"states_filter": [], "types_filter": ["Streams"]})
    assert [(g.group_id, g.group_type, g.group_state) for g in listed.groups] == [
        ("app", "streams", "Stable")
    ]


async def describe(client: WireClient, group: str = "app") -> Any:
    body = {
        "group_ids": [group], "include_authorized_operations": False,
        "include_topology_description": True,
    }  # fmt: skip
    answer = await client.call("StreamsGroupDescribe", 1, body)
    return answer.groups[0]


async def running(client: WireClient) -> Member:
    await client.create("lines", partitions=2)
    member = Member(client, "a")
    await member.beat()
    await member.beat_until(tasks=4)
    return member


async def test_a_second_member_gets_tasks_once_the_first_has_revoked_them(
    client: WireClient, broker: BrokerServer
) -> None:
    first, second = await running(client), Member(client, "b")
    answer = await second.beat()
    assert second.tasks == 0
    await first.beat()
    await second.beat_until(first, tasks=2)
    assert first.tasks == 2
    owned = [
        (item["subtopology_id"], number)
        for member in (first, second)
        for item in member.owned["active_tasks"]
        for number in item["partitions"]
    ]
    assert sorted(owned) == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    assert answer.member_epoch == second.epoch
    left = await second.beat(member_epoch=-1)
    assert left.member_epoch == -1
    await first.beat_until(tasks=4)


async def test_members_get_the_status_of_a_shutdown_and_of_a_newer_topology(
    client: WireClient,
) -> None:
    first, second = await running(client), Member(client, "b")
    await second.beat(topology=topology(epoch=1))
    stale = statuses(await first.beat())
    assert stale == {
        Status.STALE_TOPOLOGY: "The member's topology epoch 0 is behind the group's topology epoch"
        " 1."
    }
    await first.beat(shutdown_application=True)
    assert (
        "member a encountered a fatal error"
        in (statuses(await second.beat())[Status.SHUTDOWN_APPLICATION])
    )


async def test_standby_tasks_follow_the_group_configuration(
    client: WireClient, broker: BrokerServer
) -> None:
    first, second = await running(client), Member(client, "b")
    await second.beat()
    await second.beat_until(first, tasks=2)
    change = {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
    answer = await client.call(
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [{"resource_type": 32, "resource_name": "app", "configs": [change]}],
            "validate_only": False,
        },
    )
    assert not answer.responses[0].error_code, answer
    async with asyncio.timeout(WAIT_SECONDS):
        while not (first.owned["standby_tasks"] and second.owned["standby_tasks"]):
            await first.beat()
            await second.beat()
    active = {n for t in first.owned["active_tasks"] if t["subtopology_id"] == "1"
              for n in t["partitions"]}  # fmt: skip
    standby = {n for t in second.owned["standby_tasks"] for n in t["partitions"]}
    assert standby == active


async def test_an_endpoint_is_published_with_the_partitions_that_it_serves(
    client: WireClient,
) -> None:
    await client.create("lines", partitions=2)
    member = Member(client, "a")
    await member.beat(user_endpoint={"host": "h", "port": 80})
    answer = await member.beat_until(tasks=4)
    (endpoint,) = answer.partitions_by_user_endpoint
    assert (endpoint.user_endpoint.host, endpoint.user_endpoint.port) == ("h", 80)
    assert {(t.topic, t.partitions) for t in endpoint.active_partitions} == {
        ("lines", (0, 1)),
        ("app-words", (0, 1)),
    }
    again = await member.beat(endpoint_information_epoch=answer.endpoint_information_epoch)
    assert again.partitions_by_user_endpoint is None


async def test_a_static_member_returns_to_its_tasks_without_a_new_assignment(
    client: WireClient,
) -> None:
    await client.create("lines", partitions=2)
    old, new = Member(client, "a"), Member(client, "b")
    await old.beat(instance_id="i")
    async with asyncio.timeout(WAIT_SECONDS):
        while old.tasks < 4:
            await old.beat(instance_id="i")
    refused = await new.beat(instance_id="i")
    assert refused.error_code == error_number("unreleased_instance_id")
    await old.beat(instance_id="i", member_epoch=-2)
    await new.beat(instance_id="i", process_id="process-a")
    assert new.tasks == 4


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"member_epoch": 0, "topology": None}, "invalid_request", "Topology must be non-null"),
        ({"process_id": None}, "invalid_request", "ProcessId"),
        ({"rebalance_timeout": -1}, "invalid_request", "RebalanceTimeoutMs"),
        ({"active_tasks": None}, "invalid_request", "ActiveTasks"),
        ({"topology": {"epoch": 0, "subtopologies": []}}, "streams_invalid_topology", "at least"),
        ({"topology": topology(source="a b")}, "streams_invalid_topology", "a b"),
        ({"member_epoch": 3, "topology": None}, "group_id_not_found", "app"),
        ({"member_epoch": -3}, "invalid_request", "MemberEpoch -3"),
        ({"group_id": " "}, "invalid_request", "GroupId"),
    ],
)
async def test_an_invalid_heartbeat_is_refused(
    client: WireClient, fields: dict[str, Any], error: str, message: str
) -> None:
    answer = await Member(client, "a").beat(**fields)
    assert answer.error_code == error_number(error), answer
    assert message in answer.error_message


async def test_epochs_and_topologies_are_fenced(client: WireClient) -> None:
    member = await running(client)
    fenced = await member.beat(member_epoch=member.epoch + 1)
    assert fenced.error_code == error_number("fenced_member_epoch")
    unknown = await Member(client, "b").beat(member_epoch=1, topology=None)
    assert unknown.error_code == error_number("unknown_member_id")
    other = await Member(client, "b").beat(topology=topology(source="app-words"))
    assert other.error_code == error_number("invalid_request")
    assert "epoch 0" in other.error_message
    late = await member.beat(topology=topology())
    assert late.error_code == error_number("invalid_request")


async def test_offsets_are_committed_with_the_member_epoch(client: WireClient) -> None:
    member = await running(client)

    async def commit(epoch: int, name: str = "a") -> int:
        partition = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1,
                     "committed_metadata": ""}  # fmt: skip
        body = {
            "group_id": "app", "generation_id_or_member_epoch": epoch, "member_id": name,
            "group_instance_id": None,
            "topics": [{"name": "lines", "partitions": [partition]}],
        }  # fmt: skip
        answer = await client.call("OffsetCommit", 9, body)
        return int(answer.topics[0].partitions[0].error_code)

    assert await commit(member.epoch) == 0
    assert await commit(member.epoch + 1) == error_number("stale_member_epoch")
    assert await commit(member.epoch, "b") == error_number("unknown_member_id")
    deletion = {"groups_names": ["app"]}
    refused = await client.call("DeleteGroups", 2, deletion)
    assert refused.results[0].error_code == error_number("non_empty_group")
    await member.beat(member_epoch=-1)
    assert await commit(-1, "") == 0
    deleted = await client.call("DeleteGroups", 2, deletion)
    assert deleted.results[0].error_code == 0
    assert (await describe(client)).error_code == error_number("group_id_not_found")


async def test_other_kinds_of_groups_are_told_apart(client: WireClient) -> None:
    await running(client)
    body = {"group_ids": ["app"], "include_authorized_operations": False}
    answer = await client.call("ConsumerGroupDescribe", 1, body)
    assert answer.groups[0].error_code == error_number("group_id_not_found")
