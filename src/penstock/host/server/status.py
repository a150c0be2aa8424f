"""Status of an agent, for people and programs."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from penstock.host.credits import Credit
from penstock.host.server.connection import HostConnection
from penstock.host.server.connections import NAME_CHARS_SHOWN, Connections

PRODUCERS_SHOWN_MAX: Final = 200


def _state(connections: Connections) -> str:
    """Return `draining`, `blocked` while the sink accepts no frames, or `serving`."""
    if connections.draining:
        return "draining"
    return "blocked" if connections.sink_trouble else "serving"


def status_of(connections: Connections) -> dict[str, Any]:
    """Return the agent's state as JSON; of many producers only the oldest are included."""
    machines = [connection.machine for connection in connections]
    totals = connections.totals.with_open(machines)
    in_use = [machine.window.taken for machine in machines]
    left_ms = (
        max(0, int(connections.drain_by_ms - connections.now_ms()))
        if connections.draining
        else None
    )
    return {
        "state": _state(connections),
        "drain_left_ms": left_ms,
        "socket": connections.settings.socket_path,
        "sink": {
            "name": connections.sink.name,
            "retained_bytes": connections.sink.retained_bytes,
            "trouble": connections.sink_trouble,
        },
        "connections": {
            "open": len(connections),
            "max": connections.settings.connections_max,
            "refused": totals.refused_connections,
            "with_ring": sum(machine.ring is not None for machine in machines),
        },
        "credit": {
            "granted_bytes": connections.budget.granted_bytes,
            "total_bytes": connections.budget.total_bytes,
            "in_use": {
                "chunks": sum(taken.slots for taken in in_use),
                "events": sum(taken.events for taken in in_use),
                "bytes": sum(taken.payload_bytes for taken in in_use),
            },
        },
        "accepted": {
            "chunks": totals.accepted_chunks,
            "events": totals.accepted_events,
            "bytes": totals.accepted_bytes,
        },
        "failed_frames": totals.failed_frames,
        "overdrafts": totals.overdrafts,
        "violations": totals.violations,
        "lost_frames": totals.lost_frames,
        "producers": [_producer(item) for item in islice(connections, PRODUCERS_SHOWN_MAX)],
    }


def _producer(connection: HostConnection) -> dict[str, Any]:
    machine = connection.machine
    return {
        "producer_id": machine.producer_id,
        "producer_epoch": machine.producer_epoch,
        "name": machine.client_name[:NAME_CHARS_SHOWN],
        "state": machine.state.value,
        "frames_in_flight": len(machine.in_flight),
        "credit_left": _credit(machine.window.available),
        "credit": _credit(machine.window.granted),
        "accepted_chunks": machine.accepted_chunks,
        "accepted_bytes": machine.accepted_bytes,
    }


def _credit(credit: Credit) -> dict[str, int]:
    return {"chunks": credit.slots, "events": credit.events, "bytes": credit.payload_bytes}
