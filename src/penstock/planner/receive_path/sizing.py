"""Figures of one receive path, each with its formula and its source.

They are ordered along the path: wire, window, socket, packets, interface, ring, recovery, cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.planner.receive_path.chain import (
    BDP_LEAST,
    BDP_RECOMMENDED,
    SOCKET_HEADROOM,
    Chain,
    Framing,
    Host,
    Timers,
    entries_for,
    frame,
    plan_chain,
    plan_host,
    plan_timers,
    survival_s,
)
from penstock.planner.receive_path.inputs import (
    ARTICLE,
    AS_OF,
    CONFIGURATION,
    DATAGRAM_OVERHEAD_BYTES,
    ENA,
    TERMS,
    ReceivePathInputs,
    count,
    shown,
)
from penstock.planner.results import figure

_HEADERS: Final = f"{DATAGRAM_OVERHEAD_BYTES} bytes (Ethernet 38, IPv4 20, UDP 8)"
_FRAMES: Final = "RFC 768, RFC 791, IEEE 802.3"
_SURVIVAL: Final = f"{ARTICLE}: stall survival ≈ ring entries ÷ packet rate; {ENA}: 1024 by default"
_TERM: Final = (
    "the largest of 2 × initial window, 2 × λ × stall {inputs.stall_ms:ms}, 8 × message, 8 × MTU"
    " and 64 KiB, rounded up to a power of two, at most 1 GiB"
)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Figures of a receive path.

    Rates are those of the whole host. Bits include all headers.
    """

    inputs: ReceivePathInputs
    framing: Framing
    chain: Chain
    host: Host
    timers: Timers

    @property
    def messages_per_second(self) -> float:
        return self.inputs.rate * self.inputs.streams

    @property
    def copies(self) -> int:
        return 1 if self.inputs.transport == "multicast" else self.inputs.receivers

    @property
    def flows(self) -> int:
        """Number of distinct flows (5-tuples); each is hashed to one receive queue."""
        return ceil(self.inputs.streams / self.inputs.sharing)

    @property
    def flow_bits(self) -> float:
        return self.nic_bits_per_second * self.inputs.sharing / self.inputs.streams

    @property
    def packets_queue(self) -> float:
        """Packets per second of the busiest queue, with batching and flows spread evenly."""
        return self.packets_best_per_second * ceil(self.flows / self.receive_queues) / self.flows

    @property
    def streams_bytes_per_second(self) -> float:
        return self.stream_bytes_per_second * self.inputs.streams

    def ring_ms(self, entries: int, packets_per_second: float) -> float:
        return survival_s(entries, packets_per_second) * 1e3

    @figure("on-wire bytes of a message", "bytes", group="wire",
            formula=lambda s: s.message_formula,
            source="Aeron: DataHeaderFlyweight (header of 32), FrameDescriptor (alignment of 32,"
            " computeFragmentedFrameLength())")
    def message_wire_bytes(self) -> int:
        return self.framing.message_bytes

    @property
    def message_formula(self) -> str:
        size = shown(self.inputs.message_bytes, "bytes")
        if self.framing.datagrams_per_message == 1:
            return f"message {size} + frame header 32, rounded up to a multiple of 32"
        return (
            f"message {size} in fragments of MTU − 32 = {self.framing.payload_max_bytes} bytes,"
            " each with a header of 32, the last rounded up to a multiple of 32"
        )

    @figure("messages per datagram, batched", group="wire",
            formula="MTU {inputs.mtu_bytes} ÷ {message_wire_bytes} on-wire bytes, rounded down;"
            " 1 for fragmented messages",
            source="Aeron: Sender sends whole frames up to the MTU")
    def messages_per_datagram(self) -> int:
        return self.framing.messages_per_datagram

    @figure("datagrams per message", group="wire",
            formula="message ÷ (MTU − 32 = {framing.payload_max_bytes}), rounded up",
            source="Aeron: FrameDescriptor fragments messages that exceed the MTU's payload")
    def datagrams_per_message(self) -> int:
        return self.framing.datagrams_per_message

    @figure("bandwidth λ of a stream", "bytes/s", group="wire",
            formula="{inputs.rate:messages/s} × {message_wire_bytes} on-wire bytes",
            source=f"{ARTICLE}: λ = TPS × bytes per message")
    def stream_bytes_per_second(self) -> float:
        return self.chain.stream_bytes_per_second

    @figure("bandwidth delay product (BDP)", "bytes", group="wire",
            formula="λ {stream_bytes_per_second:bytes/s} × round trip {inputs.rtt_us:us}",
            source=f"{ARTICLE}: BDP = λ × RTT; {CONFIGURATION} derives its default window from it")
    def bdp_bytes(self) -> int:
        return self.chain.bdp_bytes

    @figure("initial window", "bytes", group="window", setting="aeron.rcv.initial.window.length",
            minimum=lambda s: s.chain.window_least,
            formula=lambda s: "as given; at least: 2 × BDP, 128 KiB and the MTU, rounded up to a"
            " power of two" if s.inputs.window_bytes else
            f"{BDP_RECOMMENDED} × BDP (at least {BDP_LEAST} × BDP), no less than 128 KiB and the"
            " MTU, rounded up to a power of two; half a term, at most 512 MiB, and given buffers"
            " bound it",
            source=f"{ARTICLE}: 2–4 × BDP; constraint B: {CONFIGURATION},"
            " validateInitialWindowLength()")
    def initial_window_bytes(self) -> int:
        return self.chain.window

    @figure("window that the driver uses", "bytes", group="window",
            formula="min(initial window {chain.window:bytes}, term {chain.term:bytes} ÷ 2)",
            source=f"constraint A: {CONFIGURATION}, receiverWindowLength()")
    def receiver_window_bytes(self) -> int:
        return self.chain.receiver_window

    @figure("maximum round trip with this window", "us", group="window",
            formula="window that the driver uses ÷ λ", source="BDP, solved for the round trip")
    def window_covers_rtt_us(self) -> float:
        return self.chain.receiver_window / self.chain.stream_bytes_per_second * 1e6

    @figure("maximum bandwidth with this window", "bytes/s", group="window",
            formula="window that the driver uses ÷ round trip {inputs.rtt_us:us}",
            source="BDP, solved for the bandwidth")
    def window_bytes_per_second(self) -> float:
        return self.chain.receiver_window / (self.inputs.rtt_us / 1e6)

    @figure("term buffer", "bytes", group="window", setting="aeron.term.buffer.length",
            minimum=lambda s: s.chain.term_least, formula=f"{{term_given}}{_TERM}",
            source="constraint A; a publisher gets at most half a term ahead; Aeron:"
            " LogBufferDescriptor.checkTermLength(),"
            " FrameDescriptor.computeMaxMessageLength(),"
            " PublicationParams.validateMtuForMaxMessage()")
    def term_bytes(self) -> int:
        return self.chain.term

    @property
    def term_given(self) -> str:
        return "as given; at least " if self.inputs.term_bytes else ""

    @figure("maximum stall with this term", "ms", group="window", formula="term ÷ 2 ÷ λ",
            source="a publisher gets at most half a term ahead")
    def term_covers_stall_ms(self) -> float:
        return self.chain.term / 2 / self.chain.stream_bytes_per_second * 1e3

    @property
    def windows(self) -> str:
        shared = self.inputs.sharing
        return "initial window" if shared == 1 else f"{shared} initial windows of one socket"

    @figure("SO_RCVBUF", "bytes", group="socket", setting="aeron.socket.so_rcvbuf",
            minimum=lambda s: s.chain.rcvbuf_least,
            formula=lambda s: ("as given" if s.inputs.so_rcvbuf_bytes
                               else f"{SOCKET_HEADROOM} × {s.windows}") + f"; at least {s.windows}",
            source=f"constraint C: {CONFIGURATION}, validateSocketBufferLengths(); twice, for"
            f" stalls: {ARTICLE}")
    def so_rcvbuf_bytes(self) -> int:
        return self.chain.rcvbuf

    @figure("kernel ceiling rmem_max", "bytes", group="socket", setting="net.core.rmem_max",
            minimum=lambda s: s.chain.rcvbuf_least,
            formula="SO_RCVBUF or more; the kernel caps SO_RCVBUF to a smaller value without an"
            " error",
            source="Linux: socket(7), SO_RCVBUF")
    def rmem_max_bytes(self) -> int:
        return self.chain.rcvbuf

    @figure("SO_RCVBUF that the kernel grants", "bytes", group="socket",
            formula=lambda s: f"min(SO_RCVBUF, rmem_max {shown(s.inputs.rmem_max_bytes, 'bytes')})"
            if s.inputs.rmem_max_bytes else "SO_RCVBUF, if rmem_max is no less (it is not known)",
            source="Linux: socket(7), SO_RCVBUF; the driver only warns")
    def so_rcvbuf_real_bytes(self) -> int:
        return self.chain.rcvbuf_real

    @figure("SO_SNDBUF of the sender", "bytes", group="socket", setting="aeron.socket.so_sndbuf",
            minimum=lambda s: s.inputs.mtu_bytes,
            formula=lambda s: "as given; at least the MTU" if s.inputs.so_sndbuf_bytes
            else "initial window, so that one BDP fits; at least the MTU",
            source=f"{CONFIGURATION}, validateSocketBufferLengths(): MTU ≤ SO_SNDBUF")
    def so_sndbuf_bytes(self) -> int:
        return self.chain.sndbuf

    @figure("packet rate, batched", "packets/s", group="packets",
            formula="{messages_per_second:messages/s} of all streams ÷ {messages_per_datagram}"
            " (messages per datagram) × {datagrams_per_message} (datagrams per message)",
            source=f"{ARTICLE}: TPS ÷ messages per datagram")
    def packets_best_per_second(self) -> float:
        return self.framing.packets_best(self.messages_per_second)

    @figure("packet rate, unbatched", "packets/s", group="packets",
            formula="{messages_per_second:messages/s} of all streams × {datagrams_per_message}"
            " (datagrams per message)",
            source=f"{ARTICLE}: TPS × datagrams per message")
    def packets_worst_per_second(self) -> float:
        return self.framing.packets_worst(self.messages_per_second)

    @figure("full datagram", "bytes", group="packets",
            formula="messages per datagram × on-wire bytes, at most the MTU; one lost packet"
            " loses this many bytes",
            source="Aeron: Sender; a larger datagram makes each loss cost more")
    def datagram_bytes(self) -> int:
        full = self.framing.messages_per_datagram * self.framing.message_bytes
        return min(full, self.inputs.mtu_bytes)

    @figure("bandwidth received, batched", "bit/s", group="interface", source=_FRAMES,
            formula="8 × (λ × streams {streams_bytes_per_second:bytes/s} + packet rate, batched ×"
            f" {_HEADERS})")
    def nic_bits_per_second(self) -> float:
        return self.framing.wire_bits(self.messages_per_second, self.packets_best_per_second)

    @figure("bandwidth received, unbatched", "bit/s", group="interface", source=_FRAMES,
            formula="8 × (λ × streams {streams_bytes_per_second:bytes/s} + packet rate, unbatched ×"
            f" {_HEADERS})")
    def nic_worst_bits_per_second(self) -> float:
        return self.framing.wire_bits(self.messages_per_second, self.packets_worst_per_second)

    @figure("bandwidth sent by a host with all streams", "bit/s", group="interface",
            formula=lambda s: f"bandwidth received, batched × {s.copies}"
            + (" (multicast sends one copy)" if s.inputs.transport == "multicast"
               else " (a copy for each receiver)"),
            source="Aeron: unicast and multi-destination-cast send a datagram to each destination")
    def sender_bits_per_second(self) -> float:
        return self.nic_bits_per_second * self.copies

    @figure("bandwidth of the interface", "bit/s", group="interface",
            shown=lambda s: s.host.baseline_bits,
            formula=lambda s: f"{s.host.name}: its baseline (bursts to"
            f" {shown(s.host.burst_bits, 'bit/s')})"
            + ("; to other regions half of it, or 5 Gbit/s with fewer than 32 vCPUs"
               if s.inputs.path == "cross-region" and not s.inputs.nic_bandwidth else ""),
            source=lambda s: "as given" if s.inputs.nic_bandwidth
            else f"EC2 instance type specifications, as of {AS_OF}")
    def nic_baseline_bits_per_second(self) -> float:
        return self.host.baseline_bits

    @figure("receive queues in use", group="interface",
            formula=lambda s: f"min({count(s.flows, 'flow')}, {count(s.host.queues, 'queue')}); a"
            " flow (5-tuple) is hashed to one queue, ring and interrupt, so one stream uses one",
            source=f"{ENA}: queues = min(vCPUs, 8, or 32 where networking is accelerated); RSS")
    def receive_queues(self) -> int:
        return min(self.flows, self.host.queues)

    @figure("maximum stall with a ring of {host.ring_entries}", "ms", group="RX ring",
            formula="{host.ring_entries} entries ÷ {packets_worst_per_second:packets/s}, unbatched,"
            " all in one queue", source=_SURVIVAL)
    def ring_survival_ms(self) -> float:
        return self.ring_ms(self.host.ring_entries, self.packets_worst_per_second)

    @figure("maximum stall with the largest ring, {host.ring_max_entries}", "ms", group="RX ring",
            formula=lambda s: f"{s.host.ring_max_entries} entries"
            f" ({'known' if s.host.ring_max_known else 'assumed; `ethtool -g` shows it'}) ÷"
            f" {shown(s.packets_worst_per_second, 'packets/s')}, unbatched, all in one queue",
            source=_SURVIVAL)
    def ring_max_survival_ms(self) -> float:
        return self.ring_ms(self.host.ring_max_entries, self.packets_worst_per_second)

    @figure("maximum stall with it, batched and over queues",
            "ms", group="RX ring", source=_SURVIVAL,
            formula=lambda s: f"{s.host.ring_max_entries} entries ÷"
            f" {shown(s.packets_queue, 'packets/s')} of the busiest of"
            f" {count(s.receive_queues, 'queue')}")
    def ring_max_survival_batched_ms(self) -> float:
        return self.ring_ms(self.host.ring_max_entries, self.packets_queue)

    @figure("ring entries for the stall", "entries", group="RX ring",
            formula="packet rate, unbatched × stall {inputs.stall_ms:ms}, rounded up to a power of"
            " two, at least 256",
            source=f"{ENA}: rings are powers of two, 256 to 16,384 by instance")
    def ring_needed_entries(self) -> int:
        return entries_for(self.packets_worst_per_second, self.inputs.stall_ms / 1e3)

    @figure("RX ring", "entries", group="RX ring", setting="ethtool -G … rx",
            minimum=lambda s: min(s.ring_needed_entries, s.host.ring_max_entries),
            formula="the maximum of the interface, because a larger ring only costs memory",
            source=f"{ENA}: enlarge the RX ring for spiky vCPU load; {ARTICLE}")
    def ring_entries(self) -> int:
        return self.host.ring_max_entries

    @figure("maximum NAK backoff", "us", group="recovery",
            setting="aeron.nak.multicast.max.backoff",
            shown=lambda s: s.timers.to_group, minimum=lambda s: s.timers.wait_least_us,
            formula="2 × round trip, at least 100 µs; for more than 10 receivers at least"
            " Aeron's default of 10 ms",
            source=f"{ARTICLE}: backoff ≥ 2 × RTT, half the budget of a loss; {CONFIGURATION}")
    def nak_backoff_us(self) -> float:
        return self.timers.wait_us

    @figure("NAK group size", group="recovery", setting="aeron.nak.multicast.group.size",
            shown=lambda s: s.timers.to_group,
            formula="receivers of a stream; Aeron's default is 10",
            source=f"{CONFIGURATION}; Aeron: OptimalMulticastDelayGenerator")
    def nak_group_size(self) -> int:
        return self.timers.group_size

    @figure("NAK delay", "us", group="recovery", setting="aeron.nak.unicast.delay",
            shown=lambda s: not s.timers.to_group,
            formula="Aeron's default: a single receiver reports a gap at once",
            source=CONFIGURATION)
    def nak_unicast_delay_us(self) -> float:
        return self.timers.wait_us

    @figure("NAK retry ratio", group="recovery", setting="aeron.nak.unicast.retry.delay.ratio",
            shown=lambda s: not s.timers.to_group,
            formula="2 × round trip ÷ NAK delay, at least Aeron's default of 100; an earlier NAK"
            " would request data that is already on its way",
            source=f"{CONFIGURATION}: NAK again after delay × ratio")
    def nak_unicast_retry_ratio(self) -> int:
        return self.timers.retry_ratio

    @figure("retransmit linger", "us", group="recovery", setting="aeron.retransmit.unicast.linger",
            formula="3 × (wait before a NAK {timers.wait_us:us} + round trip"
            " {inputs.rtt_us:us}); Aeron's default is 10 ms",
            source=f"{ARTICLE}: linger ≈ 3 × (backoff + RTT); {CONFIGURATION}")
    def retransmit_linger_us(self) -> float:
        return self.timers.linger_us

    @figure("maximum delay after a loss", "us", group="recovery",
            formula="wait before a NAK + round trip; with Aeron's defaults"
            " {timers.lost_once_default_us:us}",
            source=f"Aeron: LossDetector, RetransmitHandler (sends at once); {ARTICLE}")
    def lost_once_us(self) -> float:
        return self.timers.lost_once_us

    @figure("maximum delay if the repair is lost too", "us", group="recovery",
            formula="maximum delay after a loss + linger + one interval between NAKs; with"
            " Aeron's defaults {timers.lost_twice_default_us:us}",
            source="Aeron: RetransmitHandler ignores NAKs within the linger")
    def lost_twice_us(self) -> float:
        return self.timers.lost_twice_us

    @figure("log buffers", "bytes", group="cache",
            formula=lambda s: f"{TERMS} terms × {shown(s.chain.term, 'bytes')} ×"
            f" {count(s.inputs.streams, 'stream')}",
            source="Aeron: LogBufferDescriptor, a log has three terms")
    def logs_bytes(self) -> int:
        return TERMS * self.chain.term * self.inputs.streams

    @figure("windows of all streams", "bytes", group="cache", source="flow control",
            formula="window that the driver uses × streams; a receiver that keeps up touches"
            " only these bytes")
    def in_flight_bytes(self) -> int:
        return self.chain.receiver_window * self.inputs.streams

    @figure("L3 cache that the cores share",
            "bytes", group="cache", shown=lambda s: s.host.l3_bytes,
            formula=lambda s: s.host.name
            + (f", shared by {s.host.l3_cores} cores" if s.host.l3_cores else ""),
            source=lambda s: "as given" if s.inputs.l3_bytes
            else f"data sheet of the processor, as of {AS_OF}")
    def l3_bytes(self) -> int:
        return self.host.l3_bytes

    @figure("log buffers as a share of the L3 cache", "%", group="cache",
            shown=lambda s: s.host.l3_bytes, formula="log buffers ÷ L3 cache",
            source=f"{ARTICLE}: whether the working set fits")
    def l3_share_percent(self) -> float:
        return ceil(1000 * self.logs_bytes / self.host.l3_bytes) / 10
# fmt: on


def size_receive_path(inputs: ReceivePathInputs) -> Sizing:
    framing = frame(inputs.message_bytes, inputs.mtu_bytes)
    messages = inputs.rate * inputs.streams
    return Sizing(
        inputs=inputs,
        framing=framing,
        chain=plan_chain(inputs, framing),
        host=plan_host(inputs, framing.wire_bits(messages, framing.packets_best(messages))),
        timers=plan_timers(inputs),
    )
