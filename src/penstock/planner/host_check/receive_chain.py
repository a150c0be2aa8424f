"""Receive path: wire, ring, backlog, socket buffer, window, term.

    NIC ring ──softirq──> backlog ──> SO_RCVBUF ≥ window = min(initial window, term ÷ 2) ──> reader
     a time to bridge                  └ rmem_max caps it without an error

The window, the socket buffer and the term are bytes and follow from one another. The ring is a
count of packets and buys time: entries ÷ packet rate is how long a CPU may stall.

Source: receive-path sizing (constraints A, B and C, the silent cap); Aeron: Configuration.java;
ENA driver best practices; socket(7), udp(7); the kernel's networking/scaling and `net_sysctl`.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final

from penstock.planner.host_check.inputs import UNLIMITED, CheckHostInputs, HostFacts, Interface
from penstock.planner.host_check.layers import (
    RECEIVE,
    Fix,
    Layer,
    Rule,
    counted,
    informed,
    judged,
    sysctl_layer,
    unknown,
)
from penstock.planner.quantities import format_quantity
from penstock.planner.receive_path.chain import SOCKET_HEADROOM, receiver_window
from penstock.planner.receive_path.inputs import (
    ARTICLE,
    CONFIGURATION,
    ETHERNET_BYTES,
    IP_HEADER_BYTES,
    UDP_HEADER_BYTES,
)
from penstock.planner.results import Severity

SIZING: Final = f"{ARTICLE} (receive-path sizing)"

LINK: Final = Rule(
    "mtu_bytes", "link MTU", RECEIVE, "mtu + 28 bytes of IP and UDP headers",
    f"{SIZING}, MTU; RFC 791, fragmentation", unit="bytes", setting="ip link mtu", short="warn",
)  # fmt: skip
SPEED: Final = Rule(
    "link_bits_per_second", "link speed", RECEIVE, "packet-rate × (mtu + 28 + 38 bytes on the wire)"
    " × 8", "IEEE 802.3 framing", unit="bit/s", short="warn",
)  # fmt: skip
ALLOWANCE: Final = Rule(
    "allowance_exceeded_packets", "instance allowance", RECEIVE,
    "…_allowance_exceeded of ethtool -S", f"{SIZING}, PPS; ENA driver", unit="packets",
    short="warn",
)  # fmt: skip
RING: Final = Rule(
    "rx_ring_entries", "NIC receive ring", RECEIVE, "packet-rate × stall",
    f"{SIZING}, stall survival ≈ ring entries ÷ packet rate", unit="entries",
    setting="ethtool -G rx", reading="descriptors of the ring",
)  # fmt: skip
SURVIVAL: Final = Rule(
    "ring_survival_ms", "stall that the ring bridges", RECEIVE, "entries ÷ packet-rate",
    f"{SIZING}, stall survival", unit="ms",
)  # fmt: skip
OVERRUNS: Final = Rule(
    "nic_dropped_packets", "NIC drops", RECEIVE, "rx_overruns, rx_missed_errors, rx_fifo_errors and"
    " the like", f"{SIZING}, rx_overruns; sysfs statistics", unit="packets", short="warn",
)  # fmt: skip
QUEUES: Final = Rule(
    "rx_queues", "receive queues", RECEIVE, "min(queues of the NIC, CPUs)",
    f"{SIZING}: RSS hashes each flow to one queue", setting="ethtool -L combined", short="note",
)  # fmt: skip
BACKLOG: Final = Rule(
    "softirq_backlog_packets", "softirq backlog", RECEIVE, "packet-rate × stall",
    "Linux: net_sysctl, netdev_max_backlog; networking/scaling", unit="packets",
    setting="net.core.netdev_max_backlog", short="warn",
)  # fmt: skip
SOFTIRQ: Final = Rule(
    "softirq_dropped_packets", "softirq drops", RECEIVE, "second column of /proc/net/softnet_stat,"
    " all CPUs", "Linux: softnet_stat", unit="packets", short="warn",
)  # fmt: skip
SQUEEZED: Final = Rule(
    "softirq_squeezed_ratio", "softirq turns cut short", RECEIVE, "a thousandth",
    "Linux: softnet_stat, net_sysctl, netdev_budget", short="note", most=True,
    reading="third column of /proc/net/softnet_stat ÷ the first",
)  # fmt: skip
UDP_MEMORY: Final = Rule(
    "udp_memory_bytes", "memory of UDP sockets", RECEIVE, "2 × SO_RCVBUF",
    "Linux: ip-sysctl, udp_mem", unit="bytes", setting="net.ipv4.udp_mem",
    reading="third number of udp_mem × page size",
)  # fmt: skip
SEND: Final = Rule(
    "udp_send_buffer_bytes", "ceiling of send buffers", RECEIVE, "mtu",
    f"{SIZING}, SO_SNDBUF ≥ MTU", unit="bytes", setting="net.core.wmem_max",
)  # fmt: skip
CAP: Final = Rule(
    "rmem_max_bytes", "ceiling of socket buffers", RECEIVE, "SO_RCVBUF",
    f"{SIZING}, the one gap that a driver cannot close; socket(7)", unit="bytes",
    setting="net.core.rmem_max",
    reading="a ceiling; a larger request is cut to it without an error",
)  # fmt: skip
BUFFER: Final = Rule(
    "udp_receive_buffer_bytes", "socket buffer as granted", RECEIVE, "window",
    f"{SIZING}, constraint C; socket(7): the kernel doubles the value", unit="bytes",
    setting="aeron.socket.so_rcvbuf",
    reading="min(SO_RCVBUF, rmem_max), what the kernel reports ÷ 2",
)  # fmt: skip
DEFAULT: Final = Rule(
    "default_receive_buffer_bytes", "buffer of a socket that does not ask", RECEIVE, "window",
    f"{SIZING}, constraint C with the default of the system; socket(7)", unit="bytes",
    setting="net.core.rmem_default", short="note",
    reading="rmem_default ÷ 2: it counts the kernel's bookkeeping along",
)  # fmt: skip
ERRORS: Final = Rule(
    "udp_buffer_errors_packets", "full socket buffers", RECEIVE,
    "RcvbufErrors + MemErrors of /proc/net/snmp", f"{SIZING}, RcvbufErrors; udp(7)", unit="packets",
    short="warn",
)  # fmt: skip
TERM: Final = Rule(
    "term_bytes", "term buffer", RECEIVE, "2 × window",
    f"{SIZING}, constraint A; {CONFIGURATION}, receiverWindowLength()", unit="bytes", short="warn",
    setting="aeron.term.buffer.length", reading="the window is min(window, term ÷ 2)",
)  # fmt: skip
CACHE: Final = Rule(
    "cache_bytes", "last-level cache", RECEIVE, "SO_RCVBUF + window: what lies between kernel and"
    " reader", f"{SIZING}, cache fit", unit="bytes", short="note",
)  # fmt: skip


DATAGRAM_HEADER_BYTES: Final = UDP_HEADER_BYTES + IP_HEADER_BYTES

SQUEEZED_RATIO_MAX: Final = 0.001
"""Share of turns cut short, of the packets handled, that is ignored."""


def receive_chain(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    return (
        *_wire(facts, inputs),
        *_ring(facts, inputs),
        *_driver(facts),
        *_softirq(facts, inputs),
        *_socket(facts, inputs),
        *_application(facts, inputs),
    )


def _wire(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    nic, why = facts.interface, facts.why("interface")
    packet_bytes = inputs.mtu_bytes + DATAGRAM_HEADER_BYTES
    if nic is None:
        return tuple([unknown(rule, why) for rule in (LINK, SPEED, ALLOWANCE)])
    wire_bits = inputs.packets_per_second * (packet_bytes + ETHERNET_BYTES) * 8
    exceeded = {name: count for name, count in (nic.allowances or {}).items() if count}
    return (
        judged(
            LINK, nic.mtu_bytes, packet_bytes,
            unread=facts.why("mtu", "interface"),
            cause="longer datagrams are cut into fragments, and one lost fragment loses them all",
            fix=f"a datagram of at most {max(0, (nic.mtu_bytes or 0) - DATAGRAM_HEADER_BYTES)}"
            f" bytes, or: ip link set dev {nic.name} mtu {packet_bytes}, if the network carries it",
        ),
        judged(
            SPEED, nic.speed_bits, wire_bits,
            unread=facts.why("speed", "interface"),
            cause="full datagrams at this rate do not fit the link",
            fix="fewer or smaller packets, or a faster interface",
        ),
        counted(
            ALLOWANCE, None if nic.allowances is None else sum(exceeded.values()),
            unread=facts.why("ethtool -S", "ethtool", "interface"),
            cause=", ".join([f"{name} {count:,}" for name, count in exceeded.items()])
            + ": dropped or held up before the kernel saw them",
            fix="larger datagrams, batching, or a larger instance: packets are rationed",
        ),
    )  # fmt: skip


def _ring(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    nic = facts.interface
    why = facts.why("ethtool -g", "ethtool", "interface")
    needed = ceil(inputs.stalled_packets)
    if nic is None or nic.rx_ring is None:
        return unknown(RING, why, needed), unknown(SURVIVAL, why)
    rate = inputs.packets_per_second
    survived_ms = min(nic.rx_ring / rate * 1000 if rate else inf, float(UNLIMITED))
    survived = "any length" if survived_ms >= UNLIMITED else format_quantity(survived_ms, "ms")
    larger = nic.rx_ring_max is not None and nic.rx_ring_max > nic.rx_ring
    fixes = (Fix("ethtool", f"-G {nic.name} rx", nic.rx_ring_max or 0),) if larger else ()
    enough = nic.rx_ring_max is not None and nic.rx_ring_max >= needed
    line = f"{fixes[0].line} (traffic stops for a moment)" if fixes else ""
    beyond = "larger datagrams halve the packets; a shorter stall; an instance with a larger ring"
    ring = judged(
        RING, nic.rx_ring, needed,
        cause=f"it is full after a stall of {survived}, and then overruns",
        detail=f"the card takes up to {nic.rx_ring_max}" if larger else "",
        fix="; ".join(filter(None, (line, "" if enough else beyond))),
        fixes=fixes,
    )  # fmt: skip
    severity: Severity = "ok" if ring.severity == "ok" else "note"
    return ring, informed(SURVIVAL, survived_ms, severity, f"a stall of {survived}")


def _driver(facts: HostFacts) -> tuple[Layer, ...]:
    nic = facts.interface
    if nic is None:
        why = facts.why("interface")
        return unknown(OVERRUNS, why), unknown(QUEUES, why)
    losses = {name: count for name, count in (nic.drops or {}).items() if count}
    overruns = counted(
        OVERRUNS, None if nic.drops is None else sum(losses.values()),
        unread=facts.why("statistics", "ethtool -S", "interface"),
        cause=", ".join([f"{name} {count:,}" for name, count in losses.items()])
        + " since boot: the ring was full while its CPU was away",
        fix="a larger ring (ethtool -g, -G), and look for what holds the CPU up",
    )  # fmt: skip
    return overruns, _queues(facts, nic)


def _queues(facts: HostFacts, nic: Interface) -> Layer:
    target = min(nic.queues_max or nic.queues or 1, facts.processors.count or 1)
    return judged(
        QUEUES, nic.queues, target,
        unread=facts.why("queues", "ethtool -l", "interface"),
        cause="one flow always lands on one queue; several flows share these",
        fix=f"ethtool -L {nic.name} combined {target}",
        fixes=(Fix("ethtool", f"-L {nic.name} combined", target),),
    )  # fmt: skip


def _softirq(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    seen = facts.softirq
    return (
        sysctl_layer(
            facts, BACKLOG, ceil(inputs.stalled_packets),
            "loopback, and interfaces that steer packets to other CPUs, drop beyond it",
        ),
        counted(
            SOFTIRQ, None if seen is None else seen.dropped,
            unread=facts.why("softnet_stat"),
            cause=f"{0 if seen is None else seen.dropped:,} packets since boot found the backlog"
            " of their CPU full",
            fix=f"raise {BACKLOG.setting}, or spread interrupts over more CPUs",
        ),
        judged(
            SQUEEZED, None if seen is None else seen.squeezed / max(seen.processed, 1),
            SQUEEZED_RATIO_MAX, unread=facts.why("softnet_stat"),
            cause="packets were left for a later turn, since the budget of one was used up",
            fix="sysctl -w net.core.netdev_budget=600, or more CPUs for interrupts",
        ),
    )  # fmt: skip


def _socket(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    asked, name = inputs.receive_buffer_bytes, "net.core.rmem_max"
    cap = facts.sysctl(name)
    fix = Fix("sysctl", name, asked)
    effective = None if cap is None else min(asked, cap)
    holds = effective is not None and effective >= inputs.window_bytes
    fate = "still holds" if holds else "does not hold"
    silent = (
        f"the kernel cuts the request to {format_quantity(effective, 'bytes')} without an error,"
        f" which {fate} the window of {format_quantity(inputs.window_bytes, 'bytes')}"
    )
    errors = facts.datagrams
    return (
        _udp_memory(facts, asked),
        sysctl_layer(
            facts, SEND, inputs.mtu_bytes,
            "a datagram must fit the send buffer, or the driver does not start",
        ),
        judged(
            CAP, cap, asked, unread=facts.why(name), cause=silent, fixes=(fix,),
            short="warn" if holds else "fail",
        ),
        _granted(facts, inputs, effective, fix),
        _default(facts, inputs),
        counted(
            ERRORS,
            None if errors is None else errors.buffer_errors + errors.memory_errors,
            unread=facts.why("snmp"),
            cause=_share(facts),
            fix=f"a larger SO_RCVBUF, {SOCKET_HEADROOM} windows or more, and {name} no lower",
        ),
    )  # fmt: skip


def _udp_memory(facts: HostFacts, asked: int) -> Layer:
    name = "net.ipv4.udp_mem"
    pages, needed = facts.sysctl(name), 2 * asked
    found = None if pages is None else pages * facts.page_bytes
    lower = " ".join([str(number) for number in facts.sysctls.get(name, ())[:-1]])
    fix = Fix("sysctl", name, ceil(needed / facts.page_bytes), lower)
    return judged(
        UDP_MEMORY, found, needed, unread=facts.why(name), fixes=(fix,),
        cause="all UDP sockets together get no more, whatever one of them was granted",
    )  # fmt: skip


def _granted(facts: HostFacts, inputs: CheckHostInputs, effective: int | None, fix: Fix) -> Layer:
    asked = inputs.receive_buffer_bytes
    grant = facts.grant("udp", "SO_RCVBUF", asked)
    found = effective if grant is None else grant.granted_bytes
    how = (
        "reckoned from rmem_max"
        if grant is None
        else f"a UDP socket asked for {asked}, and the kernel reports {grant.reported_bytes}"
    )
    return judged(
        BUFFER, found, inputs.window_bytes, unread=facts.why("net.core.rmem_max"),
        fixes=(fix,), cause="the kernel drops packets that the window allowed", detail=how,
    )  # fmt: skip


def _default(facts: HostFacts, inputs: CheckHostInputs) -> Layer:
    name = "net.core.rmem_default"
    reported = facts.sysctl(name)
    return judged(
        DEFAULT, None if reported is None else reported // 2, inputs.window_bytes,
        unread=facts.why(name),
        cause="a socket without its own SO_RCVBUF gets less than the window",
        fix=f"set aeron.socket.so_rcvbuf to {inputs.receive_buffer_bytes}",
    )  # fmt: skip


def _share(facts: HostFacts) -> str:
    seen = facts.datagrams
    if seen is None:
        return ""
    return (
        f"{seen.buffer_errors:,} datagrams since boot found a full socket buffer,"
        f" {seen.memory_errors:,} the memory of all sockets used up;"
        f" {seen.received:,} were received"
    )


def _application(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    used = receiver_window(inputs.window_bytes, inputs.term_bytes)
    cache, shared = facts.processors.cache_bytes, facts.processors.cache_shared_by
    return (
        judged(
            TERM, inputs.term_bytes, 2 * inputs.window_bytes,
            cause=f"the window is cut to {format_quantity(used, 'bytes')}",
            fix=f"aeron.term.buffer.length of at least {2 * inputs.window_bytes}, a power of 2",
        ),
        judged(
            CACHE, cache, inputs.receive_buffer_bytes + inputs.window_bytes,
            unread=facts.why("cache"),
            cause="packets are fetched from memory again",
            fix="a smaller buffer, where latency counts more than bursts",
            detail=f"shared by {shared} CPUs" if shared else "",
        ),
    )  # fmt: skip
