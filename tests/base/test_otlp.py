"""Export by OTLP: retries, bounds and encoding, against an HTTP receiver."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.base import otlp
from penstock.base.errors import InvalidSetting
from penstock.base.metrics import Exemplar, Histogram, Metric, Sample
from penstock.base.otlp import SPANS_MAX, Exporter
from penstock.base.otlp_settings import OtlpSettings
from penstock.base.settings import load
from penstock.base.traces import Span, TraceContext
from tests.otlp import Receiver, attributes_of, otlp_receiver
from tests.ports import free_port

CONTEXT = TraceContext(bytes(range(16)), bytes(range(8)), "vendor=1")
SPAN = Span(
    name="produce", context=CONTEXT, parent_id=b"p" * 8, kind="server", start_ns=1, end_ns=2,
    attributes={"topic": "orders", "count": 3}, links=(TraceContext(b"l" * 16, b"k" * 8),),
    error="it failed",
)  # fmt: skip
COUNT = Metric(name="penstock_count_total", kind="counter", doc="Counts.", labels=("kind",))
SECONDS = 30.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as found:
        yield found


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(otlp, "PAUSE_SECONDS", 0.01)


def exporter(url: str, **more: Any) -> Exporter:
    return Exporter(OtlpSettings(endpoint=url, **more), {"service.name": "test"})


def values(exporter: Exporter) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in exporter.samples():
        assert isinstance(sample.value, int | float)
        found[" ".join((sample.metric.name.removeprefix("penstock_otlp_"), *sample.labels))] = (
            sample.value
        )
    return found


def until(exporter: Exporter, name: str, value: float) -> dict[str, float]:
    end = time.monotonic() + SECONDS
    while values(exporter).get(name) != value:
        assert time.monotonic() < end, values(exporter)
        time.sleep(0.01)
    return values(exporter)


def test_a_span_arrives_whole(receiver: Receiver) -> None:
    made = exporter(receiver.url, headers=("authorization = Bearer a=b",))
    made.start()
    made.record(SPAN)
    made.stop(SECONDS)
    [(service, span)] = receiver.spans
    assert (service, span.name, span.kind) == ("test", "produce", 2)
    assert (span.trace_id, span.span_id, span.trace_state) == CONTEXT
    assert (span.parent_span_id, span.start_time_unix_nano, span.end_time_unix_nano) == (
        b"p" * 8, 1, 2,
    )  # fmt: skip
    assert attributes_of(span) == {"topic": "orders", "count": 3}
    assert [(link.trace_id, link.span_id) for link in span.links] == [(b"l" * 16, b"k" * 8)]
    assert (span.status.code, span.status.message) == (2, "it failed")
    assert receiver.headers[0]["authorization"] == "Bearer a=b"
    assert until(made, "exported_total traces", 1)["waiting_spans"] == 0


@pytest.mark.usefixtures("fast")
def test_passing_failures_are_retried(receiver: Receiver) -> None:
    receiver.statuses = [503, 429]
    made = exporter(receiver.url)
    made.start()
    made.record(SPAN)
    found = until(made, "exported_total traces", 1)
    assert found["request_failures_total traces"] == 2
    assert "dropped_total traces" not in found
    made.stop(SECONDS)
    assert len(receiver.spans) == 1


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("statuses", "requests"), [([400], 1), ([503] * 9, otlp.ATTEMPTS_MAX)])
def test_lasting_failures_drop_spans(
    receiver: Receiver, statuses: list[int], requests: int
) -> None:
    receiver.statuses = list(statuses)
    made = exporter(receiver.url)
    made.start()
    made.record(SPAN)
    until(made, "dropped_total traces", 1)
    assert receiver.requests == requests
    receiver.statuses = []
    made.record(SPAN)
    until(made, "exported_total traces", 1)
    made.stop(SECONDS)


def test_queues_are_bounded_while_the_receiver_is_away() -> None:
    made = exporter(f"http://127.0.0.1:{free_port()}")
    for _ in range(SPANS_MAX + 5):
        made.record(SPAN)
    for _ in range(otlp.METRICS_MAX + 1):
        made.offer([Sample(COUNT, 1, ("a",))])
    found = values(made)
    assert found["waiting_spans"] == SPANS_MAX
    assert (found["dropped_total traces"], found["dropped_total metrics"]) == (5, 1)
    made.start()
    until(made, "request_failures_total metrics", 1)
    began = time.monotonic()
    made.stop(SECONDS)
    assert time.monotonic() - began < SECONDS / 2, "a stop does not wait for retries"


def test_metrics_are_copied_when_they_are_offered(receiver: Receiver) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.5)
    histogram.keep(Exemplar(1.5, CONTEXT.trace_id, 7.5))
    latency = Metric(name="penstock_latency_seconds", kind="histogram", doc="Latency.")
    ratio = Metric(name="penstock_used_ratio", kind="gauge", doc="Use.")
    made = exporter(receiver.url)
    made.offer([Sample(COUNT, 3, ("a",)), Sample(latency, histogram), Sample(ratio, 0.25)])
    histogram.observe(9.0)
    made.start()
    made.stop(SECONDS)
    metrics = {metric.name: metric for _, metric in receiver.metrics}
    [point] = metrics["penstock_latency_seconds"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([0, 1, 0], [1.0, 2.0])
    assert [(item.trace_id, item.as_double) for item in point.exemplars] == [
        (CONTEXT.trace_id, 1.5)
    ]
    [count] = metrics["penstock_count_total"].sum.data_points
    assert (count.as_int, attributes_of(count)) == (3, {"kind": "a"})
    assert 0 < count.start_time_unix_nano < count.time_unix_nano
    assert metrics["penstock_used_ratio"].gauge.data_points[0].as_double == 0.25
    assert metrics["penstock_count_total"].description == "Counts."


def test_recording_does_not_wait_for_a_slow_receiver(receiver: Receiver) -> None:
    held = threading.Event()
    respond = receiver.receive

    def slow(path: str, headers: dict[str, str], body: bytes) -> int:
        held.wait(SECONDS)
        return respond(path, headers, body)

    receiver.receive = slow  # type: ignore[method-assign]
    made = exporter(receiver.url)
    made.start()
    made.offer([])
    began = time.monotonic()
    for _ in range(100):
        made.record(SPAN)
    assert time.monotonic() - began < 1.0
    held.set()
    made.stop(SECONDS)
    assert len(receiver.spans) == 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("otlp.endpoint", "127.0.0.1:4318"),
        ("otlp.endpoint", "ftp://host"),
        ("otlp.endpoint", "http://user:secret@host"),
        ("otlp.headers", "authorization"),
        ("otlp.sample.ratio", "1.5"),
    ],
)
def test_invalid_settings(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name) as error:
        load(OtlpSettings, {name: value})
    assert "secret" not in str(error.value)


def test_nothing_is_imported_while_the_export_is_off() -> None:
    code = (
        "import sys, penstock.apps.process.configuration, penstock.broker.server\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or name in"
        " ('penstock.base.otlp', 'penstock.base.traces', 'penstock.broker.requests.tracing')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
