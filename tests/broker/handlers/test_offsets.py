"""Offsets are committed, fetched and deleted in every version, with its own place for errors."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.test_groups import join, sync
from tests.broker.handlers.test_topics import create, creation

Positions = Sequence[tuple[int, int, str | None]]


def _named(broker: BrokerServer, version: int, name: str) -> dict[str, Any]:
    if version < 10:
        return {"name": name}
    known = broker.partitions.topics.get(name)
    return {"topic_id": known.topic.topic_id if known else UUID(int=77)}


async def commit(
    broker: BrokerServer,
    topics: Mapping[str, Positions],
    *,
    version: int = 9,
    group: str = "g",
    generation: int = -1,
    member: str = "",
    retention_ms: int = -1,
) -> list[list[str]]:
    request = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": None,
        "retention_time": retention_ms,
        "topics": [
            {
                **_named(broker, version, name),
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": 3,
                        "committed_metadata": metadata,
                    }
                    for index, offset, metadata in positions
                ],
            }
            for name, positions in topics.items()
        ],
    }
    response = await call(broker, "OffsetCommit", version, request)
    return [[names(p.error_code) for p in topic.partitions] for topic in response.topics]


async def fetch(
    broker: BrokerServer,
    topics: Mapping[str, Sequence[int]] | None,
    *,
    version: int = 9,
    group: str = "g",
) -> Any:
    asked = (
        None
        if topics is None
        else [
            {**_named(broker, version, name), "partition_indexes": indexes}
            for name, indexes in topics.items()
        ]
    )
    request: dict[str, Any] = {"group_id": group, "topics": asked, "require_stable": True}
    if version >= 8:
        request["groups"] = [{"group_id": group, "topics": asked}]
    response = await call(broker, "OffsetFetch", version, request)
    return response.groups[0] if version >= 8 else response


def positions(answer: Any) -> list[list[tuple[int, int, str]]]:
    return [
        [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions]
        for topic in answer.topics
    ]


@pytest.mark.parametrize("version", versions("OffsetCommit"))
async def test_commits_what_can_be_committed(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", 3))
    gone = "unknown_topic_id" if version >= 10 else "unknown_topic_or_partition"
    outcome = await commit(
        broker,
        {
            "a": [(0, 5, "note"), (1, 6, None), (2, 7, "x" * 65), (3, 8, "")],
            "gone": [(0, 1, "")],
        },
        version=version,
    )
    assert outcome == [
        ["none", "none", "offset_metadata_too_large", "unknown_topic_or_partition"],
        [gone],
    ]
    answer = await fetch(broker, {"a": [0, 1, 2]})
    assert positions(answer) == [[(0, 5, "note"), (1, 6, ""), (2, -1, "")]]
    epochs = [p.committed_leader_epoch for p in answer.topics[0].partitions]
    assert epochs == [3 if version >= 6 else -1] * 2 + [-1]


@pytest.mark.parametrize("version", versions("OffsetFetch"))
async def test_fetches_named_partitions(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", 2))
    await commit(broker, {"a": [(0, 5, "note")]})
    answer = await fetch(broker, {"a": [0, 1, 9], "gone": [0]}, version=version)
    assert positions(answer) == [[(0, 5, "note"), (1, -1, ""), (9, -1, "")], [(0, -1, "")]]
    codes = [names(topic.partitions[0].error_code) for topic in answer.topics]
    assert codes == ["none", "unknown_topic_id" if version >= 10 else "none"]


@pytest.mark.parametrize("version", [v for v in versions("OffsetFetch") if v >= 2])
async def test_fetches_every_partition_of_a_group(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("b"), creation("a", 2))
    await commit(broker, {"b": [(0, 1, "")], "a": [(1, 2, "")]})
    answer = await fetch(broker, None, version=version)
    assert positions(answer) == [[(1, 2, "")], [(0, 1, "")]]
    if version >= 10:
        assert [topic.topic_id for topic in answer.topics] == [
            broker.partitions.topics[name].topic.topic_id for name in ("a", "b")
        ]
    assert positions(await fetch(broker, None, version=version, group="nobody")) == []


async def test_many_groups_at_once(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    await commit(broker, {"a": [(0, 1, "")]}, group="one")
    await commit(broker, {"a": [(0, 2, "")]}, group="two")
    request = {
        "groups": [{"group_id": group, "topics": None} for group in ("one", "two", "three")],
        "require_stable": False,
    }
    response = await call(broker, "OffsetFetch", 8, request)
    assert [(g.group_id, positions(g)) for g in response.groups] == [
        ("one", [[(0, 1, "")]]),
        ("two", [[(0, 2, "")]]),
        ("three", []),
    ]


async def test_a_group_that_only_commits_is_listed(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    await commit(broker, {"a": [(0, 1, "")]}, group="simple")
    response = await call(broker, "ListGroups", 5, {"states_filter": [], "types_filter": []})
    assert [(g.group_id, g.group_state, g.group_type) for g in response.groups] == [
        ("simple", "Empty", "classic")
    ]


@pytest.mark.parametrize(
    ("version", "group", "code"),
    [(2, "fresh", "illegal_generation"), (9, "fresh", "group_id_not_found")],
)
async def test_members_of_nowhere_cannot_commit(
    broker: BrokerServer, version: int, group: str, code: str
) -> None:
    await create(broker, creation("a"))
    outcome = await commit(
        broker, {"a": [(0, 1, "")]}, version=version, group=group, generation=3, member="m"
    )
    assert outcome == [[code]]


async def test_members_are_fenced(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {joined.member_id: b"x"})
    good = {"generation": joined.generation_id, "member": joined.member_id}
    assert await commit(broker, {"a": [(0, 1, "")]}, **good) == [["none"]]
    stale = {**good, "generation": 9}
    assert await commit(broker, {"a": [(0, 2, "")]}, **stale) == [["illegal_generation"]]
    stranger = {**good, "member": "stranger"}
    assert await commit(broker, {"a": [(0, 2, "")]}, **stranger) == [["unknown_member_id"]]
    assert await commit(broker, {"a": [(0, 2, "")]}) == [["unknown_member_id"]]
    assert positions(await fetch(broker, {"a": [0]})) == [[(0, 1, "")]]


def deletion(group: str, *topics: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "topics": [{"name": name, "partitions": [{"partition_index": 0}]} for name in topics],
    }


async def test_deletes_offsets(broker: BrokerServer) -> None:
    await create(broker, creation("a"), creation("b"))
    await commit(broker, {"a": [(0, 1, "")], "b": [(0, 2, "")]})
    response = await call(broker, "OffsetDelete", 0, deletion("g", "a", "gone"))
    assert [names(t.partitions[0].error_code) for t in response.topics] == [
        "none",
        "unknown_topic_or_partition",
    ]
    assert positions(await fetch(broker, None)) == [[(0, 2, "")]]


async def test_keeps_offsets_that_are_in_use(broker: BrokerServer) -> None:
    await create(broker, creation("a"), creation("b"))
    joined = await join(broker, "g", topics=("a",))
    await sync(broker, "g", joined, {joined.member_id: b"x"})
    response = await call(broker, "OffsetDelete", 0, deletion("g", "a", "b"))
    assert [names(t.partitions[0].error_code) for t in response.topics] == [
        "group_subscribed_to_topic",
        "none",
    ]
    response = await call(broker, "OffsetDelete", 0, deletion("nobody", "a"))
    assert names(response.error_code) == "group_id_not_found"


async def test_offsets_go_with_their_topic(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    await commit(broker, {"a": [(0, 1, "")]})
    request = {"timeout": 1000, "topic_names": ["a"]}
    await call(broker, "DeleteTopics", 5, request)
    await create(broker, creation("a"))
    assert positions(await fetch(broker, {"a": [0]})) == [[(0, -1, "")]]
