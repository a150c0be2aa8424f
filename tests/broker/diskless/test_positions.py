"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords of diskless topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.diskless.conftest import Cluster
from tests.broker.wire_client import WireClient, batch, promising

Create = Callable[..., Awaitable[Any]]
T0 = 1_700_000_000_000


async def position(client: WireClient, timestamp: int, topic: str = "t") -> tuple[int, int, int]:
    answer = await client.call(
        "ListOffsets",
        9,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
                    ],
                }
            ],
        },
    )
    one = answer.topics[0].partitions[0]
    assert one.error_code == 0
    return one.offset, ms_of(one.timestamp), one.leader_epoch


def ms_of(stamp: Any) -> int:
    """Return a time of a response in milliseconds, -1 for none."""
    if stamp is None:
        return -1
    return stamp if isinstance(stamp, int) else round(stamp.timestamp() * 1000)


async def deleted(client: WireClient, before: int, topic: str = "t") -> tuple[int, int]:
    answer = await client.call(
        "DeleteRecords",
        2,
        {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": before}]}],
            "timeout": 5000,
        },
    )
    one = answer.topics[0].partitions[0]
    return int(one.error_code), one.low_watermark


@pytest.fixture
async def filled(client: WireClient, create: Create) -> WireClient:
    """Make offsets 0 to 8 in three batches at T0 + 10, T0 + 30 and T0 + 20."""
    await create("t")
    for ms in (10, 30, 20):
        await client.produce("t", batch(b"a", b"b", b"c", timestamp_ms=T0 + ms))
    return client


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (9, -1, 0)),
        (-2, (0, -1, 0)),
        (-3, (3, T0 + 30, 0)),
        (-4, (0, -1, 0)),
        (0, (0, T0 + 10, 0)),
        (T0 + 10, (0, T0 + 10, 0)),
        (T0 + 11, (3, T0 + 30, 0)),
        (T0 + 30, (3, T0 + 30, 0)),
        (T0 + 31, (-1, -1, -1)),
        (-5, (-1, -1, -1)),
    ],
)
async def test_positions_by_time_are_exact(
    filled: WireClient, timestamp: int, expected: tuple[int, int, int]
) -> None:
    assert await position(filled, timestamp) == expected


async def test_an_empty_partition_has_its_ends_and_nothing_else(
    client: WireClient, create: Create
) -> None:
    await create("t")
    assert [await position(client, at) for at in (-1, -2, -3, 5)] == [
        (0, -1, 0),
        (0, -1, 0),
        (-1, -1, -1),
        (-1, -1, -1),
    ]


async def test_one_request_has_local_and_diskless_partitions(
    filled: WireClient, create: Create
) -> None:
    await create("l", diskless_enable="false")
    await filled.produce("l", batch(b"x"))
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    answer = await filled.call(
        "ListOffsets",
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {"name": "l", "partitions": [row]},
                {"name": "t", "partitions": [row, {**row, "partition_index": 9}]},
                {"name": "none", "partitions": [row]},
            ],
        },
    )
    got = {
        (topic.name, found.partition_index): (int(found.error_code), found.offset)
        for topic in answer.topics
        for found in topic.partitions
    }
    assert got == {("l", 0): (0, 1), ("t", 0): (0, 9), ("t", 9): (3, -1), ("none", 0): (3, -1)}


async def test_records_are_deleted_within_a_batch_and_positions_follow(
    filled: WireClient,
) -> None:
    assert await deleted(filled, 4) == (0, 4)
    assert await deleted(filled, 2) == (0, 4)
    assert await position(filled, -2) == (4, -1, 0)
    assert await position(filled, 0) == (4, T0 + 30, 0)
    assert await position(filled, -3) == (4, T0 + 30, 0)
    below = await filled.fetch("t", 3, max_wait=30_000)
    assert below.error_code == 1
    found = await filled.fetch("t", 4, max_wait=30_000)
    assert (found.error_code, found.log_start_offset) == (0, 4)
    assert await deleted(filled, 100) == (1, -1)
    assert await deleted(filled, -1) == (0, 9)
    assert await position(filled, -3) == (-1, -1, -1)


async def test_the_newest_record_may_be_deleted_from_its_extent(
    cluster: Cluster, create: Create
) -> None:
    # One object, so one extent: its first batch has the highest time.
    broker = await cluster.start(diskless_commit_interval_ms=300)
    client = await cluster.connect(broker)
    await create("t", on=client)
    from tests.broker.wire_client import produce_request

    for ms in (30, 10, 20):
        data = batch(b"a", timestamp_ms=T0 + ms)
        client.writer.write(client.frame("Produce", 9, produce_request("t", data)))
    for _ in range(3):
        await client.response("Produce", 9)
    assert await position(client, -3) == (0, T0 + 30, 0)
    assert await deleted(client, 1) == (0, 1)
    assert await position(client, -3) == (2, T0 + 20, 0)
    assert await position(client, T0 + 25) == (-1, -1, -1)
    await client.produce("t", batch(b"z", timestamp_ms=T0 + 27))
    assert await position(client, T0 + 25) == (3, T0 + 27, 0)
    assert await position(client, -3) == (3, T0 + 27, 0)


async def test_the_time_of_the_append_is_what_positions_go_by(
    client: WireClient, create: Create
) -> None:
    await create("t", message_timestamp_type="LogAppendTime")
    done = await client.produce("t", batch(b"a", timestamp_ms=1))
    now = ms_of(done.log_append_time)
    assert now > T0
    assert await position(client, 2) == (0, now, 0)
    assert await position(client, -3) == (0, now, 0)
    assert await position(client, now + 1) == (-1, -1, -1)


async def test_leader_epoch_0_is_the_only_one(filled: WireClient) -> None:
    answer = await filled.call(
        "OffsetForLeaderEpoch",
        4,
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": "t",
                    "partitions": [
                        {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
                        for current, epoch in ((0, 0), (-1, 3), (1, 0))
                    ],
                }
            ],
        },
    )
    assert [
        (int(partition.error_code), partition.leader_epoch, partition.end_offset)
        for partition in answer.topics[0].partitions
    ] == [(0, 0, 9), (0, 0, 9), (75, -1, -1)]  # UNKNOWN_LEADER_EPOCH


async def test_a_fetch_with_another_epoch_is_refused(filled: WireClient) -> None:
    assert (await filled.fetch("t", 0, current_leader_epoch=0, max_wait=30_000)).error_code == 0
    assert (await filled.fetch("t", 0, current_leader_epoch=3)).error_code == 75


async def test_old_records_go_by_retention(cluster: Cluster, create: Create) -> None:
    broker: BrokerServer = await cluster.start(diskless_retention_interval_ms=20)
    client = await cluster.connect(broker)
    await create("t", on=client, retention_ms="1000")
    await client.produce("t", batch(b"a", timestamp_ms=T0))
    import asyncio

    async with asyncio.timeout(60):
        while (await position(client, -2))[0] == 0:
            await asyncio.sleep(0.01)
    assert broker.partitions.partition("t", 0).log_start_offset == 1


async def test_the_newest_record_where_a_header_has_a_later_maximum(
    client: WireClient, create: Create
) -> None:
    await create("t")
    await client.produce("t", batch(b"a", timestamp_ms=T0 + 10))
    await client.produce("t", promising(batch(b"b", b"c", timestamp_ms=T0 + 20), 5000))
    assert await position(client, -3) == (1, T0 + 20, 0)
    assert await position(client, T0 + 15) == (1, T0 + 20, 0)
    assert await position(client, T0 + 25) == (-1, -1, -1)
