"""The host agent's metrics; values are read from its state when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.metrics import Metric, Sample
from penstock.host.server.connections import Connections
from penstock.host.sinks.counting import Counts


def _counter(name: str, doc: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=f"penstock_host_{name}", kind="counter", doc=doc, labels=labels)


def _gauge(name: str, doc: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=f"penstock_host_{name}", kind="gauge", doc=doc, labels=labels)


CONNECTIONS: Final = _gauge("connections", "Producers that are connected.")
RING_CONNECTIONS: Final = _gauge("ring_connections", "Producers that share a ring of memory.")
CONNECTIONS_OPENED: Final = _counter("connections_opened_total", "Connections accepted.")
CONNECTIONS_REFUSED: Final = _counter(
    "connections_refused_total", "Connections over host.connections.max."
)
CONNECTIONS_DENIED: Final = _counter(
    "connections_denied_total", "Connections of processes that host.acl.file has no rule for."
)
RULES_FAILING: Final = _gauge(
    "acl_file_failing", "1 while host.acl.file, as it is now, cannot be used, and older rules hold."
)
ACCEPT_FAILURES: Final = _counter(
    "accept_failures_total", "Times that accepting paused, for want of file descriptors or memory."
)
RECEIVED_BYTES: Final = _counter(
    "received_bytes_total", "Bytes received over sockets; payloads in rings are not among them."
)
SENT_BYTES: Final = _counter(
    "sent_bytes_total", "Bytes sent over sockets: acknowledgements and control."
)
FRAMES: Final = _counter("frames_total", "Frames received over sockets, of all types.")
ACCEPTED_CHUNKS: Final = _counter("accepted_chunks_total", "Chunks accepted over sockets.")
ACCEPTED_EVENTS: Final = _counter("accepted_events_total", "Events accepted over sockets.")
ACCEPTED_BYTES: Final = _counter("accepted_bytes_total", "Payload bytes accepted over sockets.")
FAILED_FRAMES: Final = _counter(
    "failed_frames_total", "Frames answered with FAILED, those beyond their credit among them."
)
OVERDRAFTS: Final = _counter("overdrafts_total", "Frames that came without credit.")
VIOLATIONS: Final = _counter(
    "violations_total", "Connections ended because of a frame that may not be."
)
LOST_FRAMES: Final = _counter(
    "lost_on_disconnect_frames_total", "Frames whose connection ended before their verdict."
)
CREDIT_GRANTED: Final = _gauge("credit_granted_bytes", "Payload bytes granted as credit.")
CREDIT_IN_USE: Final = _gauge(
    "credit_in_use", "Credit that unanswered frames take, by dimension.", ("dimension",)
)
RETAINED_BYTES: Final = _gauge("sink_retained_bytes", "Payload bytes that the sink holds.")
SINK_ACCEPTS: Final = _gauge("sink_accepts", "1 while the sink accepts, by its last check.")
SINK_FRAMES: Final = _counter(
    "sink_frames_total",
    "Frames that the sink has answered, those of HTTP included: accepted, failed (may be sent"
    " again) or rejected permanently.",
    ("verdict",),
)
QUEUED_BYTES: Final = _gauge(
    "queued_bytes", "Received bytes of frames that have no answer or are incomplete."
)
DRAINING: Final = _gauge("draining", "1 while the agent is draining.")
HTTP_REQUESTS: Final = _counter(
    "http_requests_total", "Answers of the HTTP front's ingest, by status.", ("status",)
)
HTTP_IN_FLIGHT: Final = _gauge("http_in_flight", "Ingest requests under way.")


def samples(connections: Connections) -> Iterator[Sample]:
    machines = [connection.machine for connection in connections]
    totals = connections.totals.with_open(machines)
    yield Sample(CONNECTIONS, len(connections))
    yield Sample(RING_CONNECTIONS, sum(machine.ring is not None for machine in machines))
    yield Sample(CONNECTIONS_OPENED, totals.connections)
    yield Sample(CONNECTIONS_REFUSED, totals.refused_connections)
    yield Sample(CONNECTIONS_DENIED, totals.denied_connections)
    yield Sample(RULES_FAILING, connections.access.failing)
    yield Sample(ACCEPT_FAILURES, totals.accept_failures)
    yield Sample(RECEIVED_BYTES, connections.bytes_in)
    yield Sample(SENT_BYTES, connections.bytes_out)
    yield Sample(FRAMES, totals.frames)
    yield Sample(ACCEPTED_CHUNKS, totals.accepted_chunks)
    yield Sample(ACCEPTED_EVENTS, totals.accepted_events)
    yield Sample(ACCEPTED_BYTES, totals.accepted_bytes)
    yield Sample(FAILED_FRAMES, totals.failed_frames)
    yield Sample(OVERDRAFTS, totals.overdrafts)
    yield Sample(VIOLATIONS, totals.violations)
    yield Sample(LOST_FRAMES, totals.lost_frames)
    yield Sample(CREDIT_GRANTED, connections.budget.granted_bytes)
    in_use = [machine.window.taken for machine in machines]
    for index, dimension in enumerate(("chunks", "events", "bytes")):
        yield Sample(CREDIT_IN_USE, sum(taken[index] for taken in in_use), (dimension,))
    yield Sample(RETAINED_BYTES, connections.sink.retained_bytes)
    yield Sample(SINK_ACCEPTS, int(not connections.sink_trouble))
    counts = getattr(connections.sink, "counts", None)
    if isinstance(counts, Counts):
        yield Sample(SINK_FRAMES, counts.accepted_frames, ("accepted",))
        yield Sample(SINK_FRAMES, counts.failed_frames, ("failed",))
        yield Sample(SINK_FRAMES, counts.refused_frames, ("refused",))
    yield Sample(QUEUED_BYTES, connections.pool.received_bytes)
    yield Sample(DRAINING, int(connections.draining))
