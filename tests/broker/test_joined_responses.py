"""Responses of one connection that are ready together, which one write sends."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from penstock.base.buffers import ReceivePool
from penstock.broker.net.connection import Connection, RequestContext
from penstock.broker.server import BrokerServer
from penstock.wire.kafka.apis import APIS
from tests.broker.wire_client import WireClient, batch, produce_request

REQUESTS = 8


async def test_responses_of_one_sync_share_a_write(
    client: WireClient, broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that arrive together get their responses together, in order."""
    await client.create("t")
    await client.produce("t", batch(b"first"))
    writes: list[int] = []
    write = Connection._write

    def counted(self: Connection, buffers: Any) -> None:
        writes.append(len(buffers))
        write(self, buffers)

    monkeypatch.setattr(Connection, "_write", counted)
    requests = [produce_request("t", batch(b"%d" % number)) for number in range(REQUESTS)]
    client.writer.write(b"".join([client.frame("Produce", 9, request) for request in requests]))
    answers = [await client.response("Produce", 9) for _ in requests]
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == list(range(1, REQUESTS + 1))
    assert len(writes) < REQUESTS / 2


class FakeTransport:
    """Records writes and the close."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def write(self, data: bytes) -> None:
        self.events.append(data)

    def pause_reading(self) -> None:
        self.events.append("pause")

    def resume_reading(self) -> None:
        self.events.append("resume")

    def close(self) -> None:
        self.events.append("close")


def opened(connection: Connection) -> RequestContext:
    context = RequestContext(
        api=APIS[0],
        version=9,
        correlation_id=0,
        client_id=None,
        connection=connection,
        started=0.0,
    )
    connection.opened(context)
    return context


async def test_responses_that_wait_for_others_are_sent_before_a_close() -> None:
    """A response that was given before the connection is closed is not lost."""
    owner: Any = type("Owner", (), {"in_flight_max": 10, "bytes_out": 0})()
    connection = Connection(owner, "PLAINTEXT")
    transport: Any = FakeTransport()
    connection._transport = transport
    contexts = [opened(connection) for _ in range(2)]
    contexts[0].reply([b"first"])
    assert transport.events == []
    connection.close("test")
    assert transport.events == [b"first", "close"]
    contexts[1].reply([b"too late"])
    await asyncio.sleep(0)
    assert transport.events == [b"first", "close"]


class FullOwner:
    """Owner whose connections may have two pending requests."""

    in_flight_max = 2
    frame_bytes_max = 1000
    bytes_in = bytes_out = 0
    scratch = memoryview((struct.pack(">i", 20) + b"\1" * 20) * 3)

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []

    def request(self, connection: Connection, frame: memoryview, lease: Any) -> None:
        self.contexts.append(opened(connection))


async def test_a_connection_that_closes_handles_no_further_request() -> None:
    owner: Any = FullOwner()
    connection = Connection(owner, "PLAINTEXT")
    transport: Any = FakeTransport()
    connection._transport = transport
    connection.buffer_updated(len(owner.scratch))
    assert len(owner.contexts) == 2
    owner.contexts[0].reply([b"first"])
    connection.close("test")
    await asyncio.sleep(0)
    assert len(owner.contexts) == 2
    assert transport.events == ["pause", b"first", "close"]


class LoneOwner(FullOwner):
    """Owner whose connections may have one pending request."""

    in_flight_max = 1
    scratch = FullOwner.scratch[:48]


async def test_a_full_connection_reads_on_after_its_only_response() -> None:
    owner: Any = LoneOwner()
    connection = Connection(owner, "PLAINTEXT")
    transport: Any = FakeTransport()
    connection._transport = transport
    connection.buffer_updated(len(owner.scratch))
    assert len(owner.contexts) == 1
    owner.contexts[0].reply([b"first"])
    assert len(owner.contexts) == 2
    owner.contexts[1].reply([b"second"])
    assert transport.events == ["pause", b"first", b"second", "resume"]
    assert owner.bytes_out == len(b"firstsecond")


class AsyncOwner(FullOwner):
    """Owner with an `async` handler, which the test ends."""

    in_flight_max = 10
    scratch = FullOwner.scratch[:24]

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[asyncio.Task[None]] = []
        self.end = asyncio.Event()
        self.ended: list[Connection] = []
        self.pool = ReceivePool(1 << 20)

    def disconnected(self, connection: Connection) -> None:
        self.ended.append(connection)

    def request(self, connection: Connection, frame: memoryview, lease: Any) -> None:
        super().request(connection, frame, lease)
        self.tasks.append(asyncio.ensure_future(self._answer(self.contexts[-1])))
        connection.waits_for(self.tasks[-1])

    async def _answer(self, context: RequestContext) -> None:
        await self.end.wait()
        context.reply([b"%d" % len(self.contexts)])


async def test_a_connection_pauses_for_an_async_handler_only_if_more_arrives() -> None:
    """A client that waits for each response is read without a pause."""
    owner: Any = AsyncOwner()
    connection = Connection(owner, "PLAINTEXT")
    transport: Any = FakeTransport()
    connection._transport = transport
    owner.end.set()
    connection.buffer_updated(24)
    while not transport.events:
        await asyncio.sleep(0)
    assert transport.events == [b"1"]
    owner.end.clear()
    connection.buffer_updated(24)
    connection.buffer_updated(24)
    assert (len(owner.contexts), transport.events) == (2, [b"1", "pause"])
    owner.end.set()
    await asyncio.gather(*owner.tasks)
    assert len(owner.contexts) == 3
    await asyncio.gather(*owner.tasks)
    assert transport.events == [b"1", "pause", b"2", b"3", "resume"]


async def test_a_request_may_follow_a_response_before_its_handler_has_ended() -> None:
    """The end of the earlier handler does not let the next request overtake the later one."""
    owner: Any = AsyncOwner()
    connection = Connection(owner, "PLAINTEXT")
    connection._transport = FakeTransport()
    connection.buffer_updated(24)
    owner.contexts[0].reply([b"first"])
    connection.buffer_updated(24)
    assert len(owner.contexts) == 2
    owner.tasks[0].cancel()
    await asyncio.wait([owner.tasks[0]])
    await asyncio.sleep(0)
    connection.buffer_updated(24)
    assert len(owner.contexts) == 2
    owner.end.set()
    await owner.tasks[1]
    await asyncio.sleep(0)
    assert len(owner.contexts) == 3
    await owner.tasks[2]


async def test_a_request_behind_an_async_handler_does_not_wait_for_an_earlier_response() -> None:
    """An earlier request, such as a long poll, may be answered much later."""
    owner: Any = AsyncOwner()
    connection = Connection(owner, "PLAINTEXT")
    connection._transport = FakeTransport()
    earlier = opened(connection)
    connection.buffer_updated(24)
    connection.buffer_updated(24)
    assert len(owner.contexts) == 1
    owner.end.set()
    await owner.tasks[0]
    await asyncio.sleep(0)
    assert len(owner.contexts) == 2
    assert connection._transport.events == ["pause"]
    await owner.tasks[1]
    earlier.reply([b"earlier"])
    await asyncio.sleep(0)
    assert connection._transport.events == ["pause", "resume", b"earlier12"]


@pytest.mark.parametrize("responds", [True, False])
async def test_a_lost_connection_is_open_until_its_async_handler_has_ended(responds: bool) -> None:
    """A broker that stops waits for the handlers of its open connections."""
    owner: Any = AsyncOwner()
    connection = Connection(owner, "PLAINTEXT")
    transport: Any = FakeTransport()
    connection._transport = transport
    connection.buffer_updated(24)
    connection.connection_lost(None)
    assert (owner.ended, connection.in_flight, connection.closing) == ([], 1, True)
    if responds:
        owner.end.set()
    else:
        connection.cancel_handler()
    await asyncio.wait(owner.tasks)
    await asyncio.sleep(0)
    assert (owner.ended, connection.in_flight) == ([connection], 0)
    assert transport.events == []
