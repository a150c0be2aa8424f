"""Administrative calls and groups against a broker."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.base.errors import InvalidTopicName, PenstockError
from penstock.client import Client, InvalidArgument, OffsetOutOfRange, TopicExists, UnknownTopic
from penstock.client.groups import read_assignment
from penstock.client.session import parse_address, parse_bootstrap

MakeTopic = Callable[..., str]


def test_topics(client: Client) -> None:
    name = f"admin-{uuid4().hex[:8]}"
    created = client.create_topic(name, 3, {"retention.ms": "12345678"})
    assert [part.index for part in created.partitions] == [0, 1, 2]
    assert name in [item.name for item in client.list_topics()]
    with pytest.raises(TopicExists, match=name):
        client.create_topic(name)
    assert len(client.create_topic(name, exist_ok=True).partitions) == 3
    client.create_partitions(name, 5)
    assert len(client.describe_topic(name).partitions) == 5
    with pytest.raises(PenstockError, match="INVALID_PARTITIONS"):
        client.create_partitions(name, 2)
    client.delete_topic(name)
    with pytest.raises(UnknownTopic, match=name):
        client.describe_topic(name)
    with pytest.raises(UnknownTopic, match=name):
        client.delete_topic(name)


def test_refuses_names_and_numbers_before_asking(client: Client) -> None:
    with pytest.raises(InvalidTopicName, match=r"'bad name'"):
        client.create_topic("bad name")
    with pytest.raises(InvalidArgument, match="partitions = 0"):
        client.create_topic("good", 0)
    with pytest.raises(InvalidArgument, match="'soon'"):
        client.list_offsets("good", "soon")


def test_configs(client: Client, topic: MakeTopic) -> None:
    name = topic(1, retention_ms="5000000")

    def value() -> tuple[str | None, str]:
        (entry,) = (e for e in client.describe_configs("topic", name) if e.name == "retention.ms")
        return entry.value, entry.source

    assert value() == ("5000000", "dynamic topic")
    client.alter_configs("topic", name, {"retention.ms": "6000000"})
    assert value() == ("6000000", "dynamic topic")
    client.alter_configs("topic", name, delete=["retention.ms"])
    assert value()[1] != "dynamic topic"
    with pytest.raises(PenstockError, match="INVALID_CONFIG") as caught:
        client.alter_configs("topic", name, {"retention.ms": "soon"})
    assert caught.value.code == "invalid_config"
    with pytest.raises(UnknownTopic):
        client.describe_configs("topic", "no-such-topic")
    (node,) = client.metadata([]).nodes
    assert "num.partitions" in [e.name for e in client.describe_configs("broker", node)]


def test_delete_records(client: Client, topic: MakeTopic) -> None:
    name = topic(2)
    client.write_arrow(name, pa.table({"value": ["x"] * 100}), partition=1)
    assert client.delete_records(name, {1: 40}) == {1: 40}
    assert client.list_offsets(name, "earliest") == {0: 0, 1: 40}
    assert client.read_arrow(name).num_rows == 60
    with pytest.raises(OffsetOutOfRange, match="offset 5 is below the log start offset 40"):
        client.read_arrow(name, start={1: 5})
    with pytest.raises(OffsetOutOfRange):
        client.delete_records(name, {1: 1000})
    assert client.delete_records(name, {1: -1}) == {1: 100}


def test_groups(client: Client, topic: MakeTopic) -> None:
    name, group = topic(2), f"group-{uuid4().hex[:8]}"
    assert client.committed(group) == {}
    client.commit_offsets(group, {(name, 0): 5, (name, 1): 6}, metadata="why")
    found = client.committed(group)
    assert {at: item.offset for at, item in found.items()} == {(name, 0): 5, (name, 1): 6}
    assert found[name, 0].metadata == "why"
    assert list(client.committed(group, [(name, 1)])) == [(name, 1)]
    assert group in [item.group_id for item in client.list_groups()]
    assert client.describe_group(group).state == "Empty"
    client.delete_offsets(group, [(name, 0)])
    assert list(client.committed(group)) == [(name, 1)]
    client.delete_group(group)
    assert group not in [item.group_id for item in client.list_groups()]
    with pytest.raises(PenstockError, match="GROUP_ID_NOT_FOUND"):
        client.delete_group(group)
    with pytest.raises(PenstockError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        client.commit_offsets(group, {("no-such-topic", 0): 1})


def test_every_call_is_served(client: Client) -> None:
    (node,) = client.metadata([]).nodes.values()
    assert client.unsupported_calls(node) == []


def test_addresses() -> None:
    assert parse_bootstrap("a:1, b") == (("a", 1), ("b", 9092))
    assert parse_address("[::1]:99") == ("::1", 99)
    assert parse_address("[::1]") == ("::1", 9092)
    assert parse_address("PLAINTEXT://h:7") == ("h", 7)
    for wrong in ("", ":9", "a:0", "a:65536", "a:x"):
        with pytest.raises(InvalidArgument):
            parse_bootstrap(wrong)


def test_assignments_of_any_bytes() -> None:
    good = b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\3\xff\xff\xff\xff"
    assert read_assignment(good) == (("t", 0), ("t", 3))
    for size in range(len(good) - 4):
        assert read_assignment(good[:size]) == ()
    assert read_assignment(b"\0\1\x7f\xff\xff\xff") == ()
    assert read_assignment(b"\0\1\0\0\0\1\0\1t\x7f\xff\xff\xff") == ()
