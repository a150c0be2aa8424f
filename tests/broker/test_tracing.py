"""Spans of a broker: one trace from a client's header through produce, commit and fetch."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from penstock.base.errors import UnavailableError
from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.traces import Span, TraceContext, Tracer
from penstock.broker.requests.metrics import RequestMetrics
from penstock.broker.requests.tracing import FOUND_MAX, KEPT_MAX, BrokerTraces, TracedBatch
from penstock.records.appends import AppendResult, Outcome
from penstock.testing import Broker
from tests.otlp import Receiver, attributes_of, otlp_receiver

if TYPE_CHECKING:
    from penstock.broker.net.connection import RequestContext
    from penstock.partitions import Partition

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
TRACE_ID = bytes.fromhex(TRACE)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table(*headers: list[tuple[str, bytes]]) -> pa.Table:
    rows = [[{"key": key, "value": value} for key, value in row] for row in headers]
    return pa.table({
        "value": [b"v%d" % number for number in range(len(rows))],
        "headers": pa.array(rows, HEADERS),
    })  # fmt: skip


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as found:
        yield found


def settings(receiver: Receiver, **more: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"otlp.endpoint": receiver.url, "otlp.sample.ratio": 0, **named}


def test_one_trace_from_the_header_to_the_fetch(receiver: Receiver) -> None:
    sent = [("a", b"b"), ("traceparent", PARENT.encode()), ("tracestate", b"vendor=1"), ("z", b"")]
    with Broker(settings(receiver)) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table(sent, []))
        read = client.read_arrow("orders")
    assert read["headers"].to_pylist()[0] == [
        {"key": key, "value": value} for key, value in sent
    ], "headers are stored unchanged"
    spans = {span.name: span for _, span in receiver.spans}
    assert receiver.names(TRACE_ID) == {f"penstock-broker {name}" for name in spans}
    assert spans.keys() == {"produce", "commit", "fetch"}
    produce, commit, fetch = spans["produce"], spans["commit"], spans["fetch"]
    assert produce.parent_span_id.hex() == "00f067aa0ba902b7"
    assert produce.trace_state == "vendor=1"
    assert commit.parent_span_id == fetch.parent_span_id == produce.span_id
    assert produce.start_time_unix_nano <= commit.start_time_unix_nano
    assert commit.end_time_unix_nano == produce.end_time_unix_nano
    assert fetch.end_time_unix_nano >= produce.end_time_unix_nano
    assert abs(produce.start_time_unix_nano - SYSTEM_CLOCK.now_ms() * 1_000_000) < 60e9
    assert attributes_of(produce).items() >= {
        ("messaging.destination.name", "orders"), ("messaging.batch.message_count", 2),
        ("messaging.kafka.offset", 0),
    }  # fmt: skip


def test_latencies_have_the_trace_as_exemplar(receiver: Receiver) -> None:
    with Broker(settings(receiver)) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table([("traceparent", PARENT.encode())]))
        client.read_arrow("orders")
        accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        request = urllib.request.Request(broker.admin_url + "/metrics", headers={"accept": accept})
        with urllib.request.urlopen(request) as answer:
            text, kind = answer.read().decode(), answer.headers["content-type"]
        with urllib.request.urlopen(broker.admin_url + "/metrics") as answer:
            plain = answer.read().decode()
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    parse: Callable[[str], Iterator[Any]] = text_string_to_metric_families
    families = {family.name: family for family in parse(text)}
    found = {
        (sample.labels["api"], sample.exemplar.labels["trace_id"])
        for sample in families["penstock_kafka_request_duration_seconds"].samples
        if sample.exemplar
    }
    assert found == {("Produce", TRACE), ("Fetch", TRACE)}
    assert "trace_id" not in plain
    assert "# EOF" not in plain


def test_what_has_no_sampled_context_is_not_traced(receiver: Receiver) -> None:
    unsampled = [("traceparent", PARENT.removesuffix("1").encode() + b"0")]
    with Broker(settings(receiver)) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table(unsampled))
        client.write_arrow("orders", table([("traceparent", b"nonsense")], []))
        client.write_arrow("orders", table([("traceparent", PARENT.encode())]), codec="gzip")
        assert len(client.read_arrow("orders")) == 4
    assert receiver.spans == []
    assert {service for service, _ in receiver.metrics} == {"penstock-broker"}, "it was exported"


def test_the_broker_begins_traces_of_a_share_of_batches(receiver: Receiver) -> None:
    with Broker(settings(receiver, otlp_sample_ratio=1)) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table([], []), codec="gzip")
        client.read_arrow("orders")
    [root] = [span for _, span in receiver.spans if not span.parent_span_id]
    assert root.name == "produce"
    assert receiver.names(root.trace_id) == {
        f"penstock-broker {name}" for name in ("produce", "commit", "fetch")
    }


def test_extents_and_contexts_of_a_range(receiver: Receiver) -> None:
    with Broker(settings(receiver)) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table([]))
        client.write_arrow("orders", table([("traceparent", PARENT.encode())]))
        for ranges, count in (("0:0-1", 0), ("0:1-2", 1), ("1:0-9", 0), ("0:0-9,1:0-3", 1)):
            assert len(traced(broker, ranges)) == count
        [context] = traced(broker, "0:0-2")
        assert context[3:35] == TRACE
        path = "/v1/topics/orders/partitions/0/extents?start=0&end=1"
        urllib.request.urlopen(broker.admin_url + path).read()
        urllib.request.urlopen(broker.admin_url + path.replace("end=1", "end=2")).read()
    fetches = [span for _, span in receiver.spans if span.name == "fetch"]
    assert [attributes_of(span)["messaging.client.id"] for span in fetches] == ["extents"]


def traced(broker: Broker, ranges: str) -> list[str]:
    import json

    url = f"{broker.admin_url}/v1/topics/orders/traces?ranges={ranges}"
    with urllib.request.urlopen(url) as answer:
        return list(json.loads(answer.read())["traces"])


def test_metrics_are_exported(receiver: Receiver) -> None:
    more = {"otlp.interval.ms": 100, "otlp.headers": "authorization=Bearer x=y, tenant=a"}
    with Broker({**settings(receiver), **more}) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table([]))
        receiver.wait(lambda found: count_of(found, "penstock_kafka_request_duration_seconds") > 0)
        receiver.wait(
            lambda found: any(m.name == "penstock_broker_ready" for _, m in found.metrics)
        )
    metrics = {metric.name: metric for _, metric in receiver.metrics}
    received = metrics["penstock_kafka_received_bytes_total"].sum
    assert received.is_monotonic
    assert received.aggregation_temporality == 2
    assert received.data_points[0].as_int > 0
    assert metrics["kafka_brokers"].gauge.data_points[0].as_int == 1
    [point] = [
        point
        for point in metrics["penstock_kafka_request_duration_seconds"].histogram.data_points
        if attributes_of(point) == {"api": "Produce"}
    ]
    assert point.count == sum(point.bucket_counts) == 1
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert 0 < point.sum < 60
    assert metrics["penstock_group_states"].gauge.data_points, "groups are exported"
    assert receiver.headers[0]["authorization"] == "Bearer x=y"
    assert receiver.headers[0]["tenant"] == "a"


def count_of(receiver: Receiver, name: str) -> int:
    return sum(
        point.count
        for _, metric in receiver.metrics
        if metric.name == name
        for point in metric.histogram.data_points
        if attributes_of(point) == {"api": "Produce"}
    )


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (AppendResult(-1, -1, -1, error="not_enough_replicas"), "not_enough_replicas"),
        (AppendResult(-1, -1, -1, error="not_enough_replicas", message="1 of 2"), "1 of 2"),
        (UnavailableError("the journal failed"), "the journal failed"),
    ],
)
def test_a_failed_append_has_a_span_with_its_error_only(outcome: Outcome, error: str) -> None:
    spans: list[Span] = []
    tracer = Tracer(spans.append, clock=SYSTEM_CLOCK, randomness=SYSTEM_RANDOMNESS, ratio=1)
    traces = BrokerTraces(tracer, node_id=1, clock=SYSTEM_CLOCK)
    outcomes: list[Outcome] = []
    context = cast("RequestContext", SimpleNamespace(
        api=SimpleNamespace(name="Produce"), client_id=None, started=SYSTEM_CLOCK.monotonic(),
    ))  # fmt: skip
    partition = cast("Partition", SimpleNamespace(topic_partition=TopicPartition("t", 0)))
    done = traces.producing(
        outcomes.append, context, RequestMetrics(), memoryview(bytes(61)), partition
    )
    done(outcome)
    assert outcomes == [outcome]
    assert [(span.name, span.error) for span in spans] == [("produce", error)]
    assert traces.kept == {}


def kept(traces: BrokerTraces) -> int:
    return sum(map(len, traces.kept.values()))


def test_the_newest_contexts_are_kept() -> None:
    spans: list[Span] = []
    tracer = Tracer(spans.append, clock=SYSTEM_CLOCK, randomness=SYSTEM_RANDOMNESS, ratio=1)
    traces = BrokerTraces(tracer, node_id=1, clock=SYSTEM_CLOCK)
    context = TraceContext(TRACE_ID, bytes(8))
    for number in range(KEPT_MAX + 10):
        where = TopicPartition("t", number % 3)
        traces.keep(TracedBatch(where, number, number, context))
    assert kept(traces) == KEPT_MAX
    first = min(batch.first_offset for batches in traces.kept.values() for batch in batches)
    assert first == 10
    assert len(list(traces.within(TopicPartition("t", 0), 0, 10_000))) == FOUND_MAX
    assert list(traces.within(TopicPartition("other", 0), 0, 10_000)) == []
    for number in range(KEPT_MAX):
        traces.keep(TracedBatch(TopicPartition("u", 0), number, number, context))
    assert set(traces.kept) == {TopicPartition("u", 0)}
