"""What to know of MTU, packet rate, interface, ring, loss reports and cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.planner.receive_path.limits import (
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
    UDP_HEADER_BYTES,
)
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.receive_path.sources import bits_of, micros, say, size
from penstock.planner.results import Finding

BANDWIDTH_FOR_JUMBO_BITS: Final = 1e9
"""From here on, fewer and larger packets are worth what a lost one costs more."""


def mtu_findings(sizing: Sizing) -> Iterator[Finding]:
    inputs = sizing.inputs
    packet = inputs.mtu_bytes + IP_HEADER_BYTES + UDP_HEADER_BYTES
    path = inputs.path_packet_bytes
    jumbo_fits = path >= MTU_JUMBO_BYTES + IP_HEADER_BYTES + UDP_HEADER_BYTES
    if packet > path:
        yield Finding(
            severity="fail",
            subject="MTU",
            cause=f"an MTU of {size(inputs.mtu_bytes)} makes IP packets of {packet} bytes, the"
            f" path carries {path}: each is split, and lost with any of its parts, or dropped",
            cure=f"set aeron.mtu.length to {_largest_mtu(path)}",
        )
    elif inputs.mtu_bytes > MTU_DEFAULT_BYTES:
        cross = inputs.path == "cross-region"
        yield Finding(
            severity="warn" if cross else "note",
            subject="MTU",
            cause=f"one lost datagram loses up to {size(inputs.mtu_bytes)}, not"
            f" {size(MTU_DEFAULT_BYTES)}"
            + ("; paths between regions seldom carry jumbo frames" if cross else ""),
            cure="stay at 1408 between regions and over the internet" if cross
            else f"every hop must carry {packet} bytes (VPC: 9001); ping -M do -s {packet - 28}",
        )  # fmt: skip
    else:
        yield from _advise_mtu(sizing, jumbo_fits=jumbo_fits)


def _advise_mtu(sizing: Sizing, *, jumbo_fits: bool) -> Iterator[Finding]:
    inputs = sizing.inputs
    why = []
    if sizing.framing.datagrams_per_message > 1:
        why.append("a message does not fit one datagram")
    if sizing.bits_best >= BANDWIDTH_FOR_JUMBO_BITS:
        why.append(f"{bits_of(sizing.bits_best)} are many packets")
    if why and jumbo_fits:
        yield Finding(
            severity="note",
            subject="MTU",
            cause=f"{' and '.join(why)}, and the path carries jumbo frames",
            cure=f"try mtu {MTU_JUMBO_BYTES}: fewer packets and less overhead, but a lost one"
            " loses more",
        )
    else:
        small = inputs.path_packet_bytes <= PATH_MTU_ETHERNET_BYTES
        yield Finding(
            severity="ok",
            subject="MTU",
            cause=f"{size(inputs.mtu_bytes)} "
            + ("suits a path of standard frames" if small else "is enough at this rate and size"),
        )


def _largest_mtu(path: int) -> int:
    room = (path - IP_HEADER_BYTES - UDP_HEADER_BYTES) // 32 * 32
    usual = [one for one in (MTU_JUMBO_BYTES, MTU_DEFAULT_BYTES) if one <= room]
    return usual[0] if usual else room


def packets_findings(sizing: Sizing) -> Iterator[Finding]:
    allowed = sizing.inputs.packets_allowed
    best, worst = sizing.packets_best, sizing.packets_worst
    cure = "batch messages, raise the MTU, or take a larger instance; watch pps_allowance_exceeded"
    if allowed and best > allowed:
        yield Finding(
            severity="fail",
            subject="packet rate",
            cause=f"{say(best, 'packets/s')}, batched, are above the allowance of"
            f" {say(allowed, 'packets/s')}: the provider drops the rest, unseen by the kernel",
            cure=cure,
        )
    elif allowed and worst > allowed:
        yield Finding(
            severity="warn",
            subject="packet rate",
            cause=f"{say(worst, 'packets/s')}, when messages travel alone, are above the allowance"
            f" of {say(allowed, 'packets/s')}: the provider drops the rest, unseen by the kernel",
            cure=cure,
        )
    elif not allowed:
        yield Finding(
            severity="note",
            subject="packet rate",
            cause=f"the allowance is not known; this needs {say(best, 'packets/s')} to"
            f" {say(worst, 'packets/s')}",
            cure="watch pps_allowance_exceeded in `ethtool -S`; set packets-allowed",
        )


def interface_findings(sizing: Sizing) -> Iterator[Finding]:
    host = sizing.host
    if not host.baseline_bits:
        yield Finding(
            severity="note",
            subject="bandwidth",
            cause=f"that of {host.name} is not known; this needs {bits_of(sizing.bits_best)} to"
            f" {bits_of(sizing.bits_worst)}",
            cure="set family (and vcpus), or nic-bandwidth",
        )
    else:
        yield from _bandwidth(sizing)
    if sizing.flow_bits > FLOW_BITS_MAX:
        cluster = sizing.flow_bits <= FLOW_BITS_PLACED_MAX
        limit = FLOW_BITS_PLACED_MAX if not cluster else FLOW_BITS_MAX
        express = sizing.flow_bits <= FLOW_BITS_EXPRESS_MAX
        yield Finding(
            severity="warn",
            subject="one flow",
            cause=f"{bits_of(sizing.flow_bits)} in one flow; EC2 limits a flow to {bits_of(limit)}"
            + (" outside of a cluster placement group" if cluster else " even within one"),
            cure="use a cluster placement group" if cluster
            else "use ENA Express, or more streams with endpoints of their own" if express
            else "use more streams with endpoints of their own",
        )  # fmt: skip


def _bandwidth(sizing: Sizing) -> Iterator[Finding]:
    host = sizing.host
    batched = sizing.bits_best > host.baseline_bits
    for bits, what in (
        (sizing.bits_best, "received"),
        (0.0 if batched else sizing.bits_worst, "received when messages travel alone"),
        (0.0 if sizing.copies == 1 else sizing.sender_bits, "sent by a host with all streams"),
    ):
        if bits <= host.baseline_bits:
            continue
        beyond = bits > host.burst_bits
        yield Finding(
            severity="warn",
            subject="bandwidth",
            cause=f"{bits_of(bits)} {what} are above the"
            f" {bits_of(host.burst_bits if beyond else host.baseline_bits)} "
            + (f"that {host.name} reaches" if beyond else f"that {host.name} always has"),
            cure="take a larger instance or family, spread streams, or batch"
            f" ({DATAGRAM_OVERHEAD_BYTES} bytes of headers on each packet)",
        )


def ring_findings(sizing: Sizing) -> Iterator[Finding]:
    host, stall = sizing.host, sizing.inputs.stall_ms
    largest = host.ring_max_entries
    if sizing.ring_ms(largest, sizing.packets_queue) < stall:
        severity, how = "fail", "even batched and spread over queues"
    elif sizing.ring_ms(largest, sizing.packets_worst) < stall:
        severity, how = "warn", "when messages travel alone to one queue"
    else:
        severity, how = "", ""
    if severity:
        survived = sizing.packets_queue if severity == "fail" else sizing.packets_worst
        yield Finding(
            severity="fail" if severity == "fail" else "warn",
            subject="RX ring",
            cause=f"the largest ring, {largest} entries, survives"
            f" {say(sizing.ring_ms(largest, survived), 'ms')} of a stall of"
            f" {say(stall, 'ms')} {how}: then it overruns (rx_overruns)",
            cure="keep other work off the vCPU of the interrupt, send fewer and larger packets"
            " (batch, MTU), or spread streams over endpoints and queues",
        )
    elif sizing.ring_ms(host.ring_entries, sizing.packets_worst) < stall:
        yield Finding(
            severity="warn",
            subject="RX ring",
            cause=f"{host.ring_entries} entries survive"
            f" {say(sizing.ring_ms(host.ring_entries, sizing.packets_worst), 'ms')} of"
            f" a stall of {say(stall, 'ms')}, {largest} survive"
            f" {say(sizing.ring_ms(largest, sizing.packets_worst), 'ms')}",
            cure=f"ethtool -G {sizing.inputs.device} rx {largest}, at deploy time: resizing"
            " interrupts traffic",
        )
    if not host.ring_max_known:
        yield Finding(
            severity="note",
            subject="RX ring",
            cause=f"its largest size is not known, {largest} is assumed (256 to 16,384 by"
            " instance)",
            cure=f"ethtool -g {sizing.inputs.device}; set ring-max",
        )
    if sizing.flows > 1 and sizing.queues > 1:
        yield Finding(
            severity="note",
            subject="receive queues",
            cause=f"{sizing.flows} flows are hashed to {host.queues} queues, some to the same one;"
            " ring figures suppose that all share one",
            cure=f"ethtool -S {sizing.inputs.device} counts packets by queue",
        )


def recovery_findings(sizing: Sizing) -> Iterator[Finding]:
    timers, inputs = sizing.timers, sizing.inputs
    if timers.to_group and inputs.receivers <= NAK_MULTICAST_GROUP:
        yield Finding(
            severity="note",
            subject="NAK timers",
            cause=f"with the defaults a loss costs {inputs.receivers} receivers up to"
            f" {micros(timers.lost_once_default_us)}, {micros(timers.lost_twice_default_us)} if its"
            f" repair is lost too; with these timers {micros(timers.lost_once_us)} and"
            f" {micros(timers.lost_twice_us)}",
            cure="set the timers below; so few receivers cannot cause a storm of NAKs",
        )
    elif timers.to_group:
        yield Finding(
            severity="ok",
            subject="NAK timers",
            cause=f"the backoff of {micros(timers.wait_us)} keeps {inputs.receivers} receivers from"
            " reporting each loss at once; set the group size",
        )
    elif timers.linger_us <= RETRANSMIT_LINGER_US:
        yield Finding(
            severity="ok",
            subject="NAK timers",
            cause="a lone receiver reports losses at once; only if its repair is lost too do the"
            f" defaults cost {micros(timers.lost_twice_default_us)}, these timers"
            f" {micros(timers.lost_twice_us)}",
        )
    else:
        yield Finding(
            severity="note",
            subject="NAK timers",
            cause=f"the default linger of {micros(RETRANSMIT_LINGER_US)} is short for a round trip"
            f" of {micros(inputs.rtt_us)}: data is sent again that is on its way",
            cure=f"set aeron.retransmit.unicast.linger to {micros(timers.linger_us)}; a loss whose"
            f" repair is lost too then costs up to {micros(timers.lost_twice_us)}, not"
            f" {micros(timers.lost_twice_default_us)}",
        )


def cache_findings(sizing: Sizing) -> Iterator[Finding]:
    l3 = sizing.host.l3_bytes
    logs, flight = sizing.logs_bytes, sizing.in_flight_bytes
    if not l3:
        yield Finding(
            severity="note",
            subject="L3 cache",
            cause=f"its size is not known; the logs take {size(logs)}",
            cure="set family, or l3",
        )
    elif logs <= l3:
        yield Finding(
            severity="ok",
            subject="L3 cache",
            cause=f"all logs, {size(logs)}, fit {size(l3)}: late readers and repairs hit it too",
        )
    elif flight <= l3:
        yield Finding(
            severity="note",
            subject="L3 cache",
            cause=f"the windows, {size(flight)}, fit {size(l3)}, the logs, {size(logs)}, do"
            " not: late readers and repairs of losses read from memory",
            cure="use shorter terms if the stall allows, and keep receiver and reader on cores of"
            " one L3 domain",
        )
    else:
        yield Finding(
            severity="warn",
            subject="L3 cache",
            cause=f"the windows alone, {size(flight)}, are above {size(l3)}: all reads go to"
            " memory",
            cure="fewer streams on a host, or a family with a larger L3",
        )
