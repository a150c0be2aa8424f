"""Produce requests that are appended at once, without decoding, under `log.flush.policy = os`."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.requests import joining
from penstock.broker.server import BrokerServer
from penstock.records.appends import AppendResult
from penstock.storage import PartitionLog
from tests.broker.conftest import StartBroker
from tests.broker.test_joined_requests import alter, burst, errors, forbid_writes, numbered
from tests.broker.test_quotas import limit
from tests.broker.wire_client import WireClient, batch, fetch_request
from tests.faulty_files import FaultyFiles
from tests.kernels.joins import find_batch

Connect = Callable[[BrokerServer], Awaitable[WireClient]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[AppendResult | None]:
    """Return the results of attempts to append at once."""
    results: list[AppendResult | None] = []
    append = PartitionLog.append_checked

    def noted(self: PartitionLog, *rest: Any, **named: Any) -> AppendResult | None:
        results.append(append(self, *rest, **named))
        return results[-1]

    monkeypatch.setattr(PartitionLog, "append_checked", noted)
    if joining._native("find_batch") is None:  # the kernels are compiled by Numba
        monkeypatch.setattr(joining, "_native", {"find_batch": find_batch, "join_batches": 1}.get)
    return results


@pytest.fixture
async def broker(start_broker: StartBroker) -> BrokerServer:
    return await start_broker(policy="os")


async def begin(client: WireClient, **options: Any) -> int:
    """Send the requests after which the next ones are appended at once; return their number."""
    for _ in range(2):
        await burst(client, [batch(b"before")], **options)
    return 2


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12, 13])
async def test_a_repeated_request_is_appended_at_once(
    client: WireClient,
    broker: BrokerServer,
    at_once: list[AppendResult | None],
    version: int,
) -> None:
    await client.create("t", partitions=2)
    options: dict[str, Any] = {"version": version}
    if version >= 13:
        options["topic_id"] = broker.partitions.topics["t"].topic.topic_id.bytes
    count = await begin(client, **options)
    del at_once[:]
    before = sum(broker.metrics.latency["Produce"].counts)
    expected = b""
    for number in range(5):
        data = bytearray(batch(b"%d" % number * (number + 1), b"x"))
        (row,) = await burst(client, [bytes(data)], **options)
        assert (errors([row]), row.base_offset) == (["none"], count + 2 * number)
        assert not row.log_append_time or row.log_append_time.total_seconds() == -0.001
        struct.pack_into(">q", data, 0, count + 2 * number)
        struct.pack_into(">i", data, 12, broker.partitions.partition("t", 0).leader_epoch)
        expected += data
    assert len([result for result in at_once if result is not None]) == 5
    assert sum(broker.metrics.latency["Produce"].counts) == before + 5
    assert bytes((await client.fetch("t", count)).records) == expected
    (connection,) = broker._connections
    assert not broker.produce_waiting
    assert not connection.in_flight


@pytest.mark.parametrize(("bad", "error"), [
    (batch(b"one")[:-1] + b"\xff", "corrupt_message"),
    (batch(b"one", attributes=0x20), "invalid_record"),
    (batch(b"one") * 2, "invalid_record"),
    (batch(b"one")[:60], "invalid_record"),
    (batch(b"one", timestamp_ms=-5), "none"),
    (batch(b"x" * joining.JOINED_FRAME_BYTES_MAX), "none"),
    (b"", "invalid_record"),
], ids=["checksum", "control", "two", "cut", "negative", "large", "empty"])  # fmt: skip
async def test_a_request_that_cannot_be_appended_at_once_is_decoded(
    client: WireClient, at_once: list[AppendResult | None], bad: bytes, error: str
) -> None:
    await client.create("t")
    count = await begin(client)
    del at_once[:]
    (row,) = await burst(client, [bad])
    assert errors([row]) == [error]
    count += error == "none"
    assert (await client.produce("t", batch(b"next"))).base_offset == count
    assert [result.base_offset for result in at_once if result is not None] == [count]


async def test_requests_of_an_idempotent_producer(
    client: WireClient, at_once: list[AppendResult | None]
) -> None:
    await client.create("t")
    count = await begin(client)
    del at_once[:]
    for number, data in enumerate(numbered(0, 1, 2)):
        assert (await client.produce("t", data)).base_offset == count + number
    assert len([result for result in at_once if result is not None]) == 3
    assert (await client.produce("t", numbered(1)[0])).base_offset == count + 1
    again = await client.produce("t", numbered(7)[0])
    assert again.error_code.name == "out_of_order_sequence_number"
    assert (await client.produce("t", numbered(3)[0])).base_offset == count + 3
    assert (await client.fetch("t", count)).high_watermark == count + 4


async def test_requests_received_together_are_answered_in_order(
    client: WireClient, at_once: list[AppendResult | None]
) -> None:
    await client.create("t")
    count = await begin(client)
    for size in (2, 1, 3, 1, 9, 1, 2, 1):
        found = await burst(client, [batch(b"x")] * size)
        assert errors(found) == ["none"] * size
        assert [row.base_offset for row in found] == list(range(count, count + size))
        count += size
    assert (await client.fetch("t")).high_watermark == count


async def test_requests_to_a_topic_that_changes(
    client: WireClient, at_once: list[AppendResult | None]
) -> None:
    await client.create("t")
    count = await begin(client)
    await alter(client, "message.timestamp.type", "LogAppendTime")
    del at_once[:]
    row = await client.produce("t", batch(b"x"))
    assert row.base_offset == count
    assert row.log_append_time.timestamp() > 0
    await alter(client, "message.timestamp.type", "CreateTime")
    await alter(client, "flush.messages", "1")
    for number in range(3):
        assert (await client.produce("t", batch(b"x"))).base_offset == count + 1 + number
    assert not [result for result in at_once if result is not None]
    await client.call("DeleteTopics", 5, {"topic_names": ["t"], "timeout": 5000})
    assert errors(await burst(client, [batch(b"x")])) == ["unknown_topic_or_partition"]
    await client.create("t")
    for number in range(4):
        assert (await client.produce("t", batch(b"x"))).base_offset == number
    assert [result.base_offset for result in at_once if result is not None][-1] == 3


async def test_a_topic_that_demands_groups_is_tried_again_after_some_requests(
    client: WireClient, at_once: list[AppendResult | None]
) -> None:
    await client.create("t")
    await begin(client)
    await alter(client, "flush.messages", "1000000")
    del at_once[:]
    for _ in range(2 * joining.QUEUED_REQUESTS):
        assert (await client.produce("t", batch(b"x"))).error_code.name == "none"
    assert at_once == [None, None]


async def test_requests_under_quotas_and_checked_ones_are_decoded(
    start_broker: StartBroker, connect: Connect, at_once: list[AppendResult | None]
) -> None:
    broker = await start_broker(policy="os")
    client = await connect(broker)
    await client.create("t")
    await begin(client)
    await limit(client, "producer_byte_rate", 1e9)
    del at_once[:]
    await client.produce("t", batch(b"x"))
    assert not at_once
    checked = await start_broker(policy="os")
    checked.checks_requests = True
    client = await connect(checked)
    await client.create("t")
    await begin(client)
    await client.produce("t", batch(b"x"))
    assert not at_once


async def test_a_consumer_that_waits_receives_the_records(
    client: WireClient, broker: BrokerServer, connect: Connect
) -> None:
    await client.create("t")
    count = await begin(client)
    consumer = await connect(broker)
    for number in range(count, count + 5):
        wanted = fetch_request({("t", 0): number}, max_wait=20_000)
        consumer.writer.write(consumer.frame("Fetch", 12, wanted))
        await client.call("ApiVersions", 0, {})
        assert (await client.produce("t", batch(b"x"))).base_offset == number
        answer = await consumer.response("Fetch", 12)
        assert answer.responses[0].partitions[0].high_watermark == number + 1


async def test_a_full_disk_is_reported(
    start_broker: StartBroker, connect: Connect, at_once: list[AppendResult | None]
) -> None:
    files = FaultyFiles()
    broker = await start_broker(policy="os", files=files)
    client = await connect(broker)
    await client.create("t")
    count = await begin(client)
    files.room = 10
    del at_once[:]
    row = await client.produce("t", batch(b"x"))
    assert row.error_code.name == "kafka_storage_error"
    files.room = None
    for number in range(joining.QUEUED_REQUESTS + 1):
        assert (await client.produce("t", batch(b"x"))).base_offset == count + number
    assert at_once[0] is None
    assert at_once[-1] is not None
    assert (await client.fetch("t")).high_watermark == count + joining.QUEUED_REQUESTS + 1


async def test_a_right_that_is_taken_away_applies_to_the_next_request(
    client: WireClient, broker: BrokerServer, at_once: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    forbidden = forbid_writes(broker, monkeypatch)
    await begin(client)
    await client.produce("t", batch(b"x"))
    assert at_once
    del at_once[:]
    forbidden.add("t")
    refused = await client.produce("t", batch(b"x"))
    assert refused.error_code.name == "topic_authorization_failed"
    assert not at_once


async def test_requests_in_different_turns_do_not_make_a_partition_busy(
    client: WireClient, broker: BrokerServer, at_once: list[AppendResult | None]
) -> None:
    await client.create("t")
    await begin(client)
    del at_once[:]
    for _ in range(30):
        await client.produce("t", batch(b"x"))
    assert len(at_once) == 30
    (connection,) = broker._connections
    repeats = connection.repeats
    assert isinstance(repeats, joining.Repeats)
    assert not any(known.target.busy for known in repeats.known.values())
