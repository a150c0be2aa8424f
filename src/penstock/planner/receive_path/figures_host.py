"""The figures that count packets, bits and time: interface, ring, recovery; and the cache."""

from __future__ import annotations

from math import ceil

from penstock.planner.receive_path.families import AS_OF
from penstock.planner.receive_path.limits import DATAGRAM_OVERHEAD_BYTES, TERMS
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.receive_path.sources import ARTICLE, CONFIGURATION, ENA, count, say
from penstock.planner.results import Figure


def packets_figures(sizing: Sizing) -> tuple[Figure, ...]:
    framing, messages = sizing.framing, say(sizing.messages_per_second, "messages/s")
    return (
        Figure(
            name="packets_best_per_second", label="packet rate, batched", unit="packets/s",
            value=sizing.packets_best, group="packets",
            formula=f"{messages} of all streams ÷ {framing.messages_per_datagram} (messages per"
            f" datagram) × {framing.datagrams_per_message} (datagrams per message)",
            source=f"{ARTICLE}: TPS ÷ messages per datagram",
        ),
        Figure(
            name="packets_worst_per_second", label="packet rate, unbatched", unit="packets/s",
            value=sizing.packets_worst, group="packets",
            formula=f"{messages} of all streams × {framing.datagrams_per_message} (datagrams per"
            " message)",
            source=f"{ARTICLE}: TPS × datagrams per message",
        ),
        Figure(
            name="datagram_bytes", label="full datagram", unit="bytes", group="packets",
            value=min(
                framing.messages_per_datagram * framing.message_bytes, sizing.inputs.mtu_bytes
            ),
            formula="messages per datagram × on-wire bytes, at most the MTU; so much is lost and"
            " sent again for one lost packet",
            source="Aeron: Sender; the larger the datagram, the more one loss costs",
        ),
    )  # fmt: skip


def interface_figures(sizing: Sizing) -> tuple[Figure, ...]:
    host, per = sizing.host, f"{DATAGRAM_OVERHEAD_BYTES} bytes (Ethernet 38, IPv4 20, UDP 8)"
    far = ""
    if sizing.inputs.path == "cross-region" and not sizing.inputs.nic_bandwidth:
        far = "; to other regions half of what it has, or 5 Gbit/s with fewer than 32 vCPUs"
    streams = say(sizing.chain.stream_bytes_per_second * sizing.inputs.streams, "bytes/s")
    known = (
        Figure(
            name="nic_baseline_bits_per_second", label="bandwidth of the interface", unit="bit/s",
            value=host.baseline_bits, group="interface",
            formula=f"{host.name}: what is always there (bursts to"
            f" {say(host.burst_bits, 'bit/s')})" + far,
            source="as given" if sizing.inputs.nic_bandwidth
            else f"EC2 instance type specifications, as of {AS_OF}",
        ),
    ) if host.baseline_bits else ()  # fmt: skip
    return (
        Figure(
            name="nic_bits_per_second", label="bandwidth received, batched", unit="bit/s",
            value=sizing.bits_best, group="interface",
            formula=f"8 × (λ × streams {streams} + packet rate, batched × {per})",
            source="RFC 768, RFC 791, IEEE 802.3",
        ),
        Figure(
            name="nic_worst_bits_per_second", label="bandwidth received, unbatched", unit="bit/s",
            value=sizing.bits_worst, group="interface",
            formula=f"8 × (λ × streams {streams} + packet rate, unbatched × {per})",
            source="RFC 768, RFC 791, IEEE 802.3",
        ),
        Figure(
            name="sender_bits_per_second", label="bandwidth sent by a host with all streams",
            unit="bit/s", value=sizing.sender_bits, group="interface",
            formula=f"bandwidth received, batched × {sizing.copies}"
            + (" (multicast sends one copy)" if sizing.inputs.transport == "multicast"
               else " (a copy for each receiver)"),
            source="Aeron: unicast and multi-destination-cast send a datagram to each destination",
        ),
        *known,
        Figure(
            name="receive_queues", label="receive queues in use", group="interface",
            value=sizing.queues,
            formula=f"min({count(sizing.flows, 'flow')}, {count(host.queues, 'queue')}); a flow"
            " (5-tuple) is hashed to one queue, ring and interrupt, so one stream uses one",
            source=f"{ENA}: queues = min(vCPUs, 8, or 32 where networking is accelerated); RSS",
        ),
    )  # fmt: skip


def ring_figures(sizing: Sizing) -> tuple[Figure, ...]:
    host, stall = sizing.host, sizing.inputs.stall_ms
    best, worst = sizing.packets_queue, sizing.packets_worst
    rate = say(worst, "packets/s")
    source = f"{ARTICLE}: stall survival ≈ ring entries ÷ packet rate; {ENA}: 1024 by default"
    found = "known" if host.ring_max_known else "assumed; `ethtool -g` tells it"
    return (
        Figure(
            name="ring_survival_ms", label=f"stall that the ring of {host.ring_entries} survives",
            unit="ms", value=sizing.ring_ms(host.ring_entries, worst), group="RX ring",
            formula=f"{host.ring_entries} entries ÷ {rate}, unbatched, all in one queue",
            source=source,
        ),
        Figure(
            name="ring_max_survival_ms",
            label=f"stall that the largest ring, {host.ring_max_entries}, survives",
            unit="ms", value=sizing.ring_ms(host.ring_max_entries, worst), group="RX ring",
            formula=f"{host.ring_max_entries} entries ({found}) ÷ {rate}, unbatched, all in one"
            " queue",
            source=source,
        ),
        Figure(
            name="ring_max_survival_batched_ms", unit="ms",
            label="the same, batched and spread over queues",
            value=sizing.ring_ms(host.ring_max_entries, best), group="RX ring",
            formula=f"{host.ring_max_entries} entries ÷ {say(best, 'packets/s')} of the busiest"
            f" of {count(sizing.queues, 'queue')}", source=source,
        ),
        Figure(
            name="ring_needed_entries", label="ring entries for the stall", unit="entries",
            value=sizing.ring_needed, group="RX ring",
            formula=f"packet rate, unbatched × stall {say(stall, 'ms')}, rounded up to a power of"
            " two, at least 256",
            source=f"{ENA}: rings are powers of two, 256 to 16,384 by instance",
        ),
        Figure(
            name="ring_entries", label="RX ring", unit="entries", value=host.ring_max_entries,
            minimum=min(sizing.ring_needed, host.ring_max_entries), setting="ethtool -G … rx",
            group="RX ring",
            formula="the largest there is: it costs nothing but memory",
            source=f"{ENA}: enlarge the RX ring for spiky vCPU load; {ARTICLE}",
        ),
    )  # fmt: skip


def recovery_figures(sizing: Sizing) -> tuple[Figure, ...]:
    timers, inputs = sizing.timers, sizing.inputs
    waits = _group_waits(sizing) if timers.to_group else _unicast_waits(sizing)
    return (
        *waits,
        Figure(
            name="retransmit_linger_us", label="retransmit linger", unit="us", group="recovery",
            value=timers.linger_us, setting="aeron.retransmit.unicast.linger",
            formula=f"3 × (wait before a NAK {say(timers.wait_us, 'us')} + round trip"
            f" {say(inputs.rtt_us, 'us')}); the default is 10 ms",
            source=f"{ARTICLE}: linger ≈ 3 × (backoff + RTT); {CONFIGURATION}",
        ),
        Figure(
            name="lost_once_us", label="tail of a loss, at most", unit="us", group="recovery",
            value=timers.lost_once_us,
            formula="wait before a NAK + round trip; with the defaults"
            f" {say(timers.lost_once_default_us, 'us')}",
            source=f"Aeron: LossDetector, RetransmitHandler (sends at once); {ARTICLE}",
        ),
        Figure(
            name="lost_twice_us", label="tail of a loss whose repair is lost, at most", unit="us",
            value=timers.lost_twice_us, group="recovery",
            formula="tail of a loss + linger + one interval between NAKs; with the defaults"
            f" {say(timers.lost_twice_default_us, 'us')}",
            source="Aeron: RetransmitHandler ignores NAKs within the linger",
        ),
    )  # fmt: skip


def _group_waits(sizing: Sizing) -> tuple[Figure, ...]:
    timers = sizing.timers
    return (
        Figure(
            name="nak_backoff_us", label="maximal NAK backoff", unit="us", group="recovery",
            value=timers.wait_us, minimum=timers.wait_least_us,
            setting="aeron.nak.multicast.max.backoff",
            formula="2 × round trip, at least 100 µs; for more than 10 receivers no less than the"
            " default of 10 ms",
            source=f"{ARTICLE}: backoff ≥ 2 × RTT, half the budget of a loss; {CONFIGURATION}",
        ),
        Figure(
            name="nak_group_size", label="NAK group size", group="recovery",
            value=timers.group_size, setting="aeron.nak.multicast.group.size",
            formula="receivers of a stream; the default is 10",
            source=f"{CONFIGURATION}; Aeron: OptimalMulticastDelayGenerator",
        ),
    )  # fmt: skip


def _unicast_waits(sizing: Sizing) -> tuple[Figure, ...]:
    timers = sizing.timers
    return (
        Figure(
            name="nak_unicast_delay_us", label="NAK delay", unit="us", group="recovery",
            value=timers.wait_us, setting="aeron.nak.unicast.delay",
            formula="the default: a lone receiver reports a gap at once", source=CONFIGURATION,
        ),
        Figure(
            name="nak_unicast_retry_ratio", label="NAK retry ratio", group="recovery",
            value=timers.retry_ratio, setting="aeron.nak.unicast.retry.delay.ratio",
            formula="2 × round trip ÷ NAK delay, at least the default of 100: sooner, it asks again"
            " for what is on its way",
            source=f"{CONFIGURATION}: NAK again after delay × ratio",
        ),
    )  # fmt: skip


def cache_figures(sizing: Sizing) -> tuple[Figure, ...]:
    inputs, host = sizing.inputs, sizing.host
    cores = f", shared by {host.l3_cores} cores" if host.l3_cores else ""
    l3 = (
        Figure(
            name="l3_bytes", label="L3 cache of a sharing domain", unit="bytes", group="cache",
            value=host.l3_bytes, formula=f"{host.name}{cores}",
            source="as given" if inputs.l3_bytes
            else f"data sheet of the processor, as of {AS_OF}",
        ),
        Figure(
            name="l3_share_percent", label="share of the L3 cache that the logs take", unit="%",
            value=ceil(1000 * sizing.logs_bytes / host.l3_bytes) / 10, group="cache",
            formula="log buffers ÷ L3 cache", source=f"{ARTICLE}: whether the working set fits",
        ),
    ) if host.l3_bytes else ()  # fmt: skip
    return (
        Figure(
            name="logs_bytes", label="log buffers", unit="bytes", value=sizing.logs_bytes,
            group="cache",
            formula=f"{TERMS} terms × {say(sizing.chain.term, 'bytes')} ×"
            f" {count(inputs.streams, 'stream')}",
            source="Aeron: LogBufferDescriptor, a log has three terms",
        ),
        Figure(
            name="in_flight_bytes", label="windows of all streams", unit="bytes", group="cache",
            value=sizing.in_flight_bytes,
            formula="window that the driver uses × streams: all that receivers touch that keep up",
            source="flow control",
        ),
        *l3,
    )  # fmt: skip
