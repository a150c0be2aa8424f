"""Counters of an agent as plain integers; counters of open connections are added on top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.host.server_machine import ServerMachine


@dataclass(slots=True)
class Totals:
    """Counters of one agent since its start."""

    connections: int = 0
    refused_connections: int = 0
    denied_connections: int = 0
    accept_failures: int = 0
    violations: int = 0
    frames: int = 0
    accepted_chunks: int = 0
    accepted_events: int = 0
    accepted_bytes: int = 0
    failed_frames: int = 0
    overdrafts: int = 0
    lost_frames: int = 0
    """Frames whose verdict nobody heard: their connection had ended."""

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
        """A copy that has what open connections have counted so far."""
        copy = Totals(*(getattr(self, name) for name in self.__slots__))
        for machine in machines:
            copy.ended(machine)
        return copy
