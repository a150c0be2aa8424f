"""Plan of a receive path: its figures, charts, and snippets of configuration.

Snippets are Aeron's properties, sysctl and ethtool commands, and the settings of Penstock's own
sockets. Aeron's sizes are written in its short form (`512k`, `16m`), and its times with a unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

from penstock.planner.receive_path.chain import (
    BDP_LEAST,
    BDP_RECOMMENDED,
    SOCKET_HEADROOM,
    A,
    bandwidth_delay,
    broken_constraints,
    broken_host,
    linger_us,
    lost_once_us,
    lost_twice_us,
    survival_s,
    term_for,
    window_of,
)
from penstock.planner.receive_path.inputs import (
    DATAGRAM_OVERHEAD_BYTES,
    FLOW_BITS_EXPRESS_MAX,
    FLOW_BITS_MAX,
    FLOW_BITS_PLACED_MAX,
    IP_HEADER_BYTES,
    MTU_DEFAULT_BYTES,
    MTU_JUMBO_BYTES,
    NAK_MULTICAST_BACKOFF_US,
    NAK_MULTICAST_GROUP,
    NAK_UNICAST_RETRY_RATIO,
    PATH_MTU_ETHERNET_BYTES,
    RETRANSMIT_LINGER_US,
    RMEM_MAX_DEFAULT_BYTES,
    TERM_DEFAULT_BYTES,
    TERM_MAX_BYTES,
    UDP_HEADER_BYTES,
    WINDOW_MAX_BYTES,
    ReceivePathInputs,
    bits_of,
    micros,
    shown,
    size,
)
from penstock.planner.receive_path.sizing import Sizing, size_receive_path
from penstock.planner.results import (
    Chart,
    Finding,
    Plan,
    Snippet,
    curves,
    fail,
    figures_of,
    note,
    ok,
    warn,
)

CROSS_ZONE_RTT_US: Final = 200.0
"""Minimum round-trip time between zones, in microseconds."""
PACKET_CHARGE_BYTES: Final = 768
"""Approximate memory that Linux charges a socket for a small packet, in addition to its data."""


def window_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, inputs = sizing.chain, sizing.inputs
    used, target = chain.receiver_window, chain.window
    if used < target:
        yield warn(
            "window",
            f"{A}: the driver uses only {size(used)} of the {size(target)}, without an error",
            f"set aeron.term.buffer.length to {size(chain.term_least)}",
        )
    if used < chain.bdp_bytes:
        yield fail(
            "window",
            f"a window of {size(used)} carries at most"
            f" {shown(sizing.window_bytes_per_second, 'bytes/s')} at this round trip, but the"
            f" stream has {shown(chain.stream_bytes_per_second, 'bytes/s')}",
            f"set aeron.rcv.initial.window.length to {size(chain.window_least)} or more,"
            " and raise term and SO_RCVBUF with it",
        )
    elif used < chain.window_least:
        yield warn(
            "window",
            f"the window of {size(used)} is below {size(chain.window_least)} (twice the"
            " BDP, at least 128 KiB), so a late status message stops the sender",
            f"set aeron.rcv.initial.window.length to {size(chain.window_least)} or more",
        )
    if inputs.path == "cross-zone" and inputs.rtt_us <= CROSS_ZONE_RTT_US:
        yield note(
            "round trip",
            f"{micros(inputs.rtt_us)} is typical within a zone; between zones it is several"
            " times longer, and at 10 Gbit/s the window then needs 2 MB or more",
            "measure the round trip (sockperf, ping), and set rtt",
        )


def term_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, inputs = sizing.chain, sizing.inputs
    if sizing.term_covers_stall_ms < inputs.stall_ms:
        yield warn(
            "term buffer",
            f"half a term is written in {shown(sizing.term_covers_stall_ms, 'ms')}, so a"
            f" stall of {shown(inputs.stall_ms, 'ms')} blocks the publisher",
            f"set aeron.term.buffer.length to {size(chain.term_least)}",
        )
    if not inputs.term_bytes and chain.term <= TERM_DEFAULT_BYTES:
        yield ok(
            "term buffer",
            f"Aeron's default of {size(TERM_DEFAULT_BYTES)} suffices too; a shorter term"
            " keeps the logs in cache, a longer one keeps more data for retransmission",
        )


def socket_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, known = sizing.chain, sizing.inputs.rmem_max_bytes
    raised = f"sysctl -w net.core.rmem_max={chain.rcvbuf}, and write it to /etc/sysctl.d"
    if chain.unprotected_bytes:
        capped = chain.rcvbuf_real < chain.rcvbuf
        why = f"net.core.rmem_max of {size(known)} caps it" if capped else "it is too small"
        yield fail(
            "SO_RCVBUF",
            f"{why}: it has {size(chain.rcvbuf_real)}, but {size(chain.in_flight)} may be in"
            " flight to the socket. The driver starts, at most with a warning. The kernel"
            f" may drop up to {size(chain.unprotected_bytes)} (RcvbufErrors, then gaps and"
            " NAKs)",
            raised
            if capped
            else f"set aeron.socket.so_rcvbuf to {size(SOCKET_HEADROOM * chain.rcvbuf_least)}",
        )
    elif chain.rcvbuf_real < chain.rcvbuf:
        yield warn(
            "rmem_max",
            f"net.core.rmem_max of {size(known)} caps SO_RCVBUF of {size(chain.rcvbuf)}"
            " without an error; the window still fits, but there is no headroom for stalls",
            raised,
        )
    elif not known and chain.rcvbuf > RMEM_MAX_DEFAULT_BYTES:
        yield note(
            "rmem_max",
            f"it is unknown; with the usual default of {RMEM_MAX_DEFAULT_BYTES:,} bytes,"
            f" the kernel would cap SO_RCVBUF of {size(chain.rcvbuf)} without an error",
            raised,
        )
    yield from _charge(sizing)


def _charge(sizing: Sizing) -> Iterator[Finding]:
    chain = sizing.chain
    datagram = sizing.framing.message_bytes / sizing.framing.datagrams_per_message
    charged = chain.in_flight / datagram * (datagram + PACKET_CHARGE_BYTES)
    if charged > 2 * chain.rcvbuf_real:
        yield note(
            "SO_RCVBUF",
            f"the kernel doubles SO_RCVBUF and charges about {PACKET_CHARGE_BYTES} bytes"
            f" for each packet; a window of unbatched messages is charged {size(charged)},"
            f" but {size(2 * chain.rcvbuf_real)} are available",
            f"send messages in batches, or set SO_RCVBUF and rmem_max to {size(charged / 2)}",
        )


BANDWIDTH_FOR_JUMBO_BITS: Final = 1e9
"""Bandwidth above which fewer and larger packets are worth the higher cost of a loss."""


def mtu_findings(sizing: Sizing) -> Iterator[Finding]:
    inputs = sizing.inputs
    packet = inputs.mtu_bytes + IP_HEADER_BYTES + UDP_HEADER_BYTES
    path = inputs.path_packet_bytes
    jumbo_fits = path >= MTU_JUMBO_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES
    if packet > path:
        yield fail(
            "MTU",
            f"an MTU of {size(inputs.mtu_bytes)} makes IP packets of {packet} bytes, but"
            f" the path carries {path}; such packets are dropped, or split and lost with any"
            " of their fragments",
            f"set aeron.mtu.length to {_largest_mtu(path)}",
        )
    elif inputs.mtu_bytes > MTU_DEFAULT_BYTES:
        cross = inputs.path == "cross-region"
        yield Finding(
            "warn" if cross else "note", "MTU",
            f"one lost datagram loses up to {size(inputs.mtu_bytes)} instead of"
            f" {size(MTU_DEFAULT_BYTES)}"
            + ("; paths between regions rarely carry jumbo frames" if cross else ""),
            "keep the default of 1408 between regions and over the internet" if cross
            else f"check that every hop carries {packet} bytes (VPC: 9001): ping -M do -s"
            f" {packet - 28}",
        )  # fmt: skip
    else:
        yield from _advise_mtu(sizing, jumbo_fits=jumbo_fits)


def _advise_mtu(sizing: Sizing, *, jumbo_fits: bool) -> Iterator[Finding]:
    inputs = sizing.inputs
    why = []
    if sizing.framing.datagrams_per_message > 1:
        why.append("a message does not fit one datagram")
    if sizing.nic_bits_per_second >= BANDWIDTH_FOR_JUMBO_BITS:
        why.append(f"{bits_of(sizing.nic_bits_per_second)} need many packets")
    if why and jumbo_fits:
        yield note(
            "MTU",
            f"{' and '.join(why)}, and the path carries jumbo frames",
            f"try mtu {MTU_JUMBO_BYTES}: fewer packets with less overhead, but each lost"
            " packet loses more data",
        )
    else:
        small = inputs.path_packet_bytes <= PATH_MTU_ETHERNET_BYTES
        yield ok(
            "MTU",
            f"{size(inputs.mtu_bytes)} "
            + (
                "suits a path with standard frames"
                if small
                else "suffices for this rate and message size"
            ),
        )


def _largest_mtu(path: int) -> int:
    room = (path - IP_HEADER_BYTES - UDP_HEADER_BYTES) // 32 * 32
    usual = [mtu for mtu in (MTU_JUMBO_BYTES, MTU_DEFAULT_BYTES) if mtu <= room]
    return usual[0] if usual else room


def packets_findings(sizing: Sizing) -> Iterator[Finding]:
    allowed = sizing.inputs.packets_allowed
    best, worst = sizing.packets_best_per_second, sizing.packets_worst_per_second
    fix = (
        "send messages in batches, raise the MTU, or use a larger instance; watch"
        " pps_allowance_exceeded"
    )
    if allowed and best > allowed:
        yield fail(
            "packet rate",
            f"{shown(best, 'packets/s')}, with batching, exceed the allowance of"
            f" {shown(allowed, 'packets/s')}; the provider drops the rest before the kernel"
            " can count it",
            fix,
        )
    elif allowed and worst > allowed:
        yield warn(
            "packet rate",
            f"{shown(worst, 'packets/s')}, without batching, exceed the allowance of"
            f" {shown(allowed, 'packets/s')}; the provider drops the rest before the kernel"
            " can count it",
            fix,
        )
    elif not allowed:
        yield note(
            "packet rate",
            "the provider's allowance is unknown; this load needs"
            f" {shown(best, 'packets/s')} (batched) to {shown(worst, 'packets/s')}"
            " (unbatched)",
            "set packets-allowed, and watch pps_allowance_exceeded in `ethtool -S`",
        )


def interface_findings(sizing: Sizing) -> Iterator[Finding]:
    host = sizing.host
    if not host.baseline_bits:
        yield note(
            "bandwidth",
            f"the bandwidth of {host.name} is unknown; this load needs"
            f" {bits_of(sizing.nic_bits_per_second)} (batched) to"
            f" {bits_of(sizing.nic_worst_bits_per_second)} (unbatched)",
            "set family and vcpus, or nic-bandwidth",
        )
    else:
        yield from _bandwidth(sizing)
    if sizing.flow_bits > FLOW_BITS_MAX:
        cluster = sizing.flow_bits <= FLOW_BITS_PLACED_MAX
        limit = FLOW_BITS_PLACED_MAX if not cluster else FLOW_BITS_MAX
        express = sizing.flow_bits <= FLOW_BITS_EXPRESS_MAX
        yield warn(
            "one flow",
            f"one flow has {bits_of(sizing.flow_bits)}, but EC2 limits a flow to"
            f" {bits_of(limit)}"
            + (
                " outside of a cluster placement group"
                if cluster
                else " even within a cluster placement group"
            ),
            "use a cluster placement group"
            if cluster
            else "use ENA Express, or more streams with their own endpoints"
            if express
            else "use more streams with their own endpoints",
        )


def _bandwidth(sizing: Sizing) -> Iterator[Finding]:
    host, found = sizing.host, {"received": sizing.nic_bits_per_second}
    if sizing.nic_bits_per_second <= host.baseline_bits:
        found["received without batching"] = sizing.nic_worst_bits_per_second
    if sizing.copies > 1:
        found["sent by a host with all streams"] = sizing.sender_bits_per_second
    for what, bits in found.items():
        beyond = bits > host.burst_bits
        limit = host.burst_bits if beyond else host.baseline_bits
        if bits > host.baseline_bits:
            yield warn(
                "bandwidth",
                f"{bits_of(bits)} {what} exceed the {bits_of(limit)} that {host.name}"
                f" {'reaches in bursts' if beyond else 'has permanently'}",
                "use a larger instance or another family, spread streams over hosts, or"
                f" send in batches (each packet has {DATAGRAM_OVERHEAD_BYTES} bytes of"
                " headers)",
            )


def ring_findings(sizing: Sizing) -> Iterator[Finding]:
    host, stall = sizing.host, sizing.inputs.stall_ms
    largest, worst = host.ring_max_entries, sizing.packets_worst_per_second
    batched_ms, worst_ms = (
        sizing.ring_ms(largest, sizing.packets_queue),
        sizing.ring_ms(largest, worst),
    )
    if min(batched_ms, worst_ms) < stall:
        fails = batched_ms < stall
        yield Finding(
            "fail" if fails else "warn", "RX ring",
            f"the largest ring has {largest} entries and is full after"
            f" {shown(batched_ms if fails else worst_ms, 'ms')}, before a stall of"
            f" {shown(stall, 'ms')} ends, "
            + ("even with batching and flows spread over queues" if fails
               else "if messages are unbatched and all in one queue")
            + "; further packets are lost (rx_overruns)",
            "keep other work off the vCPU of the interrupt, send fewer and larger packets"
            " (batching, MTU), or spread streams over endpoints and queues",
        )  # fmt: skip
    elif sizing.ring_ms(host.ring_entries, worst) < stall:
        yield warn(
            "RX ring",
            f"the ring of {host.ring_entries} entries is full after"
            f" {shown(sizing.ring_ms(host.ring_entries, worst), 'ms')}, before a stall of"
            f" {shown(stall, 'ms')} ends; one of {largest} entries is full after"
            f" {shown(worst_ms, 'ms')}",
            f"ethtool -G {sizing.inputs.device} rx {largest}, at deploy time, because it"
            " interrupts traffic",
        )
    if not host.ring_max_known:
        yield note(
            "RX ring",
            f"the maximum size of the ring is unknown; {largest} is assumed (256 to 16,384,"
            " depending on the instance)",
            f"read it with ethtool -g {sizing.inputs.device}, and set ring-max",
        )
    if sizing.flows > 1 and sizing.receive_queues > 1:
        yield note(
            "receive queues",
            f"{sizing.flows} flows are hashed to {host.queues} queues, and several may"
            " share one; the figures of the ring assume that all share one",
            f"count packets by queue with ethtool -S {sizing.inputs.device}",
        )


def recovery_findings(sizing: Sizing) -> Iterator[Finding]:
    timers, inputs = sizing.timers, sizing.inputs
    if timers.to_group and inputs.receivers <= NAK_MULTICAST_GROUP:
        yield note(
            "NAK timers",
            f"with Aeron's defaults, a loss delays {inputs.receivers} receivers by up to"
            f" {micros(timers.lost_once_default_us)}, or"
            f" {micros(timers.lost_twice_default_us)} if the retransmission is lost too."
            f" With the planned timers it is {micros(timers.lost_once_us)} or"
            f" {micros(timers.lost_twice_us)}",
            "set the timers below; with so few receivers, NAKs do not become too many",
        )
    elif timers.to_group:
        yield ok(
            "NAK timers",
            f"the backoff of {micros(timers.wait_us)} prevents that {inputs.receivers}"
            " receivers report each loss at the same time; set the group size",
        )
    elif timers.linger_us <= RETRANSMIT_LINGER_US:
        yield ok(
            "NAK timers",
            "a single receiver reports losses at once. If the retransmission is lost too,"
            f" the delay is up to {micros(timers.lost_twice_default_us)} with Aeron's"
            f" defaults, {micros(timers.lost_twice_us)} with the planned timers",
        )
    else:
        yield note(
            "NAK timers",
            f"the default linger of {micros(RETRANSMIT_LINGER_US)} is short for a round"
            f" trip of {micros(inputs.rtt_us)}, so data that is already on its way is sent"
            " again",
            f"set aeron.retransmit.unicast.linger to {micros(timers.linger_us)}. If a"
            " retransmission is lost too, the delay is then up to"
            f" {micros(timers.lost_twice_us)} instead of"
            f" {micros(timers.lost_twice_default_us)}",
        )


def cache_findings(sizing: Sizing) -> Iterator[Finding]:
    l3 = sizing.host.l3_bytes
    logs, flight = sizing.logs_bytes, sizing.in_flight_bytes
    if not l3:
        yield note(
            "L3 cache",
            f"the size of the L3 cache is unknown; the logs take {size(logs)}",
            "set family, or l3",
        )
    elif logs <= l3:
        yield ok(
            "L3 cache",
            f"all logs ({size(logs)}) fit into {size(l3)}, so late readers and repairs read"
            " from the cache too",
        )
    elif flight <= l3:
        yield note(
            "L3 cache",
            f"the windows ({size(flight)}) fit into {size(l3)}, but the logs ({size(logs)})"
            " do not; late readers and repairs of losses read from memory",
            "use shorter terms if the stall allows, and run receiver and reader on cores"
            " that share an L3 cache",
        )
    else:
        yield warn(
            "L3 cache",
            f"the windows alone ({size(flight)}) exceed {size(l3)}, so all reads come from memory",
            "use fewer streams per host, or an instance family with a larger L3 cache",
        )


def broken_findings(sizing: Sizing) -> tuple[Finding, ...]:
    """Return the findings on broken constraints, with which the driver or the plan cannot work."""
    inputs = sizing.inputs
    return (
        *broken_constraints(inputs, sizing.chain),
        *broken_host(inputs, sizing.host, sizing.nic_bits_per_second),
    )


def findings(sizing: Sizing) -> tuple[Finding, ...]:
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
