"""The cluster and its partitions are described, page by page."""

from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.test_topics import create, creation


@pytest.mark.parametrize("version", versions("DescribeCluster"))
async def test_describes_the_cluster(broker: BrokerServer, version: int) -> None:
    request = {"include_cluster_authorized_operations": True, "include_fenced_brokers": False}
    response = await call(broker, "DescribeCluster", version, request)
    assert response.cluster_id == broker.cluster.image.cluster_id
    assert response.controller_id == 1
    assert [(b.broker_id, b.host, b.port) for b in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert response.cluster_authorized_operations > 0


async def test_knows_no_controllers(broker: BrokerServer) -> None:
    def request(endpoint_type: int) -> dict[str, Any]:
        return {"include_cluster_authorized_operations": False, "endpoint_type": endpoint_type}

    response = await call(broker, "DescribeCluster", 1, request(2))
    assert names(response.error_code) == "mismatched_endpoint_type"
    response = await call(broker, "DescribeCluster", 1, request(3))
    assert names(response.error_code) == "unsupported_endpoint_type"


async def pages(broker: BrokerServer, limit: int, *topics: str) -> list[list[tuple[str, int]]]:
    found, cursor = [], None
    while True:
        request = {
            "topics": [{"name": name} for name in topics],
            "response_partition_limit": limit,
            "cursor": cursor,
        }
        response = await call(broker, "DescribeTopicPartitions", 0, request)
        found.append([(t.name, p.partition_index) for t in response.topics for p in t.partitions])
        if response.next_cursor is None:
            return found
        cursor = {
            "topic_name": response.next_cursor.topic_name,
            "partition_index": response.next_cursor.partition_index,
        }


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7, 2000])
async def test_pages_cover_every_partition_once(broker: BrokerServer, limit: int) -> None:
    await create(broker, creation("c", 1), creation("a", 2), creation("b", 3))
    found = await pages(broker, limit)
    assert [p for page in found for p in page] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
        ("b", 2),
        ("c", 0),
    ]
    assert all(len(page) == limit for page in found[:-1])


async def test_names_unknown_topics(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    request = {
        "topics": [{"name": "a"}, {"name": "gone"}, {"name": "a b"}],
        "response_partition_limit": 9,
        "cursor": None,
    }
    response = await call(broker, "DescribeTopicPartitions", 0, request)
    assert {topic.name: names(topic.error_code) for topic in response.topics} == {
        "a": "none",
        "gone": "unknown_topic_or_partition",
        "a b": "invalid_topic_exception",
    }


async def test_describes_producers(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    request = {"topics": [{"name": "a", "partition_indexes": [0, 5]}]}
    (topic,) = (await call(broker, "DescribeProducers", 0, request)).topics
    assert [(p.partition_index, names(p.error_code)) for p in topic.partitions] == [
        (0, "none"),
        (5, "unknown_topic_or_partition"),
    ]
