"""Plan of a receive path: its figures, charts, and snippets of configuration.

Snippets are Aeron's properties, sysctl and ethtool commands, and the settings of Penstock's own
sockets. Aeron's sizes are written in its short form (`512k`, `16m`), and its times with a unit.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from penstock.planner.receive_path.chain import (
    BDP_LEAST,
    BDP_RECOMMENDED,
    SOCKET_HEADROOM,
    bandwidth_delay,
    linger_us,
    lost_once_us,
    lost_twice_us,
    survival_s,
    term_for,
    window_of,
)
from penstock.planner.receive_path.findings import broken_findings, findings
from penstock.planner.receive_path.inputs import (
    NAK_MULTICAST_BACKOFF_US,
    NAK_UNICAST_RETRY_RATIO,
    RMEM_MAX_DEFAULT_BYTES,
    TERM_MAX_BYTES,
    WINDOW_MAX_BYTES,
    ReceivePathInputs,
)
from penstock.planner.receive_path.sizing import Sizing, size_receive_path
from penstock.planner.results import Chart, Plan, Snippet, curves, figures_of

POINTS: Final = 41


def charts(sizing: Sizing) -> tuple[Chart, ...]:
    drawn = (_sizes(sizing), _ring(sizing))
    return (*drawn, _losses(sizing)) if sizing.timers.to_group else drawn


def _spread(low: float, high: float) -> tuple[float, ...]:
    step = (high / low) ** (1 / (POINTS - 1))
    return tuple(low * step**place for place in range(POINTS))


def _sizes(sizing: Sizing) -> Chart:
    inputs, rate = sizing.inputs, sizing.chain.stream_bytes_per_second
    stall = rate * inputs.stall_ms / 1e3
    trips = _spread(max(1.0, inputs.rtt_us / 100), inputs.rtt_us * 100)
    delays = [bandwidth_delay(rate, rtt_us) for rtt_us in trips]

    def windows(multiple: int) -> list[int]:
        found = [window_of(delay, inputs.mtu_bytes, multiple) for delay in delays]
        return [min(window, WINDOW_MAX_BYTES) for window in found]

    recommended = windows(BDP_RECOMMENDED)
    terms = [
        term_for(window, stall, inputs.message_bytes, inputs.mtu_bytes) for window in recommended
    ]
    return Chart(
        title="Sizes by round trip", x_label="round trip, µs", y_label="bytes",
        x_log=True, y_log=True, marks={"this path": inputs.rtt_us},
        curves=curves(trips, {
            "term buffer": [min(term, TERM_MAX_BYTES) for term in terms],
            "SO_RCVBUF": [SOCKET_HEADROOM * window for window in recommended],
            "window, recommended": recommended,
            "window, least": windows(BDP_LEAST),
            "BDP": delays,
        }),
    )  # fmt: skip


def _ring(sizing: Sizing) -> Chart:
    host = sizing.host
    rates = _spread(sizing.packets_queue / 10, sizing.packets_worst_per_second * 10)
    return Chart(
        title="Maximum stall of a ring, by packet rate",
        x_label="packets/s in one queue", y_label="ms", x_log=True, y_log=True,
        curves=curves(rates, {
            f"{entries} entries": [survival_s(entries, rate) * 1e3 for rate in rates]
            for entries in (host.ring_max_entries, host.ring_entries)
        }),
        marks={"batched": sizing.packets_queue, "unbatched": sizing.packets_worst_per_second},
    )  # fmt: skip


def _losses(sizing: Sizing) -> Chart:
    rtt, chosen = sizing.inputs.rtt_us, sizing.timers.wait_us
    waits = _spread(min(rtt, chosen) / 10, 2 * max(NAK_MULTICAST_BACKOFF_US, chosen))
    return Chart(
        title="Maximum delay after a loss, by backoff",
        x_label="maximum NAK backoff, µs", y_label="maximum delay, µs", x_log=True, y_log=True,
        curves=curves(waits, {
            "lost once": [lost_once_us(wait_us, rtt) for wait_us in waits],
            "repair lost too": [
                lost_twice_us(wait_us, wait_us, rtt, linger_us(wait_us, rtt)) for wait_us in waits
            ],
        }),
        marks={"planned": chosen, "default": NAK_MULTICAST_BACKOFF_US},
    )  # fmt: skip


def snippets(sizing: Sizing) -> tuple[Snippet, ...]:
    return (
        Snippet(title="Aeron media driver", language="properties", text=_aeron(sizing)),
        Snippet(
            title="/etc/sysctl.d/90-receive-path.conf, then sysctl --system",
            language="sysctl",
            text=_sysctl(sizing),
        ),
        Snippet(title="Receive rings and queues", language="shell", text=_ethtool(sizing)),
    )


def socket_snippet(sizing: Sizing, receive_setting: str, send_setting: str) -> Snippet:
    """Return a snippet with the socket buffers of a broker, for the same path over TCP.

    `receive_setting` and `send_setting` are the broker's names. A fixed size disables the kernel's
    automatic growth of buffers. It is useful only if `net.ipv4.tcp_rmem` limits that growth.
    """
    receive = max(sizing.chain.rcvbuf, 2 * sizing.chain.bdp_bytes)
    return Snippet(
        title="Penstock's sockets, if they carry this load. -1 lets the kernel grow buffers up"
        f" to the last number of net.ipv4.tcp_rmem, which should then be {receive} or more",
        language="toml",
        text=f"{receive_setting} = {receive}\n{send_setting} = {sizing.chain.sndbuf}\n",
    )


def short_size(number: int) -> str:
    for power, suffix in ((30, "g"), (20, "m"), (10, "k")):
        if number >= 1 << power and number % (1 << power) == 0:
            return f"{number >> power}{suffix}"
    return str(number)


def short_time(us: float) -> str:
    whole = ceil(round(us, 3))
    return f"{whole // 1000}ms" if whole >= 1000 and whole % 1000 == 0 else f"{whole}us"


def _aeron(sizing: Sizing) -> str:
    chain = sizing.chain
    sizes = {
        "mtu.length": sizing.inputs.mtu_bytes,
        "term.buffer.length": chain.term,
        "rcv.initial.window.length": chain.window,
        "socket.so_rcvbuf": chain.rcvbuf,
        "socket.so_sndbuf": chain.sndbuf,
    }
    lines = [f"aeron.{name}={short_size(length)}" for name, length in sizes.items()]
    return "\n".join([*lines, *_timers(sizing), ""])


def _sysctl(sizing: Sizing) -> str:
    usual = max(RMEM_MAX_DEFAULT_BYTES, sizing.inputs.rmem_max_bytes)
    return (
        f"net.core.rmem_max = {max(sizing.chain.rcvbuf, usual)}\n"
        f"net.core.wmem_max = {max(sizing.chain.sndbuf, RMEM_MAX_DEFAULT_BYTES)}\n"
    )


def _timers(sizing: Sizing) -> list[str]:
    timers = sizing.timers
    linger = f"aeron.retransmit.unicast.linger={short_time(timers.linger_us)}"
    if timers.to_group:
        return [
            f"aeron.nak.multicast.max.backoff={short_time(timers.wait_us)}",
            f"aeron.nak.multicast.group.size={timers.group_size}",
            linger,
        ]
    if timers.retry_ratio > NAK_UNICAST_RETRY_RATIO:
        return [f"aeron.nak.unicast.retry.delay.ratio={timers.retry_ratio}", linger]
    return [linger]


def _ethtool(sizing: Sizing) -> str:
    device, host = sizing.inputs.device, sizing.host
    lines = [
        f"ethtool -g {device}    # the largest ring of this interface",
        f"ethtool -G {device} rx {host.ring_max_entries}    # when deploying: interrupts traffic",
    ]
    if sizing.receive_queues > 1:
        lines.append(
            f"ethtool -L {device} combined {sizing.receive_queues}    # interrupts traffic too"
        )
    lines += [
        f"ethtool -S {device} | grep -E 'rx_overruns|allowance_exceeded'    # drops before the"
        " kernel",
        "nstat -az UdpRcvbufErrors    # drops at the socket",
    ]
    return "\n".join(lines) + "\n"


def plan_receive_path(
    inputs: ReceivePathInputs, socket_settings: tuple[str, str] | None = None
) -> Plan:
    """Plan the buffers, rings and timers between a network interface and an application.

    `socket_settings` are the names of a broker's settings for receive and send buffers; with them
    the plan has a snippet for the broker. A plan with a broken constraint has no snippets. Each
    broken constraint is a finding with its fix, and sizes are the given ones or the closest
    possible.
    """
    sizing = size_receive_path(inputs)
    texts = () if broken_findings(sizing) else snippets(sizing)
    if texts and socket_settings is not None:
        texts = (*texts, socket_snippet(sizing, *socket_settings))
    found = figures_of(sizing)
    return Plan(
        title="Receive path",
        inputs=inputs,
        figures=found,
        findings=findings(sizing),
        snippets=texts,
        charts=charts(sizing),
        answers=tuple([figure.name for figure in found if figure.setting]),
    )
