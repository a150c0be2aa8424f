"""A local topic becomes diskless under its producers and consumers, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.base.ids import TopicPartition
from penstock.base.retry import Backoff
from penstock.broker.migration import leader, migrations
from penstock.broker.net.errors import NotLeader
from penstock.broker.server import BrokerServer
from penstock.control import ControlUnavailable, SinkCommit, SinkTarget, TopicMigration
from penstock.objects import MemoryStore, StoreUnavailable
from penstock.records import split_batches, stamp
from tests.broker.diskless.conftest import Cluster
from tests.broker.diskless.test_configs import altered, configs_of
from tests.broker.wire_client import WireClient, batch
from tests.records.reference import Batch, Record, encode, read
from tests.storage.batches import batch as numbered

Create = Callable[..., Awaitable[Any]]
INVALID_CONFIG = 40
NOT_LEADER = 6
FENCED_LEADER_EPOCH = 74
TIMED_OUT = 7


@pytest.fixture
def local(create: Create) -> Callable[..., Awaitable[Any]]:
    async def local(topic: str = "t", partitions: int = 1, **configs: str) -> None:
        answer = await create(topic, partitions, diskless_enable="false", **configs)
        assert answer.error_code == 0

    return local


async def switched(client: WireClient, topic: str = "t", **configs: Any) -> None:
    answer = await altered(client, topic, diskless_enable="true", **configs)
    assert (answer.error_code, answer.error_message) == (0, None)


async def records(client: WireClient, offset: int = 0, partition: int = 0) -> list[int]:
    """Read the records from an offset up to the high watermark."""
    found: list[int] = []
    async with asyncio.timeout(60):
        while True:
            answer = await client.fetch("t", offset, max_wait=200)
            assert answer.error_code == 0
            for header in split_batches(answer.records or b""):
                found += range(header.base_offset, header.next_offset)
                offset = header.next_offset
            if offset >= answer.high_watermark >= 0:  # negative while the broker does not know it
                return found


async def moved_start(client: WireClient, offset: int) -> Any:
    answer = await client.call(
        "DeleteRecords",
        2,
        {
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}],
            "timeout": 5000,
        },
    )
    return answer.topics[0].partitions[0]


def after_switch(broker: BrokerServer, records: bytes) -> bytes:
    """Return the same batches in the new leader epoch, which must never be lower for newer ones."""
    epoch = broker.cluster.image.topics["t"].partitions[0].leader_epoch
    data, position = bytearray(records), 0
    for header in split_batches(records):
        assert header.partition_leader_epoch < epoch
        stamp(data, position, header.base_offset, header.batch_length, epoch)
        position += header.size_bytes
    return bytes(data)


async def test_records_offsets_and_configs_stay(
    cluster: Cluster, broker: BrokerServer, client: WireClient, local: Create
) -> None:
    await local(retention_ms="123456789")
    for value in (b"a", b"b", b"c"):
        await client.produce("t", batch(value, value))
    before = await client.fetch("t")
    await switched(client, retention_bytes="77777777")
    after = await client.fetch("t", max_wait=30_000)
    assert after_switch(broker, before.records) == bytes(after.records)
    assert (after.high_watermark, after.log_start_offset) == (6, 0)
    assert (await client.produce("t", batch(b"d"))).base_offset == 6
    assert await records(client, 2) == [2, 3, 4, 5, 6]
    configs = await configs_of(client, "t")
    assert (configs["diskless.enable"], configs["retention.ms"], configs["retention.bytes"]) == (
        "true",
        "123456789",
        "77777777",
    )
    async with asyncio.timeout(30):
        while list(cluster.root.glob("*/t-0")):
            await asyncio.sleep(0.01)
    assert not broker.store.partitions


async def test_retry_across_the_switch_is_a_duplicate(client: WireClient, local: Create) -> None:
    await local()
    first = numbered(3, producer_id=7, epoch=0, sequence=0)
    second = numbered(2, producer_id=7, epoch=0, sequence=3)
    third = numbered(1, producer_id=7, epoch=0, sequence=5)
    for produced in (first, second):
        assert (await client.produce("t", bytes(produced))).error_code == 0
    await switched(client)
    answers = [await client.produce("t", bytes(produced)) for produced in (second, first, third)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 3),
        (0, 0),
        (0, 5),
    ]
    assert await records(client) == [0, 1, 2, 3, 4, 5]
    gap = numbered(1, producer_id=7, epoch=0, sequence=9)
    assert (await client.produce("t", bytes(gap))).error_code == 45


async def test_empty_topic(client: WireClient, local: Create) -> None:
    await local()
    await switched(client)
    assert await records(client) == []
    assert (await client.produce("t", batch(b"a"))).base_offset == 0
    assert await records(client) == [0]


@pytest.mark.parametrize("start", [3, 8])
async def test_deleted_prefix_stays_deleted(client: WireClient, local: Create, start: int) -> None:
    """Offset 3 is within a batch; 8 is the end."""
    await local()
    for _ in range(4):
        await client.produce("t", batch(b"a", b"b"))
    assert (await moved_start(client, start)).error_code == 0
    await switched(client)
    async with asyncio.timeout(60):
        while (found := await client.fetch("t", start, max_wait=200)).high_watermark < 0:
            """The broker does not know it yet."""
    assert (found.error_code, found.log_start_offset, found.high_watermark) == (0, start, 8)
    assert [record for record in await records(client, start) if record >= start] == list(
        range(start, 8)
    )
    assert (await client.fetch("t", start - 1)).error_code == 1
    assert (await client.produce("t", batch(b"c"))).base_offset == 8


async def test_append_times_stay(broker: BrokerServer, client: WireClient, local: Create) -> None:
    await local(message_timestamp_type="LogAppendTime")
    one = bytes(numbered(1, producer_id=7, epoch=0, sequence=0))
    first = await client.produce("t", one)
    before = await client.fetch("t")
    await switched(client)
    again = await client.produce("t", one)
    assert (again.base_offset, again.log_append_time) == (0, first.log_append_time)
    assert str(first.log_append_time) > "2020"
    after = await client.fetch("t", max_wait=30_000)
    assert after_switch(broker, before.records) == bytes(after.records)


async def test_old_epochs_end_where_the_log_does(
    broker: BrokerServer, client: WireClient, local: Create
) -> None:
    await local()
    await client.produce("t", batch(b"a", b"b"))
    await switched(client)
    metadata = await client.call("Metadata", 9, {"topics": [{"name": "t"}]})
    [shown] = metadata.topics[0].partitions
    assert (shown.leader_id, shown.leader_epoch) == (broker.node_id, 1)
    stale = await client.fetch("t", current_leader_epoch=0)
    assert stale.error_code == FENCED_LEADER_EPOCH
    answer = await client.call(
        "OffsetForLeaderEpoch",
        4,
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": "t",
                    "partitions": [
                        {"partition": 0, "current_leader_epoch": 1, "leader_epoch": epoch}
                        for epoch in (0,)
                    ],
                }
            ],
        },
    )
    [ended] = answer.topics[0].partitions
    assert (ended.error_code, ended.leader_epoch, ended.end_offset) == (0, 0, 2)


async def test_a_refused_switch_names_the_cause(
    cluster: Cluster, broker: BrokerServer, client: WireClient, create: Create
) -> None:
    await create("s", diskless_enable="false")
    await client.produce("s", batch(b"a"))
    lane = SinkTarget(
        topic="s",
        topic_id=broker.partitions.topics["s"].topic.topic_id,
        partition=0,
        producer_id=1,
        base_sequence=0,
        records=1,
    )
    intent = SinkCommit(query_id="q", owner=None, batch_id=1, state="intent", targets=(lane,))
    await cluster.control.save_sink_commit(intent, expected_version=0)
    refused = await altered(client, "s", diskless_enable="true")
    assert refused.error_code == INVALID_CONFIG
    assert "query 'q' has not finished its commit of batch 1" in refused.error_message
    assert (await client.produce("s", batch(b"b"))).base_offset == 1
    assert not broker.partitions.topics["s"].diskless


async def test_store_that_fails_leaves_a_local_topic(
    cluster: Cluster,
    broker: BrokerServer,
    client: WireClient,
    local: Create,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await local()
    await client.produce("t", batch(b"a"))
    store = cluster.objects
    assert isinstance(store, MemoryStore)
    put = store.put

    async def refuse(key: str, pieces: Any) -> None:
        if key.startswith("archive/"):
            raise StoreUnavailable("the store is away")
        await put(key, pieces)

    monkeypatch.setattr(store, "put", refuse)
    monkeypatch.setattr("penstock.diskless.topics.migration.PUT_BACKOFF", Backoff(first_ms=1))
    refused = await altered(client, "t", diskless_enable="true")
    assert refused.error_code != 0
    assert "the store is away" in refused.error_message
    assert (await client.produce("t", batch(b"b"))).base_offset == 1
    monkeypatch.setattr(store, "put", put)
    await switched(client)
    assert await records(client) == [0, 1]


async def test_fence_stays_until_the_commit_is_known(
    cluster: Cluster,
    broker: BrokerServer,
    client: WireClient,
    local: Create,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit takes effect but its response is lost; producers stay fenced."""
    await local()
    await client.produce("t", batch(b"a"))
    other = await cluster.connect(broker)
    monkeypatch.setattr(leader, "SWITCH_PAUSE_SECONDS", 0.01)
    real = cluster.control.migrate_topic
    calls: list[TopicMigration] = []
    refused: list[int] = []

    async def lossy(migration: TopicMigration) -> Any:
        calls.append(migration)
        refused.append((await other.produce("t", batch(b"x"))).error_code)
        assert isinstance(broker.partitions.with_log("t", 0).log.state.fence, NotLeader)
        if len(calls) == 1:
            raise ControlUnavailable("nothing came back")
        answer = await real(migration)
        if len(calls) == 2:
            raise ControlUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(cluster.control, "migrate_topic", lossy)
    await switched(client)
    assert refused == [NOT_LEADER] * 3
    assert await records(client) == [0]
    assert (await client.produce("t", batch(b"b"))).base_offset == 1


async def test_request_that_does_not_wait_is_joined(
    cluster: Cluster,
    broker: BrokerServer,
    client: WireClient,
    local: Create,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await local()
    await client.produce("t", batch(b"a"))
    go_on = asyncio.Event()
    put = cluster.objects.put

    async def slow(key: str, pieces: Any) -> None:
        await go_on.wait()
        await put(key, pieces)

    monkeypatch.setattr(cluster.objects, "put", slow)
    monkeypatch.setattr(migrations, "SWITCH_WAIT_SECONDS", 0.05)
    waiting = await altered(client, "t", diskless_enable="true")
    assert waiting.error_code == TIMED_OUT
    assert "is becoming diskless: copying" in waiting.error_message
    view = broker.migrations.view(broker.partitions.topics["t"].topic.topic_id)
    assert view is not None
    assert (view["state"], view["copied_bytes"]) == ("copying", 0)
    assert (await client.produce("t", batch(b"b"))).base_offset == 1
    go_on.set()
    monkeypatch.setattr(migrations, "SWITCH_WAIT_SECONDS", 60.0)
    await switched(client)
    assert await records(client) == [0, 1]
    assert broker.migrations.view(broker.partitions.topics["t"].topic.topic_id) is None
    values = {
        (sample.metric.name, sample.labels): sample.value for sample in broker.migrations.samples()
    }
    assert values["penstock_topic_switches_total", ("done",)] == 1
    assert values["penstock_topic_switches_running", ()] == 0
    assert values["penstock_topic_switch_copied_bytes_total", ()] != 0


async def test_a_compacted_topic_becomes_diskless_and_stays_compacted(
    cluster: Cluster, local: Callable[..., Awaitable[Any]], broker: BrokerServer, client: WireClient
) -> None:
    now_ms = broker.clock.now_ms()

    def keyed(offset: int, key: bytes, value: bytes) -> bytes:
        return encode(Batch(offset, (Record(offset, now_ms - 5_000, key, value),), leader_epoch=0))

    await local(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    log = broker.store.partitions[TopicPartition("t", 0)]
    left = [(4, b"a", b"1"), (9, b"b", b"2"), (30, b"a", b"3")]
    holed = b"".join([keyed(*record) for record in left])
    log.replica.append(memoryview(bytearray(holed)), now_ms=now_ms)
    flushed = asyncio.get_running_loop().create_future()
    broker.store.flush(flushed.set_result)
    broker.store.commit_pending()
    assert await flushed is None
    await switched(client)
    assert await records(client) == list(range(31))
    row = await client.fetch("t", 5)
    assert [
        (record.offset, record.key, record.value) for record in read(bytes(row.records))
    ] == left[1:]
    assert (await client.produce("t", keyed(0, b"b", b"4"))).base_offset == 31
    other = await cluster.start(
        diskless_compaction_interval_ms=20, diskless_consolidation_min_age_ms=0
    )
    topic_id = broker.cluster.image.topics["t"].topic_id
    async with asyncio.timeout(60):
        while await cluster.control.clean_offset(topic_id, 0) < 32:
            await asyncio.sleep(0.01)
    reader = await cluster.connect(other)
    assert await records(reader) == list(range(32))
    row = await reader.fetch("t", 0)
    there = [(record.offset, record.key, record.value) for record in read(bytes(row.records))]
    assert there == [left[2], (31, b"b", b"4")]
