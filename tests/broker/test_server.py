"""The main paths over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.base.errors import CorruptError, UnavailableError
from penstock.base.ids import TopicPartition
from penstock.broker.handlers.api_versions import TELEMETRY
from penstock.broker.server import BrokerServer
from penstock.wire.kafka.apis import APIS
from tests.broker.conftest import StartBroker
from tests.broker.fake_store import FakeStore
from tests.broker.wire_client import (
    WireClient,
    batch,
    fetch_request,
    produce_request,
    promising,
)

Connect = Callable[[BrokerServer], Awaitable[WireClient]]


async def test_api_versions_lists_the_table_in_every_version(client: WireClient) -> None:
    for version in range(5):
        answer = await client.call("ApiVersions", version, _software(version))
        assert answer.error_code == 0
        got = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
        offered = [api for api in APIS.values() if api.name not in TELEMETRY]
        assert got == {api.key: (api.minimum, api.maximum) for api in offered}


def _software(version: int) -> dict[str, str]:
    return {"client_software_name": "tests", "client_software_version": "1"}


async def test_records_come_back_as_they_were_sent(client: WireClient) -> None:
    await client.create("t")
    sent = batch(b"one", b"two")
    first = await client.produce("t", sent)
    assert (first.error_code, first.base_offset) == (0, 0)
    second = await client.produce("t", batch(b"three"))
    assert second.base_offset == 2
    got = await client.fetch("t")
    assert got.high_watermark == 3
    assert got.records[12:16] == bytes(4)
    assert got.records[21 : len(sent)] == sent[21:]
    assert (await client.fetch("t", 3)).records == b""
    inside = await client.fetch("t", 1)
    assert inside.records == got.records


@pytest.mark.parametrize("version", range(3, 14))
async def test_produce_in_every_version(client: WireClient, version: int) -> None:
    await client.create("t", partitions=2)
    topic: dict[str, Any] = {"name": "t"}
    if version >= 13:
        answer = await client.call("Metadata", 12, {"topics": [{"name": "t"}]})
        topic = {"topic_id": answer.topics[0].topic_id}
    rows = [
        {"index": 0, "records": batch(b"a")},
        {"index": 1, "records": batch(b"b")},
        {"index": 2, "records": batch(b"c")},
    ]
    answer = await client.call(
        "Produce",
        version,
        {"acks": 1, "timeout": 1000, "topic_data": [{**topic, "partition_data": rows}]},
    )
    errors = [item.error_code.name for item in answer.responses[0].partition_responses]
    assert errors == ["none", "none", "unknown_topic_or_partition"]


@pytest.mark.parametrize("version", range(4, 19))
async def test_fetch_in_every_version(client: WireClient, version: int) -> None:
    await client.create("t")
    await client.produce("t", batch(b"a"))
    request = fetch_request({("t", 0): 0})
    if version >= 13:
        answer = await client.call("Metadata", 12, {"topics": [{"name": "t"}]})
        request["topics"][0]["topic_id"] = answer.topics[0].topic_id
    answer = await client.call("Fetch", version, request)
    assert answer.responses[0].partitions[0].records[-5:-1].endswith(b"\x02a")


async def test_responses_leave_in_the_order_of_the_requests(client: WireClient) -> None:
    await client.create("t")
    frames = [
        client.frame("Fetch", 12, fetch_request({("t", 0): 0}, max_wait=30_000)),
        client.frame("ApiVersions", 0, {}),
        client.frame("Produce", 9, produce_request("t", batch(b"x"))),
        client.frame("Metadata", 12, {"topics": [{"name": "other"}]}),
        client.frame("ApiVersions", 0, {}),
    ]
    client.writer.write(b"".join(frames))
    fetched = await client.response("Fetch", 12)
    first = client.last_correlation_id
    assert fetched.responses[0].partitions[0].high_watermark == 1
    for step, (name, version) in enumerate(
        [("ApiVersions", 0), ("Produce", 9), ("Metadata", 12), ("ApiVersions", 0)], start=1
    ):
        await client.response(name, version)
        assert client.last_correlation_id == first + step


async def test_acks_zero_takes_no_place_among_the_answers(client: WireClient) -> None:
    await client.create("t")
    client.writer.write(client.frame("Produce", 9, produce_request("t", batch(b"x"), acks=0)))
    client.writer.write(client.frame("ApiVersions", 0, {}))
    await client.response("ApiVersions", 0)
    assert (await client.fetch("t")).high_watermark == 1


async def test_acks_zero_with_an_error_closes_the_connection(client: WireClient) -> None:
    client.writer.write(client.frame("Produce", 9, produce_request("none", batch(b"x"), acks=0)))
    assert await client.closed_by_server()


async def test_acks_that_mean_nothing(client: WireClient) -> None:
    await client.create("t")
    answer = await client.produce("t", batch(b"x"), acks=2)
    assert answer.error_code.name == "invalid_required_acks"
    assert "2" in answer.error_message


async def test_an_answer_waits_until_its_records_are_durable(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore
) -> None:
    broker, store = await start_broker(store=fake_store), fake_store
    client = await connect(broker)
    await client.create("t")
    store.held = True
    client.writer.write(client.frame("Produce", 9, produce_request("t", batch(b"x"))))
    other = await connect(broker)
    while store.partitions[TopicPartition("t", 0)].log_end_offset == 0:
        await other.call("ApiVersions", 0, {})
    assert (await other.fetch("t")).high_watermark == 0
    assert broker.produce_waiting
    store.held = False
    store.commit_pending()
    answer = await client.response("Produce", 9)
    assert answer.responses[0].partition_responses[0].base_offset == 0


async def test_a_sync_that_takes_longer_than_the_timeout(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore
) -> None:
    store = fake_store
    client = await connect(await start_broker(store=store))
    await client.create("t")
    store.held = True
    request = {**produce_request("t", batch(b"x")), "timeout": 1}
    answer = await client.call("Produce", 9, request)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code.name == "request_timed_out"
    store.held = False
    store.commit_pending()
    assert (await client.fetch("t")).high_watermark == 1


async def test_a_sync_that_fails_is_not_acknowledged(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore
) -> None:
    client = await connect(await start_broker(store=fake_store))
    await client.create("t")
    fake_store.sync_error = UnavailableError("the journal cannot be synced")
    answer = await client.produce("t", batch(b"x"))
    assert (answer.error_code.name, answer.base_offset) == ("kafka_storage_error", -1)
    assert answer.error_message == "the journal cannot be synced"
    assert (await client.fetch("t")).high_watermark == 0


async def test_a_long_poll_is_woken_by_a_producer(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    producer = await connect(broker)
    waiting = asyncio.create_task(client.fetch("t", max_wait=30_000))
    while not len(broker.fetch_hub):
        await producer.call("ApiVersions", 0, {})
    await producer.produce("t", batch(b"x"))
    assert (await waiting).high_watermark == 1
    assert len(broker.fetch_hub) == 0


async def test_a_long_poll_ends_with_its_connection(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    gone = await connect(broker)
    for _ in range(2):
        gone.writer.write(gone.frame("Fetch", 12, fetch_request({("t", 0): 0}, max_wait=60_000)))
    hub = broker.fetch_hub
    async with asyncio.timeout(60):
        while len(hub) < 2:
            await asyncio.sleep(0)
        await gone.close()
        while len(hub):
            await asyncio.sleep(0)
    await client.produce("t", batch(b"one"))
    assert (await client.fetch("t")).records[21:] == batch(b"one")[21:]


async def test_a_long_poll_that_finds_nothing_ends_by_itself(client: WireClient) -> None:
    await client.create("t")
    assert (await client.fetch("t", max_wait=50)).records == b""


async def test_a_long_poll_of_a_deleted_topic_ends_with_an_error(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    other = await connect(broker)
    waiting = asyncio.create_task(client.fetch("t", max_wait=30_000))
    while not len(broker.fetch_hub):
        await other.call("ApiVersions", 0, {})
    await other.call("DeleteTopics", 5, {"topic_names": ["t"], "timeout": 1000})
    assert (await waiting).error_code.name == "unknown_topic_or_partition"


async def test_min_bytes_holds_an_answer_back(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    await client.create("t")
    producer = await connect(broker)
    size = len(batch(b"x"))
    waiting = asyncio.create_task(client.fetch("t", max_wait=30_000, min_bytes=2 * size))
    await producer.produce("t", batch(b"x"))
    await producer.call("ApiVersions", 0, {})
    assert not waiting.done()
    await producer.produce("t", batch(b"x"))
    assert len((await waiting).records) == 2 * size


async def test_the_first_batch_is_returned_whole_and_budgets_are_shared(
    client: WireClient,
) -> None:
    await client.create("t", partitions=3)
    big = batch(b"x" * 5000)
    for partition in range(3):
        await client.produce("t", big, partition=partition)
    seen = set()
    for _ in range(3):
        request = fetch_request({("t", index): 0 for index in range(3)}, max_bytes=100)
        answer = await client.call("Fetch", 12, request)
        filled = [row for row in answer.responses[0].partitions if row.records]
        assert [len(row.records) for row in filled] == [len(big)]
        seen.add(filled[0].partition_index)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(("offset", "error"), [(-1, 1), (4, 1), (3, 0)])
async def test_offsets_out_of_range(client: WireClient, offset: int, error: int) -> None:
    await client.create("t")
    await client.produce("t", batch(b"a", b"b", b"c"))
    assert (await client.fetch("t", offset)).error_code == error


@pytest.mark.parametrize(("epoch", "name"), [(0, "none"), (7, "unknown_leader_epoch")])
async def test_leader_epochs_are_compared(client: WireClient, epoch: int, name: str) -> None:
    await client.create("t")
    assert (await client.fetch("t", current_leader_epoch=epoch)).error_code.name == name


async def test_the_newest_record_where_a_header_has_a_later_maximum(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch(b"a", timestamp_ms=1000))
    await client.produce("t", promising(batch(b"b", b"c", timestamp_ms=2000), 5000))
    partition = {"partition_index": 0, "current_leader_epoch": -1}
    for timestamp, expected in ((-3, (1, 2000)), (1500, (1, 2000)), (2500, (-1, -1))):
        topics = [{"name": "t", "partitions": [{**partition, "timestamp": timestamp}]}]
        request = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        answer = await client.call("ListOffsets", 7, request)
        row = answer.topics[0].partitions[0]
        assert (row.offset, row.timestamp) == expected


async def test_list_offsets(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch(b"a", timestamp_ms=1000))
    await client.produce("t", batch(b"b", timestamp_ms=2000))
    expected = {-1: (2, -1), -2: (0, -1), -3: (1, 2000), -4: (0, -1), -5: (-1, -1)}
    expected |= {1500: (1, 2000), 3000: (-1, -1), -6: (-1, -1), -7: (-1, -1)}
    first_version = {-3: 7, -4: 8, -5: 9, -6: 11, -7: 99}
    for version in range(1, 12):
        for timestamp, result in expected.items():
            answer = await client.call(
                "ListOffsets",
                version,
                {
                    "replica_id": -1,
                    "isolation_level": 1,
                    "timeout": 1000,
                    "topics": [
                        {
                            "name": "t",
                            "partitions": [{"partition_index": 0, "timestamp": timestamp}],
                        }
                    ],
                },
            )
            row = answer.topics[0].partitions[0]
            told = ("none", *result)
            if version < first_version.get(timestamp, 0):
                told = ("unsupported_version", -1, -1)
            assert (row.error_code.name, row.offset, row.timestamp) == told


async def test_offsets_of_leader_epochs(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch(b"a"))
    for version in (2, 3, 4):
        rows = [{"partition": index, "leader_epoch": 0} for index in (0, 9)]
        answer = await client.call(
            "OffsetForLeaderEpoch",
            version,
            {"replica_id": -1, "topics": [{"topic": "t", "partitions": rows}]},
        )
        known, unknown = answer.topics[0].partitions
        assert (known.leader_epoch, known.end_offset) == (0, 1)
        assert unknown.error_code.name == "unknown_topic_or_partition"


@pytest.mark.parametrize("version", range(14))
async def test_metadata_asks_for_all_none_or_some(client: WireClient, version: int) -> None:
    await client.create("a")
    await client.create("b")
    everything = await client.call("Metadata", version, {"topics": [] if version == 0 else None})
    assert {topic.name for topic in everything.topics} == {"a", "b"}
    assert [broker.node_id for broker in everything.brokers] == [1]
    if version > 0:
        assert (await client.call("Metadata", version, {"topics": []})).topics == ()
    request = {"topics": [{"name": "b"}, {"name": "no"}], "allow_auto_topic_creation": False}
    if version >= 4:
        some = await client.call("Metadata", version, request)
        assert [topic.error_code for topic in some.topics] == [0, 3]
        assert [topic.name for topic in some.topics] == ["b", "no"]


async def test_metadata_creates_topics_where_both_sides_allow_it(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = await start_broker({"num.partitions": 3})
    client = await connect(server)
    request = {"topics": [{"name": "new"}, {"name": "a b"}], "allow_auto_topic_creation": True}
    made, bad = (await client.call("Metadata", 12, request)).topics
    assert (made.error_code, len(made.partitions)) == (0, 3)
    assert bad.error_code.name == "invalid_topic_exception"
    by_id = await client.call("Metadata", 12, {"topics": [{"topic_id": made.topic_id}]})
    assert by_id.topics[0].name == "new"
    off = await connect(await start_broker({"auto.create.topics.enable": False}))
    assert (await off.call("Metadata", 12, request)).topics[0].error_code == 3


async def test_cached_metadata_follows_the_image(client: WireClient) -> None:
    for count in range(3):
        for _ in range(2):
            answer = await client.call("Metadata", 12, {"topics": None})
            assert len(answer.topics) == count
        await client.create(f"t{count}")


async def test_producer_ids_are_never_given_twice(client: WireClient) -> None:
    seen = set()
    for version in range(6):
        request: dict[str, Any] = {"transactional_id": None, "producer_id": -1}
        request |= {"transaction_timeout": 1, "producer_epoch": -1}
        answer = await client.call("InitProducerId", version, request)
        assert answer.error_code == 0
        seen.add(answer.producer_id)
    assert len(seen) == 6
    request["transactional_id"] = "x"
    for version in range(6):
        answer = await client.call("InitProducerId", version, request)
        assert (answer.error_code, answer.producer_epoch) == (0, version)
        seen.add(answer.producer_id)
    assert len(seen) == 7


async def test_an_unexpected_failure_answers_only_its_own_request(
    start_broker: StartBroker,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    fake_store: FakeStore,
) -> None:
    store = fake_store
    client = await connect(await start_broker(store=store))
    await client.create("t", partitions=2)
    store.partitions[TopicPartition("t", 0)].fail_next = ZeroDivisionError("planted")
    assert (await client.produce("t", batch(b"x"))).error_code == -1
    assert "planted" in caplog.text
    assert (await client.produce("t", batch(b"x"))).error_code == 0
    store.partitions[TopicPartition("t", 0)].fail_next = CorruptError("planted")
    assert (await client.produce("t", batch(b"x"))).error_message == "planted"


async def test_stopping_answers_long_polls_and_closes_the_store(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore
) -> None:
    server = await start_broker({"shutdown.timeout.ms": 100_000}, fake_store)
    client = await connect(server)
    await client.create("t")
    waiting = asyncio.create_task(client.fetch("t", max_wait=60_000))
    while not len(server.fetch_hub):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await server.stop()
    assert (await waiting).error_code == 0
    assert await client.closed_by_server()
    assert fake_store.closed
    with pytest.raises(OSError, match="onnect"):
        await WireClient.connect(server.kafka_address)


async def test_metrics_say_what_happened(broker: BrokerServer, client: WireClient) -> None:
    from penstock.base.metrics import render

    await client.create("t")
    await client.produce("t", batch(b"x"))
    await client.produce("t", b"short")
    text = render(broker.registry.collect()).decode()
    assert 'kafka_topic_partition_current_offset{partition="0",topic="t"} 1.0' in text
    assert "kafka_brokers 1.0" in text
    assert 'penstock_kafka_request_duration_seconds_count{api="Produce"} 2.0' in text
    assert 'error="INVALID_RECORD"' in text
