"""Traces through the host agent: from the application's context to the broker's commit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.traces import TraceContext, current_context, parse_traceparent
from penstock.host import AsyncHostClient, trace_context
from penstock.testing import Agent, Broker
from tests.otlp import Receiver, attributes_of, otlp_receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
TRACE_ID = bytes.fromhex(TRACE)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as found:
        yield found


def test_one_trace_from_the_application_to_the_commit(receiver: Receiver) -> None:
    export: dict[str, Any] = {"otlp.endpoint": receiver.url, "otlp.sample.ratio": 0}
    with (
        Broker(export) as broker,
        Agent(broker.bootstrap, export) as agent,
        broker.client() as client,
    ):
        broker.create_topic("orders")
        with agent.client(topics=["orders"]) as producer:
            producer.publish(b"before", topic="orders").result()
            with trace_context(PARENT, "vendor=1"):
                producer.publish_batch([b"first", b"second"], topic="orders").result()
            producer.publish(b"after", topic="orders").result()
        read = client.read_arrow("orders")
    assert read["value"].to_pylist() == [b"before", b"first", b"second", b"after"]
    headers = {
        value: {header["key"]: header["value"] for header in row or ()}
        for value, row in zip(read["value"].to_pylist(), read["headers"].to_pylist(), strict=True)
    }
    spans = {span.name: span for _, span in receiver.spans}
    assert receiver.names(TRACE_ID) == {
        "penstock-host-agent publish", "penstock-broker produce", "penstock-broker commit",
        "penstock-broker fetch",
    }  # fmt: skip
    assert len(receiver.spans) == 4
    publish, produce = spans["publish"], spans["produce"]
    assert publish.parent_span_id.hex() == SPAN
    assert produce.parent_span_id == publish.span_id
    assert headers[b"first"] == {
        "traceparent": f"00-{TRACE}-{publish.span_id.hex()}-01".encode(), "tracestate": b"vendor=1",
    }  # fmt: skip
    assert headers[b"before"] == headers[b"second"] == headers[b"after"] == {}
    assert attributes_of(publish)["messaging.batch.message_count"] == 2
    assert publish.start_time_unix_nano <= produce.start_time_unix_nano
    assert any(metric.name == "penstock_host_connections" for _, metric in receiver.metrics)


def test_the_agent_begins_traces_of_a_share_of_frames(receiver: Receiver) -> None:
    with (
        Broker() as broker,
        Agent(broker.bootstrap, {"otlp.endpoint": receiver.url, "otlp.sample.ratio": 1}) as agent,
    ):
        broker.create_topic("orders")
        with agent.client(topics=["orders"]) as producer:
            producer.publish(b"a", topic="orders").result()
    [(service, span)] = receiver.spans
    assert (service, span.name, span.parent_span_id) == ("penstock-host-agent", "publish", b"")


def test_without_an_export_the_context_is_passed_on() -> None:
    with Broker() as broker, Agent(broker.bootstrap) as agent, broker.client() as client:
        broker.create_topic("orders")

        async def publish() -> None:
            async with AsyncHostClient(agent.socket, topics=["orders"]) as producer:
                with trace_context(PARENT):
                    await producer.publish(b"a", topic="orders")

        asyncio.run(publish())
        read = client.read_arrow("orders")
    assert read["headers"].to_pylist() == [[{"key": "traceparent", "value": PARENT.encode()}]]


def test_records_of_a_table_keep_their_headers(receiver: Receiver) -> None:
    export: dict[str, Any] = {"otlp.endpoint": receiver.url, "otlp.sample.ratio": 1}
    with Broker() as broker, Agent(broker.bootstrap, export) as agent, broker.client() as client:
        broker.create_topic("orders")
        with agent.client(topics=["orders"]) as producer:
            producer.publish_records("orders", pa.table({"value": [b"a"]}), partition=0)
        assert client.read_arrow("orders")["headers"].to_pylist() in ([None], [[]])
    assert [span.name for _, span in receiver.spans] == ["publish"]


def test_the_current_span_of_opentelemetry_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with OpenTelemetry's interface, which is no dependency of this project."""
    assert current_context() is None
    context = SimpleNamespace(
        is_valid=True, trace_flags=1, trace_id=int(TRACE, 16), span_id=int(SPAN, 16),
        trace_state=SimpleNamespace(to_header=lambda: "vendor=1"),
    )  # fmt: skip
    module = ModuleType("opentelemetry.trace")
    span = SimpleNamespace(get_span_context=lambda: context)
    module.get_current_span = lambda: span  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)
    assert current_context() == TraceContext(TRACE_ID, bytes.fromhex(SPAN), "vendor=1")
    with trace_context(PARENT.replace(SPAN, "1" * 16)):
        assert current_context() == parse_traceparent(PARENT.replace(SPAN, "1" * 16))
    context.trace_flags = 0
    assert current_context() is None
