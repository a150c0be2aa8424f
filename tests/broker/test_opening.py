"""Compressed batches that a topic has to open are opened beside the event loop, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.requests.opening import OPENED_NEARBY_BYTES_MAX, Opener
from penstock.broker.server import BrokerServer
from penstock.records import HEADER_BYTES, Codec, decode_header, decompress
from penstock.records.columnar.validation import VALIDATED_BATCH_BYTES_MAX
from tests.broker.conftest import StartBroker
from tests.broker.test_record_validation import alter
from tests.broker.wire_client import WireClient, batch, produce_request
from tests.records.nonsense import GOOD, framed, sealed
from tests.records.reference import varint

Connect = Callable[[BrokerServer], Awaitable[WireClient]]
MESSAGE_TOO_LARGE = 10
PACKED = sealed(b"".join(GOOD), len(GOOD), codec=Codec.GZIP)
WAYS = [
    pytest.param({"log.record.validation": "full"}, PACKED, id="full validation"),
    pytest.param({"compression.type": "gzip"}, batch(b"v"), id="another codec"),
]


class Gate:
    """A job that occupies the opener's thread until it is released."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.may_end.wait(60)


async def held(opener: Opener) -> tuple[Gate, asyncio.Task[None]]:
    gate = Gate()
    task = asyncio.create_task(opener.run("another client", gate))
    await asyncio.to_thread(gate.begun.wait, 60)
    return gate, task


@pytest.mark.parametrize(("settings", "packed"), WAYS)
async def test_other_connections_are_served_while_a_batch_is_opened(
    start_broker: StartBroker, connect: Connect, settings: dict[str, str], packed: bytes
) -> None:
    broker = await start_broker(settings)
    sender, other = await connect(broker), await connect(broker)
    await sender.create("t", partitions=2)
    await sender.create("plain")
    await alter(sender, "plain", "compression.type", "producer")
    gate, task = await held(broker.opener)
    sender.writer.write(sender.frame("Produce", 9, produce_request("t", packed)))
    sender.writer.write(sender.frame("Produce", 9, produce_request("plain", batch(b"later"))))
    for number in range(3):
        assert (await other.produce("plain", batch(b"v"))).base_offset == number
    gate.may_end.set()
    await task
    for offset in (0, 3):
        answer = (await sender.response("Produce", 9)).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, offset)
    assert (await other.fetch("t")).high_watermark > 0


async def test_batches_of_a_connection_keep_their_order(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(await start_broker({"log.record.validation": "full"}))
    await client.create("t")
    sent = [PACKED, batch(b"v")] * 3
    for records in sent:
        client.writer.write(client.frame("Produce", 9, produce_request("t", records)))
    offsets = []
    for _ in sent:
        answer = (await client.response("Produce", 9)).responses[0].partition_responses[0]
        offsets.append(answer.base_offset)
    assert offsets == [0, 3, 4, 7, 8, 11]


async def test_a_request_stops_at_the_first_batch_that_unpacks_to_too_much(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(await start_broker({"log.record.validation": "full"}))
    await client.create("t", partitions=4)
    bomb = sealed(bytes(VALIDATED_BATCH_BYTES_MAX + 1), 3, codec=Codec.GZIP)
    rows: list[dict[str, Any]] = [
        {"index": 0, "records": PACKED},
        *({"index": n, "records": bomb} for n in (1, 2)),
        {"index": 3, "records": batch(b"v")},
    ]
    request = produce_request("t") | {"topic_data": [{"name": "t", "partition_data": rows}]}
    answer = await client.call("Produce", 9, request)
    first, large, after, plain = answer.responses[0].partition_responses
    assert [first.error_code, plain.error_code] == [0, 0]
    assert [large.error_code, after.error_code] == [MESSAGE_TOO_LARGE] * 2
    assert f"more than the limit of {VALIDATED_BATCH_BYTES_MAX}" in large.error_message
    assert "not decompressed, because earlier batches of the request" in after.error_message


@pytest.mark.parametrize("settings", [WAYS[0].values[0], {"compression.type": "zstd"}])
async def test_a_batch_that_unpacks_to_much_is_stored(
    start_broker: StartBroker, connect: Connect, settings: dict[str, str]
) -> None:
    broker = await start_broker(settings)
    client, value = await connect(broker), bytes(2 * OPENED_NEARBY_BYTES_MAX)
    await client.create("t")
    body = b"\0\0\0" + varint(1) + b"k" + varint(len(value)) + value + varint(0)
    for offset in range(2):
        answer = await client.produce("t", sealed(framed(body), 1, codec=Codec.GZIP))
        assert (answer.error_code, answer.base_offset) == (0, offset)
    stored = bytes((await client.fetch("t")).records)
    header = decode_header(stored)
    codec = Codec.ZSTD if settings.get("compression.type") else Codec.GZIP
    assert (header.codec, header.base_offset) == (codec, 0)
    records = decompress(header.codec, stored[HEADER_BYTES : header.size_bytes], max_bytes=1 << 30)
    assert bytes(records) == framed(body)


async def test_clients_take_turns() -> None:
    opener = Opener()
    order: list[str] = []
    gate, task = await held(opener)
    jobs = [
        opener.run(client, lambda client=client: order.append(client))  # type: ignore[misc]
        for client in ("a", "a", "a", "b", "c", "b")
    ]
    running = asyncio.gather(*jobs)
    await asyncio.sleep(0)
    gate.may_end.set()
    await running
    await task
    opener.close()
    assert order == ["a", "b", "c", "a", "b", "a"]


async def test_a_cancelled_request_is_not_opened() -> None:
    opener = Opener()
    done: list[str] = []
    gate, task = await held(opener)
    left = asyncio.create_task(opener.run("a", lambda: done.append("left")))
    kept = asyncio.create_task(opener.run("a", lambda: done.append("kept")))
    await asyncio.sleep(0)
    left.cancel()
    gate.may_end.set()
    await kept
    await task
    opener.close()
    assert done == ["kept"]


async def test_what_a_job_raises_reaches_its_caller() -> None:
    opener = Opener()
    with pytest.raises(ZeroDivisionError):
        await opener.run("a", lambda: 1 // 0)
    assert await opener.run("a", lambda: 1) == 1
    opener.close()
