"""Everything that is computed of one receive path, before it is put in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from penstock.planner.receive_path.chain import Chain, plan_chain
from penstock.planner.receive_path.framing import Framing, frame
from penstock.planner.receive_path.host import Host, entries_for, plan_host, survival_s
from penstock.planner.receive_path.inputs import ReceivePathInputs
from penstock.planner.receive_path.limits import TERMS
from penstock.planner.receive_path.recovery import Timers, plan_timers


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Rates are of the whole host, all streams together; bits are with all headers."""

    inputs: ReceivePathInputs
    framing: Framing
    chain: Chain
    host: Host
    timers: Timers
    messages_per_second: float
    packets_best: float
    packets_worst: float

    @property
    def bits_best(self) -> float:
        return self.framing.wire_bits(self.messages_per_second, self.packets_best)

    @property
    def bits_worst(self) -> float:
        return self.framing.wire_bits(self.messages_per_second, self.packets_worst)

    @property
    def copies(self) -> int:
        """How often a sender sends each datagram."""
        return 1 if self.inputs.transport == "multicast" else self.inputs.receivers

    @property
    def sender_bits(self) -> float:
        """What one host sends that has all the streams."""
        return self.bits_best * self.copies

    @property
    def flows(self) -> int:
        """Distinct 5-tuples, each of which lands in one receive queue."""
        return ceil(self.inputs.streams / self.inputs.sharing)

    @property
    def flow_bits(self) -> float:
        return self.bits_best * self.inputs.sharing / self.inputs.streams

    @property
    def queues(self) -> int:
        """Receive queues that can be busy."""
        return min(self.flows, self.host.queues)

    @property
    def packets_queue(self) -> float:
        """Packet rate of the busiest queue at best: batched, flows spread evenly."""
        return self.packets_best * ceil(self.flows / self.queues) / self.flows

    @property
    def ring_needed(self) -> int:
        """Ring entries for the stall when messages travel alone and share one queue."""
        return entries_for(self.packets_worst, self.inputs.stall_ms / 1e3)

    def ring_ms(self, entries: int, packets_per_second: float) -> float:
        return survival_s(entries, packets_per_second) * 1e3

    @property
    def window_rtt_us(self) -> float:
        """The longest round trip at which the window still carries the rate."""
        return self.chain.receiver_window / self.chain.stream_bytes_per_second * 1e6

    @property
    def window_bytes_per_second(self) -> float:
        """The most that the window lets a stream carry at this round trip."""
        return self.chain.receiver_window / (self.inputs.rtt_us / 1e6)

    @property
    def term_stall_ms(self) -> float:
        """The stall during which a publisher stays within half a term."""
        return self.chain.term / 2 / self.chain.stream_bytes_per_second * 1e3

    @property
    def logs_bytes(self) -> int:
        """Log buffers of all streams."""
        return TERMS * self.chain.term * self.inputs.streams

    @property
    def in_flight_bytes(self) -> int:
        """What receivers that keep up touch: the windows of all streams."""
        return self.chain.receiver_window * self.inputs.streams


def size_receive_path(inputs: ReceivePathInputs) -> Sizing:
    """Compute everything, also where constraints are broken."""
    framing = frame(inputs.message_bytes, inputs.mtu_bytes)
    chain = plan_chain(inputs, framing)
    messages = inputs.rate * inputs.streams
    best = framing.packets_best(messages)
    return Sizing(
        inputs=inputs,
        framing=framing,
        chain=chain,
        host=plan_host(inputs, framing.wire_bits(messages, best)),
        timers=plan_timers(inputs),
        messages_per_second=messages,
        packets_best=best,
        packets_worst=framing.packets_worst(messages),
    )
