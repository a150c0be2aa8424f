"""Invalid requests get an error or a closed connection, and do not affect other clients."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from penstock.broker.handlers.api_versions import TELEMETRY
from penstock.broker.net import connection as connection_module
from penstock.broker.server import BrokerServer
from penstock.wire.kafka.apis import APIS, BY_NAME
from tests.broker.conftest import StartBroker
from tests.broker.fake_store import FakeStore
from tests.broker.wire_client import WireClient, batch, fetch_request, produce_request

Connect = Callable[[BrokerServer], Awaitable[WireClient]]

CLAIMED_BYTES = 2000 << 20
"""What tests pretend to send: far above what else this process may need meanwhile."""


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


async def _all_given_back(server: BrokerServer) -> None:
    """Receive buffers come back once the storage has written them to their segments."""
    async with asyncio.timeout(60):
        while server.pool.received_bytes:
            await asyncio.sleep(0.005)


async def _still_serves(server: BrokerServer, connect: Connect) -> None:
    other = await connect(server)
    assert (await other.call("ApiVersions", 0, {})).error_code == 0


@pytest.mark.parametrize(
    ("name", "version"),
    [("Produce", 3), ("Produce", 9), ("Produce", 13), ("Fetch", 4), ("Fetch", 12), ("Fetch", 17)],
)
async def test_every_truncation_of_a_frame(
    broker: BrokerServer, connect: Connect, name: str, version: int
) -> None:
    """Each is answered with an error, or the connection closed where the header is cut."""
    client = await connect(broker)
    await client.create("t")
    request = produce_request("t", batch(b"x" * 20))
    if name == "Fetch":
        request = fetch_request({("t", 0): 0})
    whole = client.frame(name, version, request)[4:]
    header_bytes = 10 + len(b"tests") + (BY_NAME[name].request_header_version(version) - 1)
    for size in range(10, len(whole)):
        client.writer.write(_framed(whole[:size]))
        if size < header_bytes:
            assert await client.closed_by_server()
            client = await connect(broker)
        else:
            frame = await client.receive()
            assert frame[:4] == whole[4:8]
    assert (await client.fetch("t")).high_watermark == 0


@pytest.mark.parametrize(
    "length", [-1, 0, 9, -(2**31), (100 << 20) + 1, 2**31 - 1, 0x16030100, 352_518_912]
)
async def test_frame_lengths_that_cannot_be_meant(
    broker: BrokerServer, connect: Connect, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connect(broker)
    client.writer.write(struct.pack(">i", length) + bytes(100))
    assert await client.closed_by_server()
    text = "TLS hello" if length >> 16 in (0x1603, 352_518_912 >> 16) else "frame length"
    assert text in caplog.text
    await _still_serves(broker, connect)


async def test_an_address_that_sends_nonsense_again_and_again_is_one_line(
    broker: BrokerServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        client = await connect(broker)
        client.writer.write(struct.pack(">i", -1) + bytes(100))
        assert await client.closed_by_server()
    client = await connect(broker)
    client.writer.write(_framed(struct.pack(">hhih", 999, 0, 1, -1)))
    assert await client.closed_by_server()
    warned = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert len(warned) == 2
    assert "127.0.0.1" in warned[0]
    assert "frame length of -1" in warned[0]
    assert "API key 999" in warned[1]
    rejected = broker.metrics.rejected
    assert (rejected["UntrustworthyFrame"], rejected["MalformedRequest"]) == (50, 1)


async def test_a_length_that_arrives_byte_by_byte(client: WireClient) -> None:
    frame = client.frame("ApiVersions", 0, {})
    for position in range(len(frame)):
        client.writer.write(frame[position : position + 1])
        await client.writer.drain()
        await asyncio.sleep(0.002)
    assert (await client.response("ApiVersions", 0)).error_code == 0


async def test_frames_cut_at_every_place(client: WireClient) -> None:
    await client.create("t")
    frames = client.frame("Produce", 9, produce_request("t", batch(b"a")))
    frames += client.frame("ApiVersions", 0, {})
    for cut in range(1, len(frames)):
        client.writer.write(frames[:cut])
        await client.writer.drain()
        await asyncio.sleep(0)
        client.writer.write(frames[cut:])
        await client.response("Produce", 9)
        await client.response("ApiVersions", 0)
    assert (await client.fetch("t")).high_watermark == len(frames) - 1


async def test_an_unknown_api_key_closes_only_its_connection(
    broker: BrokerServer, connect: Connect
) -> None:
    client = await connect(broker)
    client.writer.write(_framed(struct.pack(">hhih", 999, 0, 1, -1)))
    assert await client.closed_by_server()
    await _still_serves(broker, connect)


async def test_api_versions_above_the_maximum_is_answered_in_version_0(client: WireClient) -> None:
    client.writer.write(_framed(struct.pack(">hhih", 18, 99, 7, -1) + b"\0\1\2"))
    answer = await client.response("ApiVersions", 0)
    assert answer.error_code == 35
    offered = {api.key for api in APIS.values() if api.name not in TELEMETRY}
    assert {api.api_key for api in answer.api_keys} == offered
    assert (await client.call("ApiVersions", 3, _SOFTWARE)).error_code == 0


_SOFTWARE = {"client_software_name": "tests", "client_software_version": "1"}


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
async def test_unserved_versions_are_answered_and_the_connection_lives(
    client: WireClient, api: Any
) -> None:
    for version in {api.maximum + 1, 32_767, -1, api.minimum - 1} - {api.minimum}:
        if api.key == 18 and 0 <= version <= api.maximum:
            continue
        client.writer.write(_framed(struct.pack(">hhihb", api.key, version, 5, -1, 0)))
        assert (await client.receive())[:4] == struct.pack(">i", 5)
    assert (await client.call("ApiVersions", 0, {})).error_code == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_produce_versions_are_refused_in_their_own_shape(
    client: WireClient, version: int
) -> None:
    name = b"\0\x01t"
    body = struct.pack(">hii", 1, 1000, 1) + name + struct.pack(">iii", 1, 0, 3) + b"abc"
    header = struct.pack(">hhih", 0, version, 11, -1)
    client.writer.write(_framed(header + body))
    frame = await client.receive()
    assert frame[:4] == struct.pack(">i", 11)
    expected = struct.pack(">i", 1) + name + struct.pack(">iih", 1, 0, 35)
    assert frame[4 : 4 + len(expected)] == expected
    assert (await client.call("ApiVersions", 0, {})).error_code == 0


async def test_malformed_requests_of_every_api_are_answered(client: WireClient) -> None:
    for api in APIS.values():
        tags = b"\0" if api.request_header_version(api.maximum) == 2 else b""
        header = struct.pack(">hhih", api.key, api.maximum, 3, -1) + tags
        client.writer.write(_framed(header + b"\xff" * 9))
        assert (await client.receive())[:4] == struct.pack(">i", 3)
    assert (await client.call("ApiVersions", 0, {})).error_code == 0


async def test_huge_arrays_in_small_frames_allocate_nothing(
    broker: BrokerServer, connect: Connect
) -> None:
    client = await connect(broker)
    process = psutil.Process()
    for version, claim in [(1, struct.pack(">i", 2**31 - 1)), (9, b"\xff\xff\xff\xff\x07")]:
        tags = b"\0" if version == 9 else b""
        header = struct.pack(">hhih", 3, version, 3, -1) + tags
        await client.call("ApiVersions", 0, {})
        before = process.memory_info().rss
        client.writer.write(_framed(header + claim + bytes(40)))
        await client.receive()
        assert process.memory_info().rss - before < CLAIMED_BYTES // 2
    await _still_serves(broker, connect)


def _with(whole: bytes, position: int, value: bytes) -> bytes:
    return whole[:position] + value + whole[position + len(value) :]


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (_with(batch(b"x"), 67, b"?"), "corrupt_message"),  # the payload: a bad CRC
        (_with(batch(b"x"), 16, b"\x01"), "unsupported_for_message_format"),  # the magic
        (_with(batch(b"x"), 16, b"\x03"), "corrupt_message"),
        # whole batches only, one, from offset 0 on: what sending it again does not mend
        (batch(b"x")[:-1], "invalid_record"),
        (batch(b"x")[:30], "invalid_record"),
        (batch(b"x") + b"?", "invalid_record"),
        (batch(b"x") + batch(b"y"), "invalid_record"),
        (batch(b"x") + batch(b"y")[:-1], "invalid_record"),
        (_with(batch(b"x"), 8, b"\x7f\xff\xff\xff"), "invalid_record"),
        (_with(batch(b"x"), 7, b"\x05"), "invalid_record"),  # the base offset
        (_with(batch(b"x"), 0, b"\xff"), "invalid_record"),
        (_with(batch(b"x"), 23, b"\xff"), "invalid_record"),  # the last offset delta
        (_with(batch(b"x"), 57, bytes(4)), "invalid_record"),  # the count
        (_with(batch(b"x"), 8, b"\xff\xff\xff\xff"), "corrupt_message"),
        (batch(b"x", attributes=0x07), "unsupported_compression_type"),
        (batch(b"x", attributes=0x20), "invalid_record"),  # a control batch
        (b"x", "invalid_record"),
    ],
)
async def test_bad_batches(client: WireClient, records: bytes, error: str) -> None:
    await client.create("t")
    answer = await client.produce("t", records)
    assert answer.error_code.name == error, answer
    assert answer.error_message
    assert (await client.produce("t", batch(b"fine"))).base_offset == 0


async def test_null_and_empty_records(client: WireClient) -> None:
    await client.create("t")
    for records in (None, b""):
        request = produce_request("t")
        request["topic_data"][0]["partition_data"][0]["records"] = records
        row = (await client.call("Produce", 9, request)).responses[0].partition_responses[0]
        assert row.error_code.name == "invalid_record"


async def test_unknown_topics(client: WireClient) -> None:
    answer = await client.produce("none", batch(b"x"))
    assert answer.error_code.name == "unknown_topic_or_partition"
    assert "none" in answer.error_message
    assert (await client.fetch("none")).error_code.name == "unknown_topic_or_partition"
    request = {
        "acks": 1,
        "timeout": 1,
        "topic_data": [
            {"topic_id": bytes(range(16)), "partition_data": [{"index": 0, "records": b""}]}
        ],
    }
    row = (await client.call("Produce", 13, request)).responses[0].partition_responses[0]
    assert row.error_code.name == "unknown_topic_id"


async def test_half_a_frame_for_too_long_closes_the_connection(
    broker: BrokerServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "FRAME_GRACE_SECONDS", 0.2)
    clients = [await connect(broker) for _ in range(3)]
    clients[0].writer.write(b"\0\0")
    clients[1].writer.write(struct.pack(">i", 1000) + bytes(500))
    clients[2].writer.write(struct.pack(">i", 100_000) + bytes(5000))
    for client in clients:
        assert await client.closed_by_server()
    await _all_given_back(broker)
    await _still_serves(broker, connect)


async def test_a_broker_that_was_held_up_itself_takes_no_client_for_slow(
    broker: BrokerServer, connect: Connect
) -> None:
    client = await connect(broker)
    client.writer.write(b"\0\0")
    async with asyncio.timeout(60):
        while not any(item._head_filled for item in broker._connections):
            await asyncio.sleep(0.001)
    (connection,) = broker._connections
    real = broker.now
    broker.now = lambda: real() + 60
    broker._tick()  # what came in these sixty seconds has not been read yet
    assert not connection.closing
    broker._tick()
    assert connection.closing
    assert await client.closed_by_server()


async def test_idle_connections_are_closed(start_broker: StartBroker, connect: Connect) -> None:
    client = await connect(await start_broker({"connections.max.idle.ms": 100}))
    assert await client.closed_by_server()


async def test_connections_are_limited(start_broker: StartBroker, connect: Connect) -> None:
    server = await start_broker({"max.connections": 2})
    first, second = await connect(server), await connect(server)
    await first.call("ApiVersions", 0, {})
    await second.call("ApiVersions", 0, {})
    assert await (await connect(server)).closed_by_server()
    await second.close()
    while len(server._connections) > 1:
        await asyncio.sleep(0)
    await _still_serves(server, connect)


async def test_a_frame_of_many_megabytes(start_broker: StartBroker, connect: Connect) -> None:
    """Received straight into its own buffer; pooled and mapped ones alike."""
    server = await start_broker()
    client = await connect(server)
    await client.create("t")
    for megabytes in (1, 3, 9):
        sent = batch(b"x" * (megabytes << 20))
        assert (await client.produce("t", sent)).error_code == 0
    await _all_given_back(server)
    got = await client.fetch("t", 2, partition_max_bytes=1)
    assert len(got.records) == len(sent)


async def test_memory_for_requests_is_bounded_and_the_oldest_frame_continues(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = await start_broker({"queued.max.request.bytes": 4 << 20})
    clients = [await connect(server) for _ in range(8)]
    await clients[0].create("t")
    frame = clients[0].frame("Produce", 9, produce_request("t", batch(b"x" * (3 << 20))))
    for client in clients:
        client.writer.write(frame[: 2 << 20])
    while server.pool.received_bytes < 4 << 20:
        await asyncio.sleep(0.001)
    assert server.pool.received_bytes < (4 + len(clients)) << 20 < len(frame) * len(clients)
    for client in clients:
        client.writer.write(frame[2 << 20 :])
    for client in clients:
        answer = await client.response("Produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    await _all_given_back(server)


async def test_claimed_but_never_sent_bytes_cost_nothing(
    broker: BrokerServer, connect: Connect
) -> None:
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    clients = [await connect(broker) for _ in range(20)]
    for client in clients:
        client.writer.write(struct.pack(">i", CLAIMED_BYTES // 20) + bytes(1000))
    while sum(1 for item in broker._connections if item._lease is not None) < 20:
        await asyncio.sleep(0.001)
    assert process.memory_info().rss - before < CLAIMED_BYTES // 2
    await _still_serves(broker, connect)


async def test_a_client_that_does_not_read_is_not_read_either(
    broker: BrokerServer, connect: Connect
) -> None:
    """Answers pile up to the write limit only; afterwards all of them arrive."""
    client = await connect(broker)
    await client.create("t")
    await client.produce("t", batch(b"x" * (512 << 10)))
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    count = 200
    frames = b"".join(client.frame("Fetch", 12, fetch_request({("t", 0): 0})) for _ in range(count))
    client.writer.write(frames)
    other = await connect(broker)
    for _ in range(50):
        await other.call("ApiVersions", 0, {})
    server_side = next(iter(broker._connections))
    assert server_side._transport.get_write_buffer_size() < 8 << 20
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(count):
        answer = await client.response("Fetch", 12)
        assert len(answer.responses[0].partitions[0].records) > 512 << 10


async def test_requests_in_the_works_are_limited(
    start_broker: StartBroker, connect: Connect, fake_store: FakeStore
) -> None:
    store = fake_store
    server = await start_broker({"queued.max.requests": 4}, store)
    client = await connect(server)
    await client.create("t")
    store.held = True
    frame = client.frame("Produce", 9, produce_request("t", batch(b"x")))
    client.writer.write(frame * 20)
    await _still_serves(server, connect)
    (first,) = [item for item in server._connections if item.in_flight]
    assert first.in_flight == 4
    store.held = False
    store.commit_pending()
    for _ in range(20):
        await client.response("Produce", 9)


async def test_arbitrary_bytes_do_no_harm(broker: BrokerServer, connect: Connect) -> None:
    """Well-framed junk, seeded: every frame is answered or its connection closed."""
    import random

    dice = random.Random(7)
    keys = list(APIS)
    for _ in range(300):
        client = await connect(broker)
        key = dice.choice(keys)
        api = APIS[key]
        version = dice.randint(api.minimum, api.maximum)
        header = struct.pack(">hhih", key, version, 1, -1)
        client.writer.write(_framed(header + dice.randbytes(dice.randint(0, 60))))
        client.writer.write_eof()
        async with asyncio.timeout(60):
            await client.reader.read()
        await client.close()
    await _still_serves(broker, connect)


@pytest.mark.parametrize("kibibytes", [1, 60, 70, 200, 250, 300])
async def test_frames_around_the_sizes_of_the_buffers(
    broker: BrokerServer, connect: Connect, kibibytes: int
) -> None:
    client = await connect(broker)
    await client.create("t")
    sent = batch(b"x" * (kibibytes << 10))
    frame = client.frame("Produce", 9, produce_request("t", sent))
    client.writer.write(frame * 5)
    for _ in range(5):
        answer = await client.response("Produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    got = await client.fetch("t", 4, partition_max_bytes=1 << 25)
    assert got.records[21:] == sent[21:]
    await _all_given_back(broker)
