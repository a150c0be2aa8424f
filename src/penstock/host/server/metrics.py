"""Metrics of the host agent."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from penstock.base.metrics import Metrics, counter, counters, gauge, gauges
from penstock.host.server_machine import ServerMachine


class Totals(Metrics, prefix="penstock_host_"):
    """Metrics of one agent since its start; counters of open connections are added when read."""

    open = gauge("connections", "Connected producers.")
    rings = gauge("ring_connections", "Producers that use a ring of shared memory.")
    connections = counter("connections_opened_total", "Connections accepted.")
    refused_connections = counter(
        "connections_refused_total", "Connections over host.connections.max."
    )
    denied_connections = counter(
        "connections_denied_total", "Connections of processes for which host.acl.file has no rule."
    )
    rules_failing = gauge(
        "acl_file_failing",
        "1 while the present host.acl.file cannot be used and former rules apply.",
    )
    accept_failures = counter(
        "accept_failures_total",
        "Times that accepting paused, because file descriptors or memory ran out.",
    )
    received_bytes = counter(
        "received_bytes_total",
        "Bytes received over sockets, without payloads in rings.",
    )
    sent_bytes = counter("sent_bytes_total", "Bytes sent over sockets: answers and control frames.")
    frames = counter("frames_total", "Frames received over sockets, of all types.")
    accepted_chunks = counter("accepted_chunks_total", "Chunks accepted over sockets.")
    accepted_events = counter("accepted_events_total", "Events accepted over sockets.")
    accepted_bytes = counter("accepted_bytes_total", "Payload bytes accepted over sockets.")
    failed_frames = counter(
        "failed_frames_total", "Frames answered with FAILED, including frames without credit."
    )
    overdrafts = counter("overdrafts_total", "Frames that exceeded the producer's credit.")
    violations = counter("violations_total", "Connections ended because of an invalid frame.")
    lost_frames = counter(
        "lost_on_disconnect_frames_total", "Frames whose connection ended before their verdict."
    )
    granted_bytes = gauge("credit_granted_bytes", "Payload bytes granted as credit.")
    credit_in_use: dict[str, int] = gauges(
        "credit_in_use", "Credit taken by unanswered frames, by dimension.", "dimension"
    )
    retained_bytes = gauge("sink_retained_bytes", "Payload bytes that the sink holds.")
    sink_accepts = gauge("sink_accepts", "1 while the sink accepts frames, by its last check.")
    sink_frames: dict[str, int] = counters(
        "sink_frames_total",
        "Frames answered by the sink, including those from HTTP: accepted, failed"
        " (retryable) or rejected permanently.",
        "verdict",
    )
    queued_bytes = gauge(
        "queued_bytes", "Received bytes of frames that are incomplete or unanswered."
    )
    draining = gauge("draining", "1 while the agent is draining.")

    def ended(self, machine: ServerMachine, lost_frames: int = 0) -> None:
        """Add the counters of an ended connection."""
        self.lost_frames += lost_frames
        self.frames += machine.frames
        self.accepted_chunks += machine.accepted_chunks
        self.accepted_events += machine.accepted_events
        self.accepted_bytes += machine.accepted_bytes
        self.failed_frames += machine.failed_frames
        self.overdrafts += machine.overdrafts

    def with_open(self, machines: Iterable[ServerMachine]) -> Totals:
        """Return a copy that includes the counters of open connections."""
        copied = copy(self)
        for machine in machines:
            copied.ended(machine)
        return copied
