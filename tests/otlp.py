"""OTLP/HTTP receiver for tests: decodes requests with OpenTelemetry's own Protobuf classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SECONDS = 30.0
_REQUESTS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}


class Receiver:
    """Spans and metrics that arrived. `statuses` are returned first, then 200."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        """Service names and spans."""
        self.metrics: list[tuple[str, Any]] = []
        """Service names and metrics; each export adds all of them."""
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.requests = 0
        self.url = ""

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.requests += 1
        if self.statuses:
            return self.statuses.pop(0)
        if path not in _REQUESTS or headers["content-type"] != "application/x-protobuf":
            return 400
        request: Any = _REQUESTS[path].FromString(body)
        self.headers.append(headers)
        if path == "/v1/traces":
            for group in request.resource_spans:
                service = service_of(group.resource)
                self.spans += [
                    (service, span) for scope in group.scope_spans for span in scope.spans
                ]
        else:
            for group in request.resource_metrics:
                service = service_of(group.resource)
                self.metrics += [
                    (service, metric) for scope in group.scope_metrics for metric in scope.metrics
                ]
        return 200

    def wait(self, holds: Callable[[Receiver], bool]) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + SECONDS
        while not holds(self):
            names = sorted({f"{service} {span.name}" for service, span in self.spans})
            assert time.monotonic() < end, names
            time.sleep(0.02)

    def names(self, trace_id: bytes) -> set[str]:
        """Return the services and names of a trace's spans."""
        return {
            f"{service} {span.name}" for service, span in self.spans if span.trace_id == trace_id
        }


def service_of(resource: Any) -> str:
    return str(attributes_of(resource)["service.name"])


def attributes_of(message: Any) -> dict[str, Any]:
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in message.attributes
    }


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A running receiver on a free port of loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(receiver.receive(self.path, headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
