"""Responses of one connection that are ready together, which one write sends."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

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
