"""The figures that count bytes: wire, window, term, socket."""

from __future__ import annotations

from penstock.planner.receive_path.chain import BDP_LEAST, BDP_RECOMMENDED, SOCKET_HEADROOM
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.receive_path.sources import ARTICLE, CONFIGURATION, say
from penstock.planner.results import Figure


def wire_figures(sizing: Sizing) -> tuple[Figure, ...]:
    inputs, framing, chain = sizing.inputs, sizing.framing, sizing.chain
    size = say(inputs.message_bytes, "bytes")
    if framing.datagrams_per_message == 1:
        formula = f"message {size} + frame header 32, rounded up to a multiple of 32"
    else:
        formula = (
            f"message {size} in fragments of MTU − 32 = {framing.payload_max_bytes} bytes, each"
            " with a header of 32, the last rounded up to a multiple of 32"
        )
    return (
        Figure(
            name="message_wire_bytes", label="on-wire bytes of a message", unit="bytes",
            value=framing.message_bytes, formula=formula, group="wire",
            source="Aeron: DataHeaderFlyweight (header of 32), FrameDescriptor (alignment of 32,"
            " computeFragmentedFrameLength())",
        ),
        Figure(
            name="messages_per_datagram", label="messages per datagram, batched", group="wire",
            value=framing.messages_per_datagram,
            formula=f"MTU {inputs.mtu_bytes} ÷ {framing.message_bytes} on-wire bytes, rounded down;"
            " 1 for messages in fragments",
            source="Aeron: Sender sends whole frames up to the MTU",
        ),
        Figure(
            name="datagrams_per_message", label="datagrams per message", group="wire",
            value=framing.datagrams_per_message,
            formula=f"message ÷ (MTU − 32 = {framing.payload_max_bytes}), rounded up",
            source="Aeron: FrameDescriptor, a message over the payload of the MTU is fragmented",
        ),
        Figure(
            name="stream_bytes_per_second", label="bandwidth λ of a stream", unit="bytes/s",
            value=chain.stream_bytes_per_second, group="wire",
            formula=f"{say(inputs.rate, 'messages/s')} × {framing.message_bytes} on-wire bytes",
            source=f"{ARTICLE}: λ = TPS × bytes per message",
        ),
        Figure(
            name="bdp_bytes", label="bandwidth delay product (BDP)", unit="bytes",
            value=chain.bdp_bytes, group="wire",
            formula=f"λ {say(chain.stream_bytes_per_second, 'bytes/s')} × round trip"
            f" {say(inputs.rtt_us, 'us')}",
            source=f"{ARTICLE}: BDP = λ × RTT; {CONFIGURATION} derives its default window so",
        ),
    )  # fmt: skip


def window_figures(sizing: Sizing) -> tuple[Figure, ...]:
    inputs, chain = sizing.inputs, sizing.chain
    planned = (
        f"{BDP_RECOMMENDED} × BDP (at least {BDP_LEAST} × BDP), no less than 128 KiB and the MTU,"
        " rounded up to a power of two; half a term, at most 512 MiB, and given buffers bound it"
    )
    given = "as given; at least: 2 × BDP, 128 KiB and the MTU, rounded up to a power of two"
    return (
        Figure(
            name="initial_window_bytes", label="initial window", unit="bytes", group="window",
            value=chain.window, minimum=chain.window_least,
            setting="aeron.rcv.initial.window.length",
            formula=given if inputs.window_bytes else planned,
            source=f"{ARTICLE}: 2–4 × BDP; constraint B: {CONFIGURATION},"
            " validateInitialWindowLength()",
        ),
        Figure(
            name="receiver_window_bytes", label="window that the driver uses", unit="bytes",
            value=chain.receiver_window, group="window",
            formula=f"min(initial window {say(chain.window, 'bytes')}, term"
            f" {say(chain.term, 'bytes')} ÷ 2)",
            source=f"constraint A: {CONFIGURATION}, receiverWindowLength()",
        ),
        Figure(
            name="window_covers_rtt_us", label="round trip that the window covers", unit="us",
            value=sizing.window_rtt_us, group="window",
            formula="window that the driver uses ÷ λ", source="BDP, solved for the round trip",
        ),
        Figure(
            name="window_bytes_per_second", label="most that the window lets a stream carry",
            unit="bytes/s", value=sizing.window_bytes_per_second, group="window",
            formula=f"window that the driver uses ÷ round trip {say(inputs.rtt_us, 'us')}",
            source="BDP, solved for the bandwidth",
        ),
    )  # fmt: skip


def term_figures(sizing: Sizing) -> tuple[Figure, ...]:
    inputs, chain = sizing.inputs, sizing.chain
    needed = (
        f"the largest of 2 × initial window, 2 × λ × stall {say(inputs.stall_ms, 'ms')},"
        " 8 × message, 8 × MTU and 64 KiB, rounded up to a power of two, at most 1 GiB"
    )
    return (
        Figure(
            name="term_bytes", label="term buffer", unit="bytes", group="window",
            value=chain.term, minimum=chain.term_least, setting="aeron.term.buffer.length",
            formula=f"as given; at least {needed}" if inputs.term_bytes else needed,
            source="constraint A; a publisher gets at most half a term ahead; Aeron:"
            " LogBufferDescriptor.checkTermLength(), FrameDescriptor.computeMaxMessageLength(),"
            " PublicationParams.validateMtuForMaxMessage()",
        ),
        Figure(
            name="term_covers_stall_ms", label="stall that the term covers", unit="ms",
            value=sizing.term_stall_ms, group="window", formula="term ÷ 2 ÷ λ",
            source="a publisher gets at most half a term ahead",
        ),
    )  # fmt: skip


def socket_figures(sizing: Sizing) -> tuple[Figure, ...]:
    inputs, chain = sizing.inputs, sizing.chain
    shared = inputs.sharing
    windows = "initial window" if shared == 1 else f"{shared} initial windows of one socket"
    known = inputs.rmem_max_bytes
    return (
        Figure(
            name="so_rcvbuf_bytes", label="SO_RCVBUF", unit="bytes", group="socket",
            value=chain.rcvbuf, minimum=chain.rcvbuf_least, setting="aeron.socket.so_rcvbuf",
            formula=f"{'as given' if inputs.so_rcvbuf_bytes else f'{SOCKET_HEADROOM} × {windows}'};"
            f" at least {windows}",
            source=f"constraint C: {CONFIGURATION}, validateSocketBufferLengths(); twice, for"
            f" stalls: {ARTICLE}",
        ),
        Figure(
            name="rmem_max_bytes", label="kernel ceiling rmem_max", unit="bytes", group="socket",
            value=chain.rcvbuf, minimum=chain.rcvbuf_least, setting="net.core.rmem_max",
            formula="SO_RCVBUF, or more; a lower one caps it and nothing fails",
            source="Linux: socket(7), SO_RCVBUF",
        ),
        Figure(
            name="so_rcvbuf_real_bytes", label="SO_RCVBUF that the kernel grants", unit="bytes",
            value=chain.rcvbuf_real, group="socket",
            formula=f"min(SO_RCVBUF, rmem_max {say(known, 'bytes')})" if known
            else "SO_RCVBUF, if rmem_max is no less (it is not known)",
            source="Linux: socket(7), SO_RCVBUF; the driver only warns",
        ),
        Figure(
            name="so_sndbuf_bytes", label="SO_SNDBUF of the sender", unit="bytes", group="socket",
            value=chain.sndbuf, minimum=inputs.mtu_bytes, setting="aeron.socket.so_sndbuf",
            formula="as given; at least the MTU" if inputs.so_sndbuf_bytes
            else "initial window, so that one BDP fits; at least the MTU",
            source=f"{CONFIGURATION}, validateSocketBufferLengths(): MTU ≤ SO_SNDBUF",
        ),
    )  # fmt: skip
