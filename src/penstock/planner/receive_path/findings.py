"""Findings of a receive path beyond single figures.

`fail`: it cannot serve the inputs. `warn`: it sometimes cannot. `note`: worth a check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.planner.receive_path.chain import SOCKET_HEADROOM, A, broken_constraints, broken_host
from penstock.planner.receive_path.inputs import (
    DATAGRAM_OVERHEAD_BYTES,
    FLOW_BITS_EXPRESS_MAX,
    FLOW_BITS_MAX,
    FLOW_BITS_PLACED_MAX,
    IP_HEADER_BYTES,
    MTU_DEFAULT_BYTES,
    MTU_JUMBO_BYTES,
    NAK_MULTICAST_GROUP,
    PATH_MTU_ETHERNET_BYTES,
    RETRANSMIT_LINGER_US,
    RMEM_MAX_DEFAULT_BYTES,
    TERM_DEFAULT_BYTES,
    UDP_HEADER_BYTES,
    bits_of,
    micros,
    shown,
    size,
)
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.results import Finding, fail, note, ok, warn

CROSS_ZONE_RTT_US: Final = 200.0
"""Shortest round trip between zones; within one, a window twice the default suffices."""
PACKET_CHARGE_BYTES: Final = 768
"""Approximate memory that Linux charges a socket for a small packet beside its data."""


def window_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, inputs = sizing.chain, sizing.inputs
    used, target = chain.receiver_window, chain.window
    if used < target:
        yield warn(
            "window",
            f"{A}: the driver silently uses {size(used)} of the {size(target)}",
            f"set aeron.term.buffer.length to {size(chain.term_least)}",
        )
    if used < chain.bdp_bytes:
        yield fail(
            "window",
            f"{size(used)} in flight carry"
            f" {shown(sizing.window_bytes_per_second, 'bytes/s')} at this round trip,"
            f" of {shown(chain.stream_bytes_per_second, 'bytes/s')}",
            f"set aeron.rcv.initial.window.length to {size(chain.window_least)} or more"
            " (and term and SO_RCVBUF with it)",
        )
    elif used < chain.window_least:
        yield warn(
            "window",
            f"{size(used)} are below {size(chain.window_least)} (twice the BDP, and no"
            " less than 128 KiB): a late status message stops the sender",
            f"set aeron.rcv.initial.window.length to {size(chain.window_least)} or more",
        )
    if inputs.path == "cross-zone" and inputs.rtt_us <= CROSS_ZONE_RTT_US:
        yield note(
            "round trip",
            f"{micros(inputs.rtt_us)} is a round trip within a zone; between"
            " zones it is several times that, and at 10 Gbit/s the window some 2 MB or more",
            "measure the round trip (sockperf, ping) and set rtt",
        )


def term_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, inputs = sizing.chain, sizing.inputs
    if sizing.term_covers_stall_ms < inputs.stall_ms:
        yield warn(
            "term buffer",
            "half a term is written in"
            f" {shown(sizing.term_covers_stall_ms, 'ms')}: a stall of"
            f" {shown(inputs.stall_ms, 'ms')} holds the publisher up",
            f"set aeron.term.buffer.length to {size(chain.term_least)}",
        )
    if not inputs.term_bytes and chain.term <= TERM_DEFAULT_BYTES:
        yield ok(
            "term buffer",
            f"Aeron's default of {size(TERM_DEFAULT_BYTES)} is enough too; a shorter term"
            " keeps the logs in cache, a longer one keeps more to send again",
        )


def socket_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, known = sizing.chain, sizing.inputs.rmem_max_bytes
    raised = f"sysctl -w net.core.rmem_max={chain.rcvbuf} (and keep it in /etc/sysctl.d)"
    if chain.unprotected_bytes:
        capped = chain.rcvbuf_real < chain.rcvbuf
        why = f"net.core.rmem_max of {size(known)} silently caps it" if capped else "it is small"
        yield fail(
            "SO_RCVBUF",
            f"{why}: {size(chain.rcvbuf_real)} for {size(chain.in_flight)} that may be"
            " in flight to the socket. The driver starts, at most with a warning, and the kernel"
            f" drops what comes beyond, up to {size(chain.unprotected_bytes)} (RcvbufErrors,"
            " then gaps and NAKs)",
            raised
            if capped
            else f"set aeron.socket.so_rcvbuf to {size(SOCKET_HEADROOM * chain.rcvbuf_least)}",
        )
    elif chain.rcvbuf_real < chain.rcvbuf:
        yield warn(
            "rmem_max",
            f"net.core.rmem_max of {size(known)} silently caps SO_RCVBUF of"
            f" {size(chain.rcvbuf)}; the window still fits, the headroom for stalls is lost",
            raised,
        )
    elif not known and chain.rcvbuf > RMEM_MAX_DEFAULT_BYTES:
        yield note(
            "rmem_max",
            f"it is not known; most kernels start with {RMEM_MAX_DEFAULT_BYTES:,} bytes,"
            f" which would silently cap SO_RCVBUF of {size(chain.rcvbuf)}",
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
            "the kernel doubles SO_RCVBUF and charges some"
            f" {PACKET_CHARGE_BYTES} bytes for each packet: a window of messages that travel"
            f" alone is charged {size(charged)} of"
            f" {size(2 * chain.rcvbuf_real)}",
            f"let the sender batch, or set SO_RCVBUF and rmem_max to {size(charged / 2)}",
        )


BANDWIDTH_FOR_JUMBO_BITS: Final = 1e9
"""Bandwidth from which fewer and larger packets outweigh the higher cost of a loss."""


def mtu_findings(sizing: Sizing) -> Iterator[Finding]:
    inputs = sizing.inputs
    packet = inputs.mtu_bytes + IP_HEADER_BYTES + UDP_HEADER_BYTES
    path = inputs.path_packet_bytes
    jumbo_fits = path >= MTU_JUMBO_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES
    if packet > path:
        yield fail(
            "MTU",
            f"an MTU of {size(inputs.mtu_bytes)} makes IP packets of {packet} bytes, the"
            f" path carries {path}: each is split, and lost with any of its parts, or dropped",
            f"set aeron.mtu.length to {_largest_mtu(path)}",
        )
    elif inputs.mtu_bytes > MTU_DEFAULT_BYTES:
        cross = inputs.path == "cross-region"
        yield Finding(
            "warn" if cross else "note", "MTU",
            f"one lost datagram loses up to {size(inputs.mtu_bytes)}, not {size(MTU_DEFAULT_BYTES)}"
            + ("; paths between regions seldom carry jumbo frames" if cross else ""),
            "stay at 1408 between regions and over the internet" if cross
            else f"every hop must carry {packet} bytes (VPC: 9001); ping -M do -s {packet - 28}",
        )  # fmt: skip
    else:
        yield from _advise_mtu(sizing, jumbo_fits=jumbo_fits)


def _advise_mtu(sizing: Sizing, *, jumbo_fits: bool) -> Iterator[Finding]:
    inputs = sizing.inputs
    why = []
    if sizing.framing.datagrams_per_message > 1:
        why.append("a message does not fit one datagram")
    if sizing.nic_bits_per_second >= BANDWIDTH_FOR_JUMBO_BITS:
        why.append(f"{bits_of(sizing.nic_bits_per_second)} are many packets")
    if why and jumbo_fits:
        yield note(
            "MTU",
            f"{' and '.join(why)}, and the path carries jumbo frames",
            f"try mtu {MTU_JUMBO_BYTES}: fewer packets and less overhead, but a lost one"
            " loses more",
        )
    else:
        small = inputs.path_packet_bytes <= PATH_MTU_ETHERNET_BYTES
        yield ok(
            "MTU",
            f"{size(inputs.mtu_bytes)} "
            + ("suits a path of standard frames" if small else "is enough at this rate and size"),
        )


def _largest_mtu(path: int) -> int:
    room = (path - IP_HEADER_BYTES - UDP_HEADER_BYTES) // 32 * 32
    usual = [mtu for mtu in (MTU_JUMBO_BYTES, MTU_DEFAULT_BYTES) if mtu <= room]
    return usual[0] if usual else room


def packets_findings(sizing: Sizing) -> Iterator[Finding]:
    allowed = sizing.inputs.packets_allowed
    best, worst = sizing.packets_best_per_second, sizing.packets_worst_per_second
    fix = "batch messages, raise the MTU, or take a larger instance; watch pps_allowance_exceeded"
    if allowed and best > allowed:
        yield fail(
            "packet rate",
            f"{shown(best, 'packets/s')}, batched, are above the allowance of"
            f" {shown(allowed, 'packets/s')}: the provider drops the rest, unseen by the kernel",
            fix,
        )
    elif allowed and worst > allowed:
        yield warn(
            "packet rate",
            f"{shown(worst, 'packets/s')}, when messages travel alone, are above the allowance"
            f" of {shown(allowed, 'packets/s')}: the provider drops the rest, unseen by the kernel",
            fix,
        )
    elif not allowed:
        yield note(
            "packet rate",
            f"the allowance is not known; this needs {shown(best, 'packets/s')} to"
            f" {shown(worst, 'packets/s')}",
            "watch pps_allowance_exceeded in `ethtool -S`; set packets-allowed",
        )


def interface_findings(sizing: Sizing) -> Iterator[Finding]:
    host = sizing.host
    if not host.baseline_bits:
        yield note(
            "bandwidth",
            f"that of {host.name} is not known; this needs"
            f" {bits_of(sizing.nic_bits_per_second)} to"
            f" {bits_of(sizing.nic_worst_bits_per_second)}",
            "set family (and vcpus), or nic-bandwidth",
        )
    else:
        yield from _bandwidth(sizing)
    if sizing.flow_bits > FLOW_BITS_MAX:
        cluster = sizing.flow_bits <= FLOW_BITS_PLACED_MAX
        limit = FLOW_BITS_PLACED_MAX if not cluster else FLOW_BITS_MAX
        express = sizing.flow_bits <= FLOW_BITS_EXPRESS_MAX
        yield warn(
            "one flow",
            f"{bits_of(sizing.flow_bits)} in one flow; EC2 limits a flow to {bits_of(limit)}"
            + (" outside of a cluster placement group" if cluster else " even within one"),
            "use a cluster placement group"
            if cluster
            else "use ENA Express, or more streams with endpoints of their own"
            if express
            else "use more streams with endpoints of their own",
        )


def _bandwidth(sizing: Sizing) -> Iterator[Finding]:
    host, found = sizing.host, {"received": sizing.nic_bits_per_second}
    if sizing.nic_bits_per_second <= host.baseline_bits:
        found["received when messages travel alone"] = sizing.nic_worst_bits_per_second
    if sizing.copies > 1:
        found["sent by a host with all streams"] = sizing.sender_bits_per_second
    for what, bits in found.items():
        beyond = bits > host.burst_bits
        limit = host.burst_bits if beyond else host.baseline_bits
        if bits > host.baseline_bits:
            yield warn(
                "bandwidth",
                f"{bits_of(bits)} {what} are above the {bits_of(limit)} that {host.name}"
                f" {'reaches' if beyond else 'always has'}",
                "take a larger instance or family, spread streams, or batch"
                f" ({DATAGRAM_OVERHEAD_BYTES} bytes of headers on each packet)",
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
            f"the largest ring, {largest} entries, survives"
            f" {shown(batched_ms if fails else worst_ms, 'ms')} of a stall of {shown(stall, 'ms')} "
            + ("even batched and spread over queues" if fails
               else "when messages travel alone to one queue")
            + ": then it overruns (rx_overruns)",
            "keep other work off the vCPU of the interrupt, send fewer and larger packets"
            " (batch, MTU), or spread streams over endpoints and queues",
        )  # fmt: skip
    elif sizing.ring_ms(host.ring_entries, worst) < stall:
        yield warn(
            "RX ring",
            f"{host.ring_entries} entries survive"
            f" {shown(sizing.ring_ms(host.ring_entries, worst), 'ms')} of a stall of"
            f" {shown(stall, 'ms')}, {largest} survive {shown(worst_ms, 'ms')}",
            f"ethtool -G {sizing.inputs.device} rx {largest}, at deploy time: resizing"
            " interrupts traffic",
        )
    if not host.ring_max_known:
        yield note(
            "RX ring",
            f"its largest size is not known, {largest} is assumed (256 to 16,384 by instance)",
            f"ethtool -g {sizing.inputs.device}; set ring-max",
        )
    if sizing.flows > 1 and sizing.receive_queues > 1:
        yield note(
            "receive queues",
            f"{sizing.flows} flows are hashed to {host.queues} queues, some to the same one;"
            " ring figures suppose that all share one",
            f"ethtool -S {sizing.inputs.device} counts packets by queue",
        )


def recovery_findings(sizing: Sizing) -> Iterator[Finding]:
    timers, inputs = sizing.timers, sizing.inputs
    if timers.to_group and inputs.receivers <= NAK_MULTICAST_GROUP:
        yield note(
            "NAK timers",
            f"with the defaults a loss costs {inputs.receivers} receivers up to"
            f" {micros(timers.lost_once_default_us)}, {micros(timers.lost_twice_default_us)} if its"
            f" repair is lost too; with these timers {micros(timers.lost_once_us)} and"
            f" {micros(timers.lost_twice_us)}",
            "set the timers below; so few receivers cannot cause a storm of NAKs",
        )
    elif timers.to_group:
        yield ok(
            "NAK timers",
            f"the backoff of {micros(timers.wait_us)} keeps {inputs.receivers} receivers from"
            " reporting each loss at once; set the group size",
        )
    elif timers.linger_us <= RETRANSMIT_LINGER_US:
        yield ok(
            "NAK timers",
            "a lone receiver reports losses at once; only if its repair is lost too do the"
            f" defaults cost {micros(timers.lost_twice_default_us)}, these timers"
            f" {micros(timers.lost_twice_us)}",
        )
    else:
        yield note(
            "NAK timers",
            f"the default linger of {micros(RETRANSMIT_LINGER_US)} is short for a round trip"
            f" of {micros(inputs.rtt_us)}: data is sent again that is on its way",
            f"set aeron.retransmit.unicast.linger to {micros(timers.linger_us)}; a loss whose"
            f" repair is lost too then costs up to {micros(timers.lost_twice_us)}, not"
            f" {micros(timers.lost_twice_default_us)}",
        )


def cache_findings(sizing: Sizing) -> Iterator[Finding]:
    l3 = sizing.host.l3_bytes
    logs, flight = sizing.logs_bytes, sizing.in_flight_bytes
    if not l3:
        yield note(
            "L3 cache", f"its size is not known; the logs take {size(logs)}", "set family, or l3"
        )
    elif logs <= l3:
        yield ok(
            "L3 cache",
            f"all logs, {size(logs)}, fit {size(l3)}: late readers and repairs hit it too",
        )
    elif flight <= l3:
        yield note(
            "L3 cache",
            f"the windows, {size(flight)}, fit {size(l3)}, the logs, {size(logs)}, do"
            " not: late readers and repairs of losses read from memory",
            "use shorter terms if the stall allows, and keep receiver and reader on cores of"
            " one L3 domain",
        )
    else:
        yield warn(
            "L3 cache",
            f"the windows alone, {size(flight)}, are above {size(l3)}: all reads go to memory",
            "fewer streams on a host, or a family with a larger L3",
        )


def broken_findings(sizing: Sizing) -> tuple[Finding, ...]:
    """Return findings on broken constraints, with which nothing starts."""
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
