"""Where bytes lie and how much room there is."""

import shutil
from typing import Any

import pytest

from penstock.broker.state import BrokerState
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.test_topics import create, creation
from tests.broker.wire_client import batch


def sizes(result: Any) -> dict[str, dict[int, int]]:
    return {
        topic.name: {row.partition_index: row.partition_size for row in topic.partitions}
        for topic in result.topics
    }


def fill(state: BrokerState, topic: str, partition: int, *values: bytes) -> int:
    """Append a batch; returns its size in bytes."""
    data = memoryview(bytearray(batch(*values)))
    state.local_log(topic, partition).append(data, now_ms=1_700_000_000_000)
    return len(data)


@pytest.mark.parametrize("version", versions("DescribeLogDirs"))
async def test_says_how_large_partitions_are(state: BrokerState, version: int) -> None:
    await create(state, creation("a", 2), creation("b", 1))
    first = fill(state, "a", 0, b"x") + fill(state, "a", 0, b"y" * 5000)
    second = fill(state, "b", 0, b"z" * 100)
    everything = await call(state, "DescribeLogDirs", version, {"topics": None})
    (result,) = everything.results
    assert names(result.error_code) == "none"
    assert result.log_dir == state.store.directory
    assert sizes(result) == {"a": {0: first, 1: 0}, "b": {0: second}}
    if version >= 4:
        room = shutil.disk_usage(state.store.directory)
        assert result.total_bytes == room.total
        assert 0 < result.usable_bytes <= room.total
    asked = {"topics": [{"topic": "a", "partitions": [0, 7]}, {"topic": "none", "partitions": [0]}]}
    (result,) = (await call(state, "DescribeLogDirs", version, asked)).results
    assert sizes(result) == {"a": {0: first}}


async def test_a_directory_that_is_gone_is_an_error(state: BrokerState) -> None:
    await create(state, creation("a", 1))
    shutil.rmtree(state.store.directory)
    (result,) = (await call(state, "DescribeLogDirs", 4, {"topics": None})).results
    assert names(result.error_code) == "kafka_storage_error"
    assert (result.topics, result.total_bytes) == ((), -1)
