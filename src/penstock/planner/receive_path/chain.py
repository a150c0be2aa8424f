"""Framing of messages, and the chain of buffers that counts bytes.

    frame:     | header 32 | payload | padding to 32 |
    datagram:  | frame | frame | … |        up to the MTU, when the sender finds several ready
    message over MTU − 32:  full frames of the MTU, then one frame with the rest

    rmem_max ≥ SO_RCVBUF ≥ initial window ≥ MTU        C, B: the driver refuses to start otherwise
    window of a receiver = min(initial window, term ÷ 2)   A: the driver caps it without an error
    real SO_RCVBUF = min(SO_RCVBUF, rmem_max)          the kernel caps it, the driver only warns

The window is the anchor: it is the number of bytes in flight, so it comes from the bandwidth
delay product; the others are sized after it. Given sizes are judged as the driver would.

Rounding: windows and terms are rounded up to a power of two, which terms must be and which keeps
the three sizes in step.

Source: Aeron's `FrameDescriptor.computeFragmentedFrameLength`, its `Sender`, which sends as many
whole frames as fit into the MTU, `Configuration.java` (`receiverWindowLength`,
`validateInitialWindowLength`, `validateSocketBufferLengths`, `validateMtuLength`),
`LogBufferDescriptor.checkTermLength`, `PublicationParams.validateMtuForMaxMessage`; Linux
`sock_setsockopt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.planner.quantities import format_quantity
from penstock.planner.receive_path.inputs import ReceivePathInputs
from penstock.planner.receive_path.limits import (
    DATAGRAM_OVERHEAD_BYTES,
    FRAME_ALIGNMENT_BYTES,
    FRAME_HEADER_BYTES,
    MESSAGES_PER_TERM_MIN,
    SOCKET_BUFFER_MAX_BYTES,
    TERM_MAX_BYTES,
    TERM_MIN_BYTES,
    WINDOW_DEFAULT_BYTES,
    WINDOW_MAX_BYTES,
)
from penstock.planner.results import Finding, fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Framing of one message size at one MTU.

    `message_bytes` is the message's length in a term; either `messages_per_datagram` or
    `datagrams_per_message` is above 1, or neither.
    """

    payload_max_bytes: int
    message_bytes: int
    messages_per_datagram: int
    datagrams_per_message: int

    def packets_best(self, messages_per_second: float) -> float:
        """Return packets per second when every datagram is as full as possible."""
        return messages_per_second * self.datagrams_per_message / self.messages_per_datagram

    def packets_worst(self, messages_per_second: float) -> float:
        """Return packets per second when every message travels alone."""
        return messages_per_second * self.datagrams_per_message

    def wire_bits(self, messages_per_second: float, packets_per_second: float) -> float:
        """Return bits per second on the link, with headers and gaps of Ethernet, IPv4 and UDP."""
        in_frames = messages_per_second * self.message_bytes
        return 8 * (in_frames + packets_per_second * DATAGRAM_OVERHEAD_BYTES)


def aligned(length: int) -> int:
    return -(-length // FRAME_ALIGNMENT_BYTES) * FRAME_ALIGNMENT_BYTES


def frame(message_bytes: int, mtu_bytes: int) -> Framing:
    payload_max = mtu_bytes - FRAME_HEADER_BYTES
    if message_bytes <= payload_max:
        length = aligned(message_bytes + FRAME_HEADER_BYTES)
        return Framing(
            payload_max_bytes=payload_max,
            message_bytes=length,
            messages_per_datagram=mtu_bytes // length,
            datagrams_per_message=1,
        )
    full, rest = divmod(message_bytes, payload_max)
    last = aligned(rest + FRAME_HEADER_BYTES) if rest else 0
    return Framing(
        payload_max_bytes=payload_max,
        message_bytes=full * mtu_bytes + last,
        messages_per_datagram=1,
        datagrams_per_message=ceil(message_bytes / payload_max),
    )


def packets_of(bits_per_second: float, packet_bytes: int) -> float:
    return bits_per_second / 8 / packet_bytes


BDP_LEAST: Final = 2
BDP_RECOMMENDED: Final = 4
SOCKET_HEADROOM: Final = 2
A: Final = "Constraint A (window = min(initial window, term ÷ 2))"
B: Final = "Constraint B (MTU ≤ initial window)"
C: Final = "Constraint C (initial window ≤ SO_RCVBUF)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Sizes in bytes; `…_least` is the minimum where the other is recommended or given.

    `in_flight` is the sum of the windows of all streams of a socket.
    """

    stream_bytes_per_second: float
    bdp_bytes: int
    window_least: int
    window: int
    receiver_window: int
    term_wanted: int
    """Length that holds window and stall, even if no term can be that long."""
    term_least: int
    term: int
    in_flight: int
    rcvbuf_least: int
    rcvbuf: int
    rcvbuf_real: int
    sndbuf: int

    @property
    def unprotected_bytes(self) -> int:
        """Bytes that the windows allow in flight beyond the real socket buffer."""
        return max(0, self.in_flight - self.rcvbuf_real)


def power_of_two_from(number: float) -> int:
    """Return the smallest power of two from a number on; thousandths are rounding."""
    return 1 << max(0, ceil(round(number, 3)) - 1).bit_length()


def bandwidth_delay(bytes_per_second: float, rtt_us: float) -> int:
    """Return bytes in flight that keep a path busy, rounded up."""
    return ceil(round(bytes_per_second * rtt_us / 1e6, 3))


def window_of(bdp_bytes: int, mtu_bytes: int, multiple: int) -> int:
    """Return a window of `multiple` BDPs, at least the driver's default and the MTU."""
    return power_of_two_from(max(multiple * bdp_bytes, WINDOW_DEFAULT_BYTES, mtu_bytes))


def receiver_window(initial_window: int, term: int) -> int:
    return min(initial_window, term // 2)


def term_for(window: int, stall_bytes: float, message_bytes: int, mtu_bytes: int) -> int:
    """Return the term length that holds a window, the bytes of a stall, and a message.

    `stall_bytes` are bandwidth × stall; a publisher gets at most half a term ahead. The result may
    exceed the longest term.
    """
    longest = max(message_bytes, mtu_bytes)
    least = max(2 * window, 2 * stall_bytes, MESSAGES_PER_TERM_MIN * longest, TERM_MIN_BYTES)
    return power_of_two_from(least)


def real_rcvbuf(so_rcvbuf: int, rmem_max: int) -> int:
    """Return the kernel's grant; `rmem_max` 0 is unknown, so that nothing is capped."""
    return min(so_rcvbuf, rmem_max) if rmem_max else so_rcvbuf


def plan_chain(inputs: ReceivePathInputs, framing: Framing) -> Chain:
    """Plan the open sizes; `broken_constraints` judges the given ones.

    If no size suffices, it is the largest possible.
    """
    rate = inputs.rate * framing.message_bytes
    stall_bytes = rate * inputs.stall_ms / 1e3
    bdp = bandwidth_delay(rate, inputs.rtt_us)
    least = window_of(bdp, inputs.mtu_bytes, BDP_LEAST)
    window = inputs.window_bytes or _open_window(inputs, bdp, least)
    term_wanted = term_for(window, stall_bytes, inputs.message_bytes, inputs.mtu_bytes)
    term_least = min(term_wanted, TERM_MAX_BYTES)
    rcvbuf_least = window * inputs.sharing
    rcvbuf = inputs.so_rcvbuf_bytes or min(SOCKET_HEADROOM * rcvbuf_least, SOCKET_BUFFER_MAX_BYTES)
    term = inputs.term_bytes or term_least
    used = receiver_window(window, term)
    return Chain(
        stream_bytes_per_second=rate,
        bdp_bytes=bdp,
        window_least=least,
        window=window,
        receiver_window=used,
        term_wanted=term_wanted,
        term_least=term_least,
        term=term,
        in_flight=used * inputs.sharing,
        rcvbuf_least=rcvbuf_least,
        rcvbuf=rcvbuf,
        rcvbuf_real=real_rcvbuf(rcvbuf, inputs.rmem_max_bytes),
        sndbuf=inputs.so_sndbuf_bytes or max(inputs.mtu_bytes, window),
    )


def _open_window(inputs: ReceivePathInputs, bdp: int, least: int) -> int:
    """Return the recommended window, within given sizes, but never less than `least`."""
    target = min(window_of(bdp, inputs.mtu_bytes, BDP_RECOMMENDED), WINDOW_MAX_BYTES)
    bounds = [target]
    if inputs.term_bytes:
        bounds.append(inputs.term_bytes // 2)
    if inputs.so_rcvbuf_bytes:
        bounds.append(inputs.so_rcvbuf_bytes)
    room = 1 << max(0, min(bounds).bit_length() - 1)
    return min(max(room, least), WINDOW_MAX_BYTES)


def broken_constraints(inputs: ReceivePathInputs, chain: Chain) -> Iterator[Finding]:
    """Yield the constraints that prevent the driver's start, or exceed every size."""
    yield from _broken_mtu(inputs.mtu_bytes)
    yield from _broken_term(inputs)
    yield from _broken_lengths(inputs, chain)
    yield from _broken_window(inputs, chain.window)


def _broken_lengths(inputs: ReceivePathInputs, chain: Chain) -> Iterator[Finding]:
    if not inputs.window_bytes and chain.window_least > WINDOW_MAX_BYTES:
        yield fail(
            A,
            f"twice the BDP of {_size(chain.bdp_bytes)} is a window of {_size(chain.window_least)},"
            f" which needs a term above {_size(TERM_MAX_BYTES)}",
            "split the stream, lower rate or message-bytes, or shorten the path (rtt)",
        )
    elif chain.term_wanted > TERM_MAX_BYTES:
        yield _no_term(inputs, chain)
    if chain.rcvbuf_least > SOCKET_BUFFER_MAX_BYTES:
        yield fail(
            "SO_RCVBUF",
            f"{inputs.sharing} windows of {_size(chain.window)} share a socket, whose buffer"
            f" is at most {_size(SOCKET_BUFFER_MAX_BYTES)}",
            "give streams endpoints of their own (streams-per-socket)",
        )


def _no_term(inputs: ReceivePathInputs, chain: Chain) -> Finding:
    window = chain.window
    stall_bytes = chain.stream_bytes_per_second * inputs.stall_ms / 1e3
    if 2 * window > TERM_MAX_BYTES:
        return fail(
            A,
            f"a window of {_size(window)} needs a term above {_size(TERM_MAX_BYTES)}",
            f"set window to at most {_size(WINDOW_MAX_BYTES)}, or split the stream",
        )
    most_ms = inputs.stall_ms * TERM_MAX_BYTES / 2 / stall_bytes
    return fail(
        "Stall headroom (term ≥ 2 × bandwidth × stall)",
        f"{format_quantity(inputs.stall_ms, 'ms')} of {_size(ceil(stall_bytes))} need a term above"
        f" {_size(TERM_MAX_BYTES)}",
        f"plan for a stall of at most {format_quantity(most_ms, 'ms')}, or split the stream",
    )


def _broken_mtu(mtu: int) -> Iterator[Finding]:
    if mtu % FRAME_ALIGNMENT_BYTES:
        below = mtu // FRAME_ALIGNMENT_BYTES * FRAME_ALIGNMENT_BYTES
        yield fail(
            "Frame alignment (MTU is a multiple of 32)",
            f"an MTU of {mtu} is none, the driver refuses to start",
            f"set mtu to {below}" + ("" if below == 1408 else ", or to 1408 or 8192"),
        )


def _broken_term(inputs: ReceivePathInputs) -> Iterator[Finding]:
    term = inputs.term_bytes
    if not term:
        return
    if not TERM_MIN_BYTES <= term <= TERM_MAX_BYTES or term & (term - 1):
        yield fail(
            "Term length (a power of two from 64 KiB to 1 GiB)",
            f"a term of {_size(term)} is none, the driver refuses it",
            "set term to "
            + _size(min(max(power_of_two_from(term), TERM_MIN_BYTES), TERM_MAX_BYTES)),
        )
    longest, name = max((inputs.mtu_bytes, "an MTU"), (inputs.message_bytes, "a message"))
    if longest * MESSAGES_PER_TERM_MIN > term:
        yield fail(
            "Largest message (term ÷ 8)",
            f"{name} of {_size(longest)} does not fit an eighth of a term of {_size(term)}",
            f"set term to {_size(power_of_two_from(longest * MESSAGES_PER_TERM_MIN))}",
        )


def _broken_window(inputs: ReceivePathInputs, window: int) -> Iterator[Finding]:
    mtu, rcvbuf, sndbuf = inputs.mtu_bytes, inputs.so_rcvbuf_bytes, inputs.so_sndbuf_bytes
    if window < mtu:
        yield fail(
            B,
            f"a window of {_size(window)} is below the MTU of {_size(mtu)}, the driver refuses to"
            " start",
            f"set aeron.rcv.initial.window.length to {_size(power_of_two_from(mtu))} or more",
        )
    if rcvbuf and rcvbuf < window:
        yield fail(
            C,
            f"SO_RCVBUF of {_size(rcvbuf)} is below the window of {_size(window)}, the driver"
            " refuses to start",
            f"set aeron.socket.so_rcvbuf to {_size(SOCKET_HEADROOM * window)} (at least"
            f" {_size(window)}) and net.core.rmem_max to no less",
        )
    if sndbuf and sndbuf < mtu:
        yield fail(
            "SO_SNDBUF ≥ MTU",
            f"SO_SNDBUF of {_size(sndbuf)} is below the MTU of {_size(mtu)}, the driver refuses to"
            " start",
            f"set aeron.socket.so_sndbuf to {_size(max(window, mtu))}",
        )


def _size(number: int) -> str:
    return format_quantity(number, "bytes")
