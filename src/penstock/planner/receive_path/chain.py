"""Calculations of a receive path: the chain of buffers, the receiver's hardware, loss timers.

    frame:     | header 32 | payload | padding to 32 |
    datagram:  | frame | frame | … |        up to the MTU, when the sender finds several ready
    message over MTU − 32:  full frames of the MTU, then one frame with the rest

    rmem_max ≥ SO_RCVBUF ≥ initial window ≥ MTU        C, B: the driver refuses to start otherwise
    window of a receiver = min(initial window, term ÷ 2)   A: the driver caps it without an error
    real SO_RCVBUF = min(SO_RCVBUF, rmem_max)          the kernel caps it, the driver only warns

The window is planned first. It is the number of bytes in flight, so it follows from the bandwidth
delay product. The other buffers are sized from the window. Given sizes are checked with the
driver's rules. Windows and terms are rounded up to a power of two: terms must be powers of two, and
equal rounding keeps the sizes in proportion.

**Hardware.** A ring holds a number of packets. It must hold the packets that arrive while its vCPU
is stalled, so its size is a time: entries ÷ packet rate. Each receive queue has its own ring and
interrupt. A flow (addresses, ports, protocol) is hashed to one queue, so one stream uses one queue.

**Losses.** The timers of loss reports and retransmissions determine the cost of a lost packet.

    lost ── gap seen ── delay or backoff ──> NAK ── round trip ──> retransmitted data
                                              └─ a NAK that comes within the linger is ignored

A unicast receiver reports a gap at once. Receivers of a group wait a random time up to the maximum
backoff, so that few of them report the same gap. The default of 10 ms suits ten or more receivers;
in a small group it only delays repairs. The linger bounds the cost of a lost retransmission.

Source: Aeron's `FrameDescriptor.computeFragmentedFrameLength`, its `Sender`, which sends as many
whole frames as fit into the MTU, `Configuration.java` (`receiverWindowLength`,
`validateInitialWindowLength`, `validateSocketBufferLengths`, `validateMtuLength`, defaults of the
timers), `LogBufferDescriptor.checkTermLength`, `PublicationParams.validateMtuForMaxMessage`,
`OptimalMulticastDelayGenerator`, `RetransmitHandler`; Linux `sock_setsockopt`; ENA Linux driver
best practices; EC2 instance network bandwidth; the article "The Four Receive-Path Buffers" for
backoff, linger and group size of small groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.planner.quantities import format_quantity
from penstock.planner.receive_path.inputs import (
    BACKOFF_FLOOR_US,
    CROSS_REGION_BITS_SMALL,
    CROSS_REGION_VCPUS,
    DATAGRAM_OVERHEAD_BYTES,
    FAMILIES,
    FRAME_ALIGNMENT_BYTES,
    FRAME_HEADER_BYTES,
    MESSAGES_PER_TERM_MIN,
    NAK_MULTICAST_BACKOFF_US,
    NAK_MULTICAST_GROUP,
    NAK_UNICAST_DELAY_US,
    NAK_UNICAST_RETRY_RATIO,
    QUEUES_USUAL,
    RETRANSMIT_LINGER_US,
    RING_ASSUMED_MAX_ENTRIES,
    RING_DEFAULT_ENTRIES,
    RING_MIN_ENTRIES,
    SOCKET_BUFFER_MAX_BYTES,
    TERM_MAX_BYTES,
    TERM_MIN_BYTES,
    WINDOW_DEFAULT_BYTES,
    WINDOW_MAX_BYTES,
    Family,
    ReceivePathInputs,
    Size,
)
from penstock.planner.results import Finding, fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Framing of messages of one size with one MTU.

    `message_bytes` is the length of a message in a term, with headers and padding. At most one of
    `messages_per_datagram` and `datagrams_per_message` is above 1.
    """

    payload_max_bytes: int
    message_bytes: int
    messages_per_datagram: int
    datagrams_per_message: int

    def packets_best(self, messages_per_second: float) -> float:
        """Return packets per second if each datagram holds as many messages as fit."""
        return messages_per_second * self.datagrams_per_message / self.messages_per_datagram

    def packets_worst(self, messages_per_second: float) -> float:
        """Return packets per second if each datagram holds at most one message."""
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
    """Sizes of a stream's buffers, in bytes.

    A field `…_least` is the minimum of the size that is recommended or given. `in_flight` is the
    sum of the windows of all streams of a socket.
    """

    stream_bytes_per_second: float
    bdp_bytes: int
    window_least: int
    window: int
    receiver_window: int
    term_wanted: int
    """Term length that holds the window and the bytes of a stall, even above the longest term."""
    term_least: int
    term: int
    in_flight: int
    rcvbuf_least: int
    rcvbuf: int
    rcvbuf_real: int
    sndbuf: int

    @property
    def unprotected_bytes(self) -> int:
        """Bytes that the windows allow in flight beyond the granted socket buffer."""
        return max(0, self.in_flight - self.rcvbuf_real)


def power_of_two_from(number: float) -> int:
    """Return the smallest power of two that is not below a number.

    The number is first rounded to thousandths, so that an inexact float does not double the result.
    """
    return 1 << max(0, ceil(round(number, 3)) - 1).bit_length()


def bandwidth_delay(bytes_per_second: float, rtt_us: float) -> int:
    """Return the bandwidth delay product: the bytes in flight that keep a path busy, rounded up."""
    return ceil(round(bytes_per_second * rtt_us / 1e6, 3))


def window_of(bdp_bytes: int, mtu_bytes: int, multiple: int) -> int:
    """Return a window of `multiple` BDPs, at least the driver's default and the MTU."""
    return power_of_two_from(max(multiple * bdp_bytes, WINDOW_DEFAULT_BYTES, mtu_bytes))


def receiver_window(initial_window: int, term: int) -> int:
    return min(initial_window, term // 2)


def term_for(window: int, stall_bytes: float, message_bytes: int, mtu_bytes: int) -> int:
    """Return the term length that holds a window, the bytes of a stall, and a message.

    `stall_bytes` is bandwidth × stall. A term must hold twice that, because a publisher gets at
    most half a term ahead. The result may exceed the longest term.
    """
    longest = max(message_bytes, mtu_bytes)
    least = max(2 * window, 2 * stall_bytes, MESSAGES_PER_TERM_MIN * longest, TERM_MIN_BYTES)
    return power_of_two_from(least)


def real_rcvbuf(so_rcvbuf: int, rmem_max: int) -> int:
    """Return the socket buffer that the kernel grants; with `rmem_max` 0 (unknown), the requested
    one.
    """
    return min(so_rcvbuf, rmem_max) if rmem_max else so_rcvbuf


def plan_chain(inputs: ReceivePathInputs, framing: Framing) -> Chain:
    """Return the buffer sizes: given sizes as they are, other sizes planned.

    If no size is large enough, the largest possible is taken. `broken_constraints` checks given
    sizes.
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
    """Return the window to use if the inputs give none.

    It fits into a given term and socket buffer, unless they are too small for `least`.
    """
    target = min(window_of(bdp, inputs.mtu_bytes, BDP_RECOMMENDED), WINDOW_MAX_BYTES)
    bounds = [target]
    if inputs.term_bytes:
        bounds.append(inputs.term_bytes // 2)
    if inputs.so_rcvbuf_bytes:
        bounds.append(inputs.so_rcvbuf_bytes)
    room = 1 << max(0, min(bounds).bit_length() - 1)
    return min(max(room, least), WINDOW_MAX_BYTES)


def broken_constraints(inputs: ReceivePathInputs, chain: Chain) -> Iterator[Finding]:
    """Yield findings for broken constraints: the driver does not start, or no size meets them."""
    yield from _broken_mtu(inputs.mtu_bytes)
    yield from _broken_term(inputs)
    yield from _broken_lengths(inputs, chain)
    yield from _broken_window(inputs, chain.window)


def _broken_lengths(inputs: ReceivePathInputs, chain: Chain) -> Iterator[Finding]:
    if not inputs.window_bytes and chain.window_least > WINDOW_MAX_BYTES:
        yield fail(
            A,
            f"a BDP of {_size(chain.bdp_bytes)} needs a window of"
            f" {_size(chain.window_least)} (twice the BDP), and that a term above"
            f" {_size(TERM_MAX_BYTES)}",
            "split the stream, lower rate or message-bytes, or use a path with a shorter rtt",
        )
    elif chain.term_wanted > TERM_MAX_BYTES:
        yield _no_term(inputs, chain)
    if chain.rcvbuf_least > SOCKET_BUFFER_MAX_BYTES:
        yield fail(
            "SO_RCVBUF",
            f"{inputs.sharing} windows of {_size(chain.window)} share a socket, but its"
            f" buffer is at most {_size(SOCKET_BUFFER_MAX_BYTES)}",
            "lower streams-per-socket, so that streams have their own endpoints",
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
        f"a stall of {format_quantity(inputs.stall_ms, 'ms')} with"
        f" {_size(ceil(stall_bytes))} of data needs a term above {_size(TERM_MAX_BYTES)}",
        f"set stall to at most {format_quantity(most_ms, 'ms')}, or split the stream",
    )


def _broken_mtu(mtu: int) -> Iterator[Finding]:
    if mtu % FRAME_ALIGNMENT_BYTES:
        below = mtu // FRAME_ALIGNMENT_BYTES * FRAME_ALIGNMENT_BYTES
        yield fail(
            "Frame alignment (MTU is a multiple of 32)",
            f"an MTU of {mtu} is not a multiple of 32, so the driver refuses to start",
            f"set mtu to {below}" + ("" if below == 1408 else ", or to 1408 or 8192"),
        )


def _broken_term(inputs: ReceivePathInputs) -> Iterator[Finding]:
    term = inputs.term_bytes
    if not term:
        return
    if not TERM_MIN_BYTES <= term <= TERM_MAX_BYTES or term & (term - 1):
        yield fail(
            "Term length (a power of two from 64 KiB to 1 GiB)",
            f"a term of {_size(term)} is not allowed, so the driver refuses it",
            "set term to "
            + _size(min(max(power_of_two_from(term), TERM_MIN_BYTES), TERM_MAX_BYTES)),
        )
    longest, name = max((inputs.mtu_bytes, "an MTU"), (inputs.message_bytes, "a message"))
    if longest * MESSAGES_PER_TERM_MIN > term:
        yield fail(
            "Largest message (term ÷ 8)",
            f"{name} of {_size(longest)} exceeds an eighth of a term of {_size(term)}",
            f"set term to {_size(power_of_two_from(longest * MESSAGES_PER_TERM_MIN))}",
        )


def _broken_window(inputs: ReceivePathInputs, window: int) -> Iterator[Finding]:
    mtu, rcvbuf, sndbuf = inputs.mtu_bytes, inputs.so_rcvbuf_bytes, inputs.so_sndbuf_bytes
    if window < mtu:
        yield fail(
            B,
            f"a window of {_size(window)} is below the MTU of {_size(mtu)}, so the driver"
            " refuses to start",
            f"set aeron.rcv.initial.window.length to {_size(power_of_two_from(mtu))} or more",
        )
    if rcvbuf and rcvbuf < window:
        yield fail(
            C,
            f"SO_RCVBUF of {_size(rcvbuf)} is below the window of {_size(window)}, so the"
            " driver refuses to start",
            f"set aeron.socket.so_rcvbuf to {_size(SOCKET_HEADROOM * window)} (at least"
            f" {_size(window)}), and net.core.rmem_max to at least as much",
        )
    if sndbuf and sndbuf < mtu:
        yield fail(
            "SO_SNDBUF ≥ MTU",
            f"SO_SNDBUF of {_size(sndbuf)} is below the MTU of {_size(mtu)}, so the driver"
            " refuses to start",
            f"set aeron.socket.so_sndbuf to {_size(max(window, mtu))}",
        )


def _size(number: int) -> str:
    return format_quantity(number, "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Known or assumed hardware of the receiver; 0 in bits or bytes means unknown."""

    name: str
    vcpus: int
    baseline_bits: float
    burst_bits: float
    queues: int
    ring_entries: int
    ring_max_entries: int
    ring_max_known: bool
    l3_bytes: int
    l3_cores: int


def survival_s(entries: int, packets_per_second: float) -> float:
    """Return the seconds after which a ring of `entries` is full if nothing reads from it."""
    return entries / packets_per_second


def entries_for(packets_per_second: float, stall_s: float) -> int:
    """Return the number of ring entries, a power of two, that holds the packets of a stall."""
    return max(RING_MIN_ENTRIES, power_of_two_from(packets_per_second * stall_s))


def plan_host(inputs: ReceivePathInputs, load_bits: float) -> Host:
    """Return the receiver's hardware: given inputs, else data of its family, else assumptions.

    `load_bits` is the load in bit/s, for which the smallest sufficient instance size is chosen.
    """
    family = FAMILIES.get(inputs.family)
    size = None if family is None else _size_of(family, inputs, load_bits)
    given = inputs.nic_bandwidth
    known_queues = QUEUES_USUAL
    if family is not None and size is not None:
        known_queues = min(family.queues_max, size.vcpus)
    ring_max = inputs.ring_max_entries or (
        RING_ASSUMED_MAX_ENTRIES if family is None else family.ring_max_entries
    )
    default = RING_DEFAULT_ENTRIES if family is None else family.ring_default_entries
    return Host(
        name=_name(family, size),
        vcpus=0 if size is None else size.vcpus,
        baseline_bits=given or (0.0 if size is None else _reach(size, size.baseline_gbit, inputs)),
        burst_bits=given or (0.0 if size is None else _reach(size, size.burst_gbit, inputs)),
        queues=inputs.rx_queues or known_queues,
        ring_entries=inputs.ring_entries or default,
        ring_max_entries=max(ring_max, inputs.ring_entries),
        ring_max_known=inputs.ring_max_entries > 0,
        l3_bytes=inputs.l3_bytes or (0 if family is None else family.l3_bytes),
        l3_cores=0 if family is None else family.l3_cores,
    )


def _size_of(family: Family, inputs: ReceivePathInputs, load_bits: float) -> Size:
    for size in family.sizes:
        if size.vcpus == inputs.vcpus:
            return size
    for size in family.sizes:
        if _reach(size, size.baseline_gbit, inputs) >= load_bits:
            return size
    return family.sizes[-1]


def _reach(size: Size, gbit: float, inputs: ReceivePathInputs) -> float:
    """Return the bandwidth of an instance size on this path, in bit/s.

    To other regions it is half of the bandwidth, or at most 5 Gbit/s with fewer than 32 vCPUs.
    """
    bits = gbit * 1e9
    if inputs.path != "cross-region":
        return bits
    return bits / 2 if size.vcpus >= CROSS_REGION_VCPUS else min(bits, CROSS_REGION_BITS_SMALL)


def _name(family: Family | None, size: Size | None) -> str:
    if family is None or size is None:
        return "this host"
    return f"{family.name} with {size.vcpus} vCPUs ({family.processor})"


def broken_host(inputs: ReceivePathInputs, host: Host, load_bits: float) -> Iterator[Finding]:
    family = FAMILIES.get(inputs.family)
    if family is not None and inputs.vcpus and host.vcpus != inputs.vcpus:
        sizes = ", ".join([str(size.vcpus) for size in family.sizes])
        yield fail(
            "Instance size",
            f"{family.name} has no size with {inputs.vcpus} vCPUs; the plan uses"
            f" {host.vcpus} vCPUs",
            f"set vcpus to one of {sizes}, or to 0",
        )
    if host.burst_bits and load_bits > host.burst_bits:
        yield fail(
            "Bandwidth of the network interface",
            f"the load of {format_quantity(load_bits, 'bit/s')} with all headers exceeds"
            f" the {format_quantity(host.burst_bits, 'bit/s')} of {host.name}",
            "lower rate, message-bytes or streams, use a larger instance or another"
            " family, or spread streams over hosts",
        )


BACKOFF_ROUND_TRIPS: Final = 2
LINGER_TIMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers in microseconds, and the longest delays after a loss.

    `lost_once_us` and `lost_twice_us` are the delays with these timers, `…_default_us` those with
    Aeron's defaults.
    """

    to_group: bool
    wait_us: float
    wait_least_us: float
    retry_ratio: int
    linger_us: float
    group_size: int
    lost_once_us: float
    lost_twice_us: float
    lost_once_default_us: float
    lost_twice_default_us: float


def backoff_us(rtt_us: float, receivers: int) -> float:
    """Return the maximum backoff in microseconds.

    It is two round trips for a small group; for a larger group it is at least Aeron's default.
    """
    trips = BACKOFF_ROUND_TRIPS * rtt_us
    if receivers <= NAK_MULTICAST_GROUP:
        return max(trips, BACKOFF_FLOOR_US)
    return max(trips, NAK_MULTICAST_BACKOFF_US)


def linger_us(wait_us: float, rtt_us: float) -> float:
    """Return the linger: how long a sender ignores NAKs for data that it has just sent again.

    The result is in microseconds. `wait_us` is a receiver's wait before a NAK.
    """
    return LINGER_TIMES * (wait_us + rtt_us)


def lost_once_us(wait_us: float, rtt_us: float) -> float:
    """Return the longest delay of data that is lost once, in microseconds.

    It is the wait before the NAK, and a round trip for NAK and retransmission.
    """
    return wait_us + rtt_us


def lost_twice_us(wait_us: float, retry_us: float, rtt_us: float, linger: float) -> float:
    """Return the longest delay, in microseconds, if the first retransmission is lost too.

    The sender accepts NAKs again after the linger, and the receiver repeats its NAK within one
    retry interval after that.
    """
    return lost_once_us(wait_us, rtt_us) + linger + retry_us


def plan_timers(inputs: ReceivePathInputs) -> Timers:
    rtt = inputs.rtt_us
    if inputs.to_group:
        wait = backoff_us(rtt, inputs.receivers)
        ratio, retry, retry_default = NAK_UNICAST_RETRY_RATIO, wait, NAK_MULTICAST_BACKOFF_US
        wait_default = NAK_MULTICAST_BACKOFF_US
    else:
        wait = wait_default = NAK_UNICAST_DELAY_US
        trips = BACKOFF_ROUND_TRIPS * rtt
        ratio = max(NAK_UNICAST_RETRY_RATIO, ceil(round(trips / NAK_UNICAST_DELAY_US, 3)))
        retry = NAK_UNICAST_DELAY_US * ratio
        retry_default = NAK_UNICAST_DELAY_US * NAK_UNICAST_RETRY_RATIO
    linger = linger_us(wait, rtt)
    return Timers(
        to_group=inputs.to_group,
        wait_us=wait,
        wait_least_us=BACKOFF_ROUND_TRIPS * rtt if inputs.to_group else wait,
        retry_ratio=ratio,
        linger_us=linger,
        group_size=inputs.receivers,
        lost_once_us=lost_once_us(wait, rtt),
        lost_twice_us=lost_twice_us(wait, retry, rtt, linger),
        lost_once_default_us=lost_once_us(wait_default, rtt),
        lost_twice_default_us=lost_twice_us(wait_default, retry_default, rtt, RETRANSMIT_LINGER_US),
    )
