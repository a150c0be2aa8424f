"""The figures of a receive path: each with its formula, the numbers put in, and its source."""

from __future__ import annotations

from penstock.planner.receive_path.figures_bytes import (
    socket_figures,
    term_figures,
    window_figures,
    wire_figures,
)
from penstock.planner.receive_path.figures_host import (
    cache_figures,
    interface_figures,
    packets_figures,
    recovery_figures,
    ring_figures,
)
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.results import Figure


def figures(sizing: Sizing) -> tuple[Figure, ...]:
    """All figures, in the order of the path: wire, window, socket, host, recovery."""
    return (
        *wire_figures(sizing),
        *window_figures(sizing),
        *term_figures(sizing),
        *socket_figures(sizing),
        *packets_figures(sizing),
        *interface_figures(sizing),
        *ring_figures(sizing),
        *recovery_figures(sizing),
        *cache_figures(sizing),
    )
