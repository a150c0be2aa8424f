"""Metrics of the host agent."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from penstock.base.metrics import Metrics, counter, counters, gauge, gauges
from penstock.host.server_machine import ServerMachine


class Totals(Metrics, prefix="penstock_host_"):
    """Metrics of one agent since its start; those of open connections are added on top."""

    open = gauge("connections", "Producers that are connected.")
    rings = gauge("ring_connections", "Producers that share a ring of memory.")
    connections = counter("connections_opened_total", "Connections accepted.")
    refused_connections = counter(
        "connections_refused_total", "Connections over host.connections.max."
    )
    denied_connections = counter(
        "connections_denied_total", "Connections of processes that host.acl.file has no rule for."
    )
    rules_failing = gauge(
        "acl_file_failing",
        "1 while host.acl.file, as it is now, cannot be used, and older rules hold.",
    )
    accept_failures = counter(
        "accept_failures_total",
        "Times that accepting paused, for want of file descriptors or memory.",
    )
    received_bytes = counter(
        "received_bytes_total",
        "Bytes received over sockets; payloads in rings are not among them.",
    )
    sent_bytes = counter(
        "sent_bytes_total", "Bytes sent over sockets: acknowledgements and control."
    )
    frames = counter("frames_total", "Frames received over sockets, of all types.")
    accepted_chunks = counter("accepted_chunks_total", "Chunks accepted over sockets.")
    accepted_events = counter("accepted_events_total", "Events accepted over sockets.")
    accepted_bytes = counter("accepted_bytes_total", "Payload bytes accepted over sockets.")
    failed_frames = counter(
        "failed_frames_total", "Frames answered with FAILED, those beyond their credit among them."
    )
    overdrafts = counter("overdrafts_total", "Frames that came without credit.")
    violations = counter(
        "violations_total", "Connections ended because of a frame that may not be."
    )
    lost_frames = counter(
        "lost_on_disconnect_frames_total", "Frames whose connection ended before their verdict."
    )
    granted_bytes = gauge("credit_granted_bytes", "Payload bytes granted as credit.")
    credit_in_use: dict[str, int] = gauges(
        "credit_in_use", "Credit that unanswered frames take, by dimension.", "dimension"
    )
    retained_bytes = gauge("sink_retained_bytes", "Payload bytes that the sink holds.")
    sink_accepts = gauge("sink_accepts", "1 while the sink accepts, by its last check.")
    sink_frames: dict[str, int] = counters(
        "sink_frames_total",
        "Frames that the sink has answered, those of HTTP included: accepted, failed (may be sent"
        " again) or rejected permanently.",
        "verdict",
    )
    queued_bytes = gauge(
        "queued_bytes", "Received bytes of frames that have no answer or are incomplete."
    )
    draining = gauge("draining", "1 while the agent is draining.")

    def ended(self, machine: ServerMachine, lost_frames: int = 0) -> None:
        """Keep what a connection has counted."""
        self.lost_frames += lost_frames
        self.frames += machine.frames
        self.accepted_chunks += machine.accepted_chunks
        self.accepted_events += machine.accepted_events
        self.accepted_bytes += machine.accepted_bytes
        self.failed_frames += machine.failed_frames
        self.overdrafts += machine.overdrafts

    def with_open(self, machines: Iterable[ServerMachine]) -> Totals:
        """Return a copy that has what open connections have counted so far."""
        copied = copy(self)
        for machine in machines:
            copied.ended(machine)
        return copied
