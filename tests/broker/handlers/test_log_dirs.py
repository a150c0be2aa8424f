"""Sizes of partitions, and free space."""

import shutil
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.test_topics import create, creation
from tests.broker.wire_client import batch


def sizes(result: Any) -> dict[str, dict[int, int]]:
    return {
        topic.name: {row.partition_index: row.partition_size for row in topic.partitions}
        for topic in result.topics
    }


def fill(broker: BrokerServer, topic: str, partition: int, *values: bytes) -> int:
    """Append a batch; returns its size in bytes."""
    data = memoryview(bytearray(batch(*values)))
    broker.partitions.with_log(topic, partition).log.append(data, now_ms=1_700_000_000_000)
    return len(data)


@pytest.mark.parametrize("version", versions("DescribeLogDirs"))
async def test_says_how_large_partitions_are(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", 2), creation("b", 1))
    first = fill(broker, "a", 0, b"x") + fill(broker, "a", 0, b"y" * 5000)
    second = fill(broker, "b", 0, b"z" * 100)
    everything = await call(broker, "DescribeLogDirs", version, {"topics": None})
    (result,) = everything.results
    assert names(result.error_code) == "none"
    assert result.log_dir == broker.store.directory
    assert sizes(result) == {"a": {0: first, 1: 0}, "b": {0: second}}
    if version >= 4:
        room = shutil.disk_usage(broker.store.directory)
        assert result.total_bytes == room.total
        assert 0 < result.usable_bytes <= room.total
    asked = {"topics": [{"topic": "a", "partitions": [0, 7]}, {"topic": "none", "partitions": [0]}]}
    (result,) = (await call(broker, "DescribeLogDirs", version, asked)).results
    assert sizes(result) == {"a": {0: first}}


async def test_a_directory_that_is_gone_is_an_error(broker: BrokerServer) -> None:
    await create(broker, creation("a", 1))
    shutil.rmtree(broker.store.directory)
    (result,) = (await call(broker, "DescribeLogDirs", 4, {"topics": None})).results
    assert names(result.error_code) == "kafka_storage_error"
    assert (result.topics, result.total_bytes) == ((), -1)
