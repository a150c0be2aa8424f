"""Export of metrics and spans by OTLP/HTTP, in Protobuf, from a thread of its own.

`record`, `offer` and `defer` put spans, metrics and calls into bounded queues and return at once;
what does not fit is dropped and counted. The thread encodes and sends them. It repeats a request
that failed for a passing reason, with growing pauses, and drops it after `ATTEMPTS_MAX` attempts.

Source: the OpenTelemetry protocol (OTLP) 1.x, section OTLP/HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.base.metrics import Histogram, Metrics, Sample, counters, gauge
from penstock.base.traces import Tracer

if TYPE_CHECKING:
    from penstock.base.metrics import Registry
    from penstock.base.otlp_settings import OtlpSettings
    from penstock.base.system import Clock, Randomness
    from penstock.base.traces import Span

SPANS_MAX: Final = 2_048
"""Spans that wait to be exported; further ones are dropped."""
SPANS_PER_REQUEST: Final = 512
METRICS_MAX: Final = 2
"""Sets of metrics that wait to be exported; an older one is dropped for a newer one."""
DEFERRED_MAX: Final = 64
"""Calls that wait for the thread; further ones are dropped."""
PAUSE_SECONDS: Final = 1.0
"""Longest time for which a span waits before its first export."""
REQUEST_SECONDS: Final = 10.0
"""Time limit of a request."""
STOP_SECONDS: Final = 5.0
"""Time for which an ending process waits for the last export."""
ATTEMPTS_MAX: Final = 5
BACKOFF_SECONDS: Final = 1.0
"""Pause before the second attempt; it doubles with each further one."""
RETRIED: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses after which a request is repeated, as OTLP demands."""
RETRIED_STATUS: Final = 503
"""Status that stands for a failed connection."""
ATTRIBUTES_KEPT_MAX: Final = 4_096
"""Encoded texts of attributes that are kept for later spans and metrics."""
_CONTENT: Final = "application/x-protobuf"
_SCOPE: Final = "penstock"

logger = logging.getLogger(__name__)


class OtlpMetrics(Metrics, prefix="penstock_otlp_"):
    exported: dict[str, int] = counters(
        "exported_total", "Spans, and sets of metrics, that the receiver accepted.", "signal"
    )
    dropped: dict[str, int] = counters(
        "dropped_total",
        "Spans, and sets of metrics, that were dropped: the queue was full, or the receiver did"
        " not accept them.",
        "signal",
    )
    failures: dict[str, int] = counters(
        "request_failures_total", "Failed attempts to export, repeated ones included.", "signal"
    )
    waiting = gauge("waiting_spans", "Spans that wait to be exported.")


class Exporter:
    """Thread that exports spans and metrics. Only `stop` blocks."""

    def __init__(self, settings: OtlpSettings, resource: Mapping[str, str]) -> None:
        """`resource` has attributes that identify the process, such as `service.name`."""
        self._settings = settings
        self._resource = {"service.version": __version__, **resource}
        self._spans: deque[Span] = deque()
        self._offered: deque[tuple[int, Sequence[Sample]]] = deque()
        self._deferred: deque[Callable[[], None]] = deque()
        self._began_ns = time.time_ns()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-otlp", daemon=True)
        self._metrics = OtlpMetrics()
        self._warned = False

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Export what waits, for up to this time. Blocks."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def record(self, span: Span) -> None:
        """Export a span soon; drop it if too many wait."""
        if len(self._spans) >= SPANS_MAX:
            self._metrics.dropped["traces"] += 1
            return
        self._spans.append(span)

    def offer(self, samples: Iterable[Sample]) -> None:
        """Export samples soon, with the time of this call."""
        while len(self._offered) >= METRICS_MAX:
            self._offered.popleft()
            self._metrics.dropped["metrics"] += 1
        self._offered.append((time.time_ns(), [_fixed(sample) for sample in samples]))
        self._wake.set()

    def defer(self, call: Callable[[], None]) -> None:
        """Call a function in the thread soon, such as one that records spans after requests."""
        if len(self._deferred) >= DEFERRED_MAX:
            self._metrics.dropped["traces"] += 1
            return
        self._deferred.append(call)

    def samples(self) -> Iterator[Sample]:
        self._metrics.waiting = len(self._spans)
        return self._metrics.samples()

    def _run(self) -> None:
        while True:
            stopping = self._stopping.is_set()
            self._export()
            if stopping:
                return
            self._wake.wait(PAUSE_SECONDS)
            self._wake.clear()

    def _export(self) -> None:
        while self._deferred:
            try:
                self._deferred.popleft()()
            except Exception:
                logger.exception("a deferred call of the export failed")
        while self._offered:
            at_ns, samples = self._offered.popleft()
            body = encode_metrics(samples, self._resource, self._began_ns, at_ns)
            self._send("metrics", body, 1)
        while self._spans:
            count = min(len(self._spans), SPANS_PER_REQUEST)
            spans = [self._spans.popleft() for _ in range(count)]
            self._send("traces", encode_spans(spans, self._resource), count)

    def _send(self, signal: str, body: bytes, count: int) -> None:
        from http.client import HTTPException

        for attempt in range(ATTEMPTS_MAX):
            if attempt and self._stopping.wait(BACKOFF_SECONDS * 2 ** (attempt - 1)):
                break
            try:
                status, cause = self._post(signal, body), ""
            except (OSError, HTTPException) as error:
                status, cause = RETRIED_STATUS, str(error) or type(error).__name__
            if 200 <= status < 300:
                self._metrics.exported[signal] += count
                self._warned = False
                return
            self._metrics.failures[signal] += 1
            self._warn(signal, cause or f"status {status}")
            if status not in RETRIED:
                break
        self._metrics.dropped[signal] += count

    def _post(self, signal: str, body: bytes) -> int:
        import http.client
        from urllib.parse import urlsplit

        parts = urlsplit(self._settings.endpoint)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        headers = {"content-type": _CONTENT, "user-agent": f"penstock/{__version__}"}
        for header in self._settings.headers:
            name, _, value = header.partition("=")
            headers[name.strip()] = value.strip()
        connection = kind(parts.hostname or "", parts.port, timeout=REQUEST_SECONDS)
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/v1/{signal}", body, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def _warn(self, signal: str, cause: str) -> None:
        """Log a failure, but only the first one until an export succeeds."""
        if not self._warned:
            self._warned = True
            endpoint = self._settings.endpoint
            logger.warning("could not export %s to %s, retrying: %s", signal, endpoint, cause)


class OtlpExport:
    """Export of a process with an event loop: spans of `tracer`, and a registry's metrics.

    Metrics are collected on the event loop, as for a scrape, and sent by the exporter's thread.
    """

    def __init__(
        self,
        settings: OtlpSettings,
        resource: Mapping[str, str],
        *,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
    ) -> None:
        exporter = self._exporter = Exporter(settings, resource)
        self.tracer = Tracer(
            exporter.record, clock=clock, randomness=randomness, ratio=settings.sample_ratio
        )
        self._seconds = settings.interval_ms / 1000
        self._collecting: asyncio.Task[None] | None = None
        self._registry = registry
        registry.add(exporter.samples)

    def start(self, more: Callable[[], Awaitable[Iterable[Sample]]] | None = None) -> None:
        """Begin to export; `more` returns samples that the registry does not have."""
        self._exporter.start()
        self._collecting = asyncio.get_running_loop().create_task(self._collect(more))

    async def stop(self) -> None:
        """Export what waits, within `STOP_SECONDS`."""
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait([self._collecting])
        self._exporter.offer(self._registry.collect())
        await asyncio.to_thread(self._exporter.stop, STOP_SECONDS)

    async def _collect(self, more: Callable[[], Awaitable[Iterable[Sample]]] | None) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                others = () if more is None else await more()
                self._exporter.offer([*self._registry.collect(), *others])
            except Exception:
                logger.exception("could not collect metrics to export")


def _fixed(sample: Sample) -> Sample:
    """Return a sample whose histogram does not change while another thread encodes it."""
    value = sample.value
    if not isinstance(value, Histogram):
        return sample
    return Sample(sample.metric, value.copy(), sample.labels)


def _resource_of(attributes: Mapping[str, str]) -> Any:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    return _with_attributes(Resource(), attributes)


def _with_attributes(message: Any, attributes: Mapping[str, str | int]) -> Any:
    """Add attributes to a message; texts in one step, as encodings of messages can be joined."""
    kind: Any = type(message)
    texts: list[bytes] = []
    for name, value in attributes.items():
        if isinstance(value, str):
            texts.append(_attribute(kind, name, value))
        else:
            attribute = message.attributes.add()
            attribute.key, attribute.value.int_value = name, value
    message.MergeFromString(b"".join(texts))
    return message


@lru_cache(maxsize=ATTRIBUTES_KEPT_MAX)
def _attribute(kind: Any, name: str, text: str) -> bytes:
    """Return the encoding of a message of this type with one attribute and no other field."""
    message = kind()
    message.attributes.add(key=name).value.string_value = text
    return bytes(message.SerializeToString())


def encode_spans(spans: Sequence[Span], resource: Mapping[str, str]) -> bytes:
    """Return an ExportTraceServiceRequest; imports opentelemetry-proto at the first call."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1 import trace_pb2

    kinds = {
        kind: trace_pb2.Span.SpanKind.Value(f"SPAN_KIND_{kind.upper()}")
        for kind in ("internal", "server", "client", "producer", "consumer")
    }
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add(resource=_resource_of(resource))
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = _SCOPE, __version__
    for span in spans:
        encoded = scope.spans.add(
            trace_id=span.context.trace_id,
            span_id=span.context.span_id,
            parent_span_id=span.parent_id,
            trace_state=span.context.state,
            name=span.name,
            kind=kinds[span.kind],
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
        )
        _with_attributes(encoded, span.attributes)
        for link in span.links:
            encoded.links.add(trace_id=link.trace_id, span_id=link.span_id, trace_state=link.state)
        if span.error:
            encoded.status.code = trace_pb2.Status.STATUS_CODE_ERROR
            encoded.status.message = span.error
    return request.SerializeToString()


def encode_metrics(
    samples: Iterable[Sample], resource: Mapping[str, str], began_ns: int, now_ns: int
) -> bytes:
    """Return an ExportMetricsServiceRequest with cumulative counters since `began_ns`."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.metrics.v1 import metrics_pb2

    cumulative = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add(resource=_resource_of(resource))
    scope = group.scope_metrics.add()
    scope.scope.name, scope.scope.version = _SCOPE, __version__
    families: dict[str, Any] = {}
    for sample in samples:
        metric, value = sample.metric, sample.value
        family = families.get(metric.name)
        if family is None:
            added = scope.metrics.add(name=metric.name, description=metric.doc)
            data = "sum" if metric.kind == "counter" else metric.kind
            family = families[metric.name] = getattr(added, data)
            if metric.kind != "gauge":
                family.aggregation_temporality = cumulative
            if metric.kind == "counter":
                family.is_monotonic = True
        point = family.data_points.add(time_unix_nano=now_ns)
        _with_attributes(point, dict(zip(metric.labels, sample.labels, strict=True)))
        if metric.kind != "gauge":
            point.start_time_unix_nano = began_ns
        if isinstance(value, Histogram):
            point.count, point.sum = sum(value.counts), value.total
            point.bucket_counts.extend(value.counts)
            point.explicit_bounds.extend(value.bounds)
            for exemplar in value.exemplars.values():
                at_ns = int(exemplar.seconds * 1e9)
                point.exemplars.add(
                    as_double=exemplar.value, trace_id=exemplar.trace_id, time_unix_nano=at_ns
                )
        elif isinstance(value, float):
            point.as_double = value
        else:
            point.as_int = int(value)
    return request.SerializeToString()
