"""The dispatcher: the table's handlers, isolation of failures, order with `async` handlers."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.broker.table import HANDLERS, Handlers
from penstock.wire.kafka.apis import BY_NAME
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient, batch, fetch_request

Connect = Callable[[BrokerServer], Awaitable[WireClient]]


@pytest.mark.parametrize("api", BY_NAME)
async def test_every_api_of_the_table_has_its_handler(broker: BrokerServer, api: str) -> None:
    handlers = Handlers(broker.assembly)
    hot: dict[str, Callable[..., None]] = {
        "Produce": handlers.produce.produce,
        "Fetch": handlers.fetch.fetch,
    }
    parameters = list(inspect.signature(hot.get(api) or handlers.of(api)).parameters)
    assert parameters[0] == "context"
    assert len(parameters) == (4 if api in hot else 2)


def test_every_handler_has_its_api() -> None:
    assert {*HANDLERS, "Produce", "Fetch"} == BY_NAME.keys()


def _plant(server: BrokerServer, name: str, handler: Any) -> None:
    server._dispatcher._handlers[BY_NAME[name].key] = handler


@pytest.mark.parametrize("slow", [False, True])
async def test_a_handler_that_fails_answers_only_its_own_request(
    broker: BrokerServer, client: WireClient, caplog: pytest.LogCaptureFixture, slow: bool
) -> None:
    def fails(*arguments: Any) -> Any:
        raise ZeroDivisionError("planted")

    async def fails_later(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        raise ZeroDivisionError("planted")

    _plant(broker, "DescribeCluster", fails_later if slow else fails)
    request = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    answer = await client.call("DescribeCluster", 1, request)
    assert answer.error_code == -1
    assert "planted" not in answer.error_message
    assert "planted" in caplog.text
    assert (await client.call("ApiVersions", 0, {})).error_code == 0


async def test_an_answer_that_does_not_fit_its_schema_is_a_failure_of_ours(
    broker: BrokerServer, client: WireClient
) -> None:
    _plant(broker, "DescribeCluster", lambda *_: {"brokers": [{"node_id": "one"}]})
    request = {"include_cluster_authorized_operations": False}
    assert (await client.call("DescribeCluster", 0, request)).error_code == -1


async def test_later_requests_wait_for_an_async_handler(
    broker: BrokerServer, client: WireClient, connect: Connect
) -> None:
    gate = asyncio.Event()
    running: list[int] = []

    async def waits(context: Any, request: Any) -> dict[str, Any]:
        running.append(context.correlation_id)
        await gate.wait()
        return {"brokers": []}

    _plant(broker, "DescribeCluster", waits)
    request = {"include_cluster_authorized_operations": False}
    frames = [client.frame("DescribeCluster", 0, request) for _ in range(3)]
    client.writer.write(b"".join(frames) + client.frame("ApiVersions", 0, {}))
    other = await connect(broker)
    while not running:
        await other.call("ApiVersions", 0, {})
    await other.call("ApiVersions", 0, {})
    assert len(running) == 1
    gate.set()
    for _ in range(3):
        await client.response("DescribeCluster", 0)
    await client.response("ApiVersions", 0)
    assert running == sorted(running)
    assert len(running) == 3


async def test_an_async_handler_outlives_its_connection(
    broker: BrokerServer, connect: Connect
) -> None:
    gate, done = asyncio.Event(), asyncio.Event()

    async def waits(context: Any, request: Any) -> dict[str, Any]:
        await gate.wait()
        done.set()
        return {"brokers": []}

    _plant(broker, "DescribeCluster", waits)
    client = await connect(broker)
    client.writer.write(
        client.frame("DescribeCluster", 0, {"include_cluster_authorized_operations": False})
    )
    while not any(item.in_flight for item in broker._connections):
        await asyncio.sleep(0)
    await client.close()
    gate.set()
    async with asyncio.timeout(60):
        await done.wait()
        while broker._connections:
            await asyncio.sleep(0)


async def test_a_stopping_broker_cancels_a_handler_that_does_not_end(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = await start_broker({"shutdown.timeout.ms": 100})
    client = await connect(server)

    async def waits(context: Any, request: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    _plant(server, "DescribeCluster", waits)
    client.writer.write(
        client.frame("DescribeCluster", 0, {"include_cluster_authorized_operations": False})
    )
    while not any(item.in_flight for item in server._connections):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await server.stop()
        await server.stop()


async def test_a_broker_whose_start_failed_can_be_stopped(
    broker: BrokerServer, start_broker: StartBroker
) -> None:
    host, port = broker.kafka_address
    with pytest.raises(OSError, match="in use"):
        await start_broker({"listeners": f"PLAINTEXT://{host}:{port}"})


async def test_requests_leave_nothing_to_the_collector(
    client: WireClient, connect: Connect, broker: BrokerServer
) -> None:
    """Garbage for the collector costs each request up to a third more CPU."""
    await client.create("t")
    other = await connect(broker)
    client.writer.write(client.frame("Fetch", 12, fetch_request({("t", 0): 0}, max_wait=10_000)))
    await other.produce("t", batch(b"imports what it needs"))
    await client.response("Fetch", 12)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            await client.produce("t", batch(b"one"))
            await client.produce("t", b"")
            await client.fetch("t")
            end = (await client.fetch("t")).high_watermark
            later = fetch_request({("t", 0): end}, max_wait=10_000)
            client.writer.write(client.frame("Fetch", 12, later))
            await other.produce("t", batch(b"two"))
            await client.response("Fetch", 12)
        gc.collect()
        left = Counter(type(thing).__qualname__ for thing in gc.garbage if _is_ours(thing))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == {}


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.startswith("penstock.")
