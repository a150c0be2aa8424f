"""Curves: sizes by round trip, ring survival by packet rate, the cost of losses by backoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.planner.receive_path.chain import (
    BDP_LEAST,
    BDP_RECOMMENDED,
    SOCKET_HEADROOM,
    bandwidth_delay,
    term_for,
    window_of,
)
from penstock.planner.receive_path.host import survival_s
from penstock.planner.receive_path.limits import (
    NAK_MULTICAST_BACKOFF_US,
    TERM_MAX_BYTES,
    WINDOW_MAX_BYTES,
)
from penstock.planner.receive_path.recovery import linger_us, lost_once_us, lost_twice_us
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.results import Chart, Curve

POINTS: Final = 41


def charts(sizing: Sizing) -> tuple[Chart, ...]:
    """All curves; the third only where receivers wait before they report a loss."""
    drawn = (_sizes(sizing), _ring(sizing))
    return (*drawn, _losses(sizing)) if sizing.timers.to_group else drawn


def _spread(low: float, high: float) -> tuple[float, ...]:
    """Points from low to high at equal distances of a logarithmic axis."""
    step = (high / low) ** (1 / (POINTS - 1))
    return tuple(low * step**place for place in range(POINTS))


def _sizes(sizing: Sizing) -> Chart:
    inputs, rate = sizing.inputs, sizing.chain.stream_bytes_per_second
    stall = rate * inputs.stall_ms / 1e3

    def window(rtt_us: float, multiple: int) -> int:
        wanted = window_of(bandwidth_delay(rate, rtt_us), inputs.mtu_bytes, multiple)
        return min(wanted, WINDOW_MAX_BYTES)

    def term(rtt_us: float) -> int:
        needed = term_for(
            window(rtt_us, BDP_RECOMMENDED), stall, inputs.message_bytes, inputs.mtu_bytes
        )
        return min(needed, TERM_MAX_BYTES)

    trips = _spread(max(1.0, inputs.rtt_us / 100), inputs.rtt_us * 100)
    rows: tuple[tuple[str, Callable[[float], int]], ...] = (
        ("term buffer", term),
        ("SO_RCVBUF", lambda rtt: SOCKET_HEADROOM * window(rtt, BDP_RECOMMENDED)),
        ("window, recommended", lambda rtt: window(rtt, BDP_RECOMMENDED)),
        ("window, least", lambda rtt: window(rtt, BDP_LEAST)),
        ("BDP", lambda rtt: bandwidth_delay(rate, rtt)),
    )
    return Chart(
        title="Sizes by round trip",
        x_label="round trip, µs",
        y_label="bytes",
        curves=tuple(
            Curve(label=label, x=trips, y=tuple(of(rtt) for rtt in trips)) for label, of in rows
        ),
        x_log=True,
        y_log=True,
        marks={"this path": inputs.rtt_us},
    )


def _ring(sizing: Sizing) -> Chart:
    host = sizing.host
    rates = _spread(sizing.packets_queue / 10, sizing.packets_worst * 10)
    sizes = dict.fromkeys((host.ring_max_entries, host.ring_entries))
    marks = {"batched": sizing.packets_queue, "unbatched": sizing.packets_worst}
    return Chart(
        title="Stall that a ring survives, by packet rate",
        x_label="packets/s in one queue",
        y_label="ms",
        curves=tuple(
            Curve(
                label=f"{entries} entries",
                x=rates,
                y=tuple(survival_s(entries, rate) * 1e3 for rate in rates),
            )
            for entries in sizes
        ),
        x_log=True,
        y_log=True,
        marks=marks,
    )


def _losses(sizing: Sizing) -> Chart:
    rtt, chosen = sizing.inputs.rtt_us, sizing.timers.wait_us
    waits = _spread(min(rtt, chosen) / 10, 2 * max(NAK_MULTICAST_BACKOFF_US, chosen))
    return Chart(
        title="Tail of a loss, by backoff",
        x_label="maximal NAK backoff, µs",
        y_label="µs, at most",
        curves=(
            Curve(label="lost once", x=waits, y=tuple(lost_once_us(one, rtt) for one in waits)),
            Curve(
                label="repair lost too",
                x=waits,
                y=tuple(lost_twice_us(one, one, rtt, linger_us(one, rtt)) for one in waits),
            ),
        ),
        x_log=True,
        y_log=True,
        marks={"planned": chosen, "default": NAK_MULTICAST_BACKOFF_US},
    )
