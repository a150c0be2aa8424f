"""Texts to paste: Aeron's properties, sysctl and ethtool lines, Penstock's own sockets.

Sizes are written as both read them: `512k`, `16m`. Times of Aeron's properties have a unit.
"""

from __future__ import annotations

from math import ceil

from penstock.planner.receive_path.limits import NAK_UNICAST_RETRY_RATIO, RMEM_MAX_DEFAULT_BYTES
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.results import Snippet


def snippets(sizing: Sizing) -> tuple[Snippet, ...]:
    """Properties of the media driver, and what the receiver's host needs."""
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
    """The same path carried over TCP, by the names of a broker's settings.

    A fixed size switches the kernel's own growing of buffers off, so it is worth it only where
    `net.ipv4.tcp_rmem` may not grow so far.
    """
    receive = max(sizing.chain.rcvbuf, 2 * sizing.chain.bdp_bytes)
    return Snippet(
        title="Penstock's sockets, if they carry this: -1 lets the kernel grow buffers up to the"
        f" last number of net.ipv4.tcp_rmem, which should be {receive} or more",
        language="toml",
        text=f"{receive_setting} = {receive}\n{send_setting} = {sizing.chain.sndbuf}\n",
    )


def short_size(number: int) -> str:
    """A size as Aeron's properties read it: `512k`, `16m`, `1g`, or plain bytes."""
    for power, suffix in ((30, "g"), (20, "m"), (10, "k")):
        if number >= 1 << power and number % (1 << power) == 0:
            return f"{number >> power}{suffix}"
    return str(number)


def short_time(us: float) -> str:
    """A time as Aeron's properties read it, rounded up to a whole number: `200us`, `3ms`."""
    whole = ceil(round(us, 3))
    return f"{whole // 1000}ms" if whole >= 1000 and whole % 1000 == 0 else f"{whole}us"


def _aeron(sizing: Sizing) -> str:
    chain = sizing.chain
    lines = [
        f"aeron.mtu.length={short_size(sizing.inputs.mtu_bytes)}",
        f"aeron.term.buffer.length={short_size(chain.term)}",
        f"aeron.rcv.initial.window.length={short_size(chain.window)}",
        f"aeron.socket.so_rcvbuf={short_size(chain.rcvbuf)}",
        f"aeron.socket.so_sndbuf={short_size(chain.sndbuf)}",
        *_timers(sizing),
    ]
    return "\n".join(lines) + "\n"


def _sysctl(sizing: Sizing) -> str:
    """Ceilings, never below what kernels start with or the host is known to have."""
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
    if sizing.queues > 1:
        lines.append(f"ethtool -L {device} combined {sizing.queues}    # interrupts traffic too")
    lines += [
        f"ethtool -S {device} | grep -E 'rx_overruns|allowance_exceeded'    # drops before the"
        " kernel",
        "nstat -az UdpRcvbufErrors    # drops at the socket",
    ]
    return "\n".join(lines) + "\n"
