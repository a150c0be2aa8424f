"""What a person should know of a receive path that no single figure says.

`fail`: it will not do what the inputs ask for. `warn`: it will at times not. `note`: worth a look.
"""

from __future__ import annotations

from penstock.planner.receive_path.chain import broken_constraints
from penstock.planner.receive_path.findings_bytes import (
    socket_findings,
    term_findings,
    window_findings,
)
from penstock.planner.receive_path.findings_host import (
    cache_findings,
    interface_findings,
    mtu_findings,
    packets_findings,
    recovery_findings,
    ring_findings,
)
from penstock.planner.receive_path.host import broken_host
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.results import Finding


def broken_findings(sizing: Sizing) -> tuple[Finding, ...]:
    """All constraints that are broken: with these sizes nothing starts, or nothing is so large."""
    inputs = sizing.inputs
    return (
        *broken_constraints(inputs, sizing.chain),
        *broken_host(inputs, sizing.host, sizing.bits_best),
    )


def findings(sizing: Sizing) -> tuple[Finding, ...]:
    """All findings, the ones that break the plan first."""
    found = [
        *broken_findings(sizing),
        *window_findings(sizing),
        *term_findings(sizing),
        *socket_findings(sizing),
        *mtu_findings(sizing),
        *packets_findings(sizing),
        *interface_findings(sizing),
        *ring_findings(sizing),
        *recovery_findings(sizing),
        *cache_findings(sizing),
    ]
    order = ("fail", "warn", "note", "ok")
    return tuple(sorted(found, key=lambda one: order.index(one.severity)))
