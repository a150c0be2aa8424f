"""What to know of window, term and socket buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.planner.receive_path.chain import SOCKET_HEADROOM, A
from penstock.planner.receive_path.limits import RMEM_MAX_DEFAULT_BYTES, TERM_DEFAULT_BYTES
from penstock.planner.receive_path.sizing import Sizing
from penstock.planner.receive_path.sources import micros, say, size
from penstock.planner.results import Finding

CROSS_ZONE_RTT_US: Final = 200.0
"""Round trips between zones are longer; within one, a default window twice as large covers it."""
PACKET_CHARGE_BYTES: Final = 768
"""What Linux charges a socket for a small packet beside its data, about."""


def window_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, inputs = sizing.chain, sizing.inputs
    used, wanted = chain.receiver_window, chain.window
    if used < wanted:
        yield Finding(
            severity="warn",
            subject="window",
            cause=f"{A}: the driver silently uses {size(used)} of the {size(wanted)}",
            cure=f"set aeron.term.buffer.length to {size(chain.term_least)}",
        )
    if used < chain.bdp_bytes:
        yield Finding(
            severity="fail",
            subject="window",
            cause=f"{size(used)} in flight carry"
            f" {say(sizing.window_bytes_per_second, 'bytes/s')} at this round trip,"
            f" of {say(chain.stream_bytes_per_second, 'bytes/s')}",
            cure=f"set aeron.rcv.initial.window.length to {size(chain.window_least)} or more"
            " (and term and SO_RCVBUF with it)",
        )
    elif used < chain.window_least:
        yield Finding(
            severity="warn",
            subject="window",
            cause=f"{size(used)} are below {size(chain.window_least)} (twice the BDP, and no"
            " less than 128 KiB): a late status message stops the sender",
            cure=f"set aeron.rcv.initial.window.length to {size(chain.window_least)} or more",
        )
    if inputs.path == "cross-zone" and inputs.rtt_us <= CROSS_ZONE_RTT_US:
        yield Finding(
            severity="note",
            subject="round trip",
            cause=f"{micros(inputs.rtt_us)} is a round trip within a zone; between"
            " zones it is several times that, and at 10 Gbit/s the window some 2 MB or more",
            cure="measure the round trip (sockperf, ping) and set rtt",
        )


def term_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, inputs = sizing.chain, sizing.inputs
    if sizing.term_stall_ms < inputs.stall_ms:
        yield Finding(
            severity="warn",
            subject="term buffer",
            cause="half a term is written in"
            f" {say(sizing.term_stall_ms, 'ms')}: a stall of"
            f" {say(inputs.stall_ms, 'ms')} holds the publisher up",
            cure=f"set aeron.term.buffer.length to {size(chain.term_least)}",
        )
    if not inputs.term_bytes and chain.term <= TERM_DEFAULT_BYTES:
        yield Finding(
            severity="ok",
            subject="term buffer",
            cause=f"Aeron's default of {size(TERM_DEFAULT_BYTES)} is enough too; a shorter term"
            " keeps the logs in cache, a longer one keeps more to send again",
        )


def socket_findings(sizing: Sizing) -> Iterator[Finding]:
    chain, known = sizing.chain, sizing.inputs.rmem_max_bytes
    raised = f"sysctl -w net.core.rmem_max={chain.rcvbuf} (and keep it in /etc/sysctl.d)"
    if chain.unprotected_bytes:
        capped = chain.rcvbuf_real < chain.rcvbuf
        why = f"net.core.rmem_max of {size(known)} silently caps it" if capped else "it is small"
        yield Finding(
            severity="fail",
            subject="SO_RCVBUF",
            cause=f"{why}: {size(chain.rcvbuf_real)} for {size(chain.in_flight)} that may be"
            " in flight to the socket. The driver starts, at most with a warning, and the kernel"
            f" drops what comes beyond, up to {size(chain.unprotected_bytes)} (RcvbufErrors,"
            " then gaps and NAKs)",
            cure=raised if capped
            else f"set aeron.socket.so_rcvbuf to {size(SOCKET_HEADROOM * chain.rcvbuf_least)}",
        )  # fmt: skip
    elif chain.rcvbuf_real < chain.rcvbuf:
        yield Finding(
            severity="warn",
            subject="rmem_max",
            cause=f"net.core.rmem_max of {size(known)} silently caps SO_RCVBUF of"
            f" {size(chain.rcvbuf)}; the window still fits, the headroom for stalls is lost",
            cure=raised,
        )
    elif not known and chain.rcvbuf > RMEM_MAX_DEFAULT_BYTES:
        yield Finding(
            severity="note",
            subject="rmem_max",
            cause=f"it is not known; most kernels start with {RMEM_MAX_DEFAULT_BYTES:,} bytes,"
            f" which would silently cap SO_RCVBUF of {size(chain.rcvbuf)}",
            cure=raised,
        )
    yield from _charge(sizing)


def _charge(sizing: Sizing) -> Iterator[Finding]:
    """The kernel charges a buffer for its packets too, of which small ones are most."""
    chain = sizing.chain
    datagram = sizing.framing.message_bytes / sizing.framing.datagrams_per_message
    charged = chain.in_flight / datagram * (datagram + PACKET_CHARGE_BYTES)
    if charged > 2 * chain.rcvbuf_real:
        yield Finding(
            severity="note",
            subject="SO_RCVBUF",
            cause="the kernel doubles SO_RCVBUF and charges some"
            f" {PACKET_CHARGE_BYTES} bytes for each packet: a window of messages that travel"
            f" alone is charged {size(charged)} of"
            f" {size(2 * chain.rcvbuf_real)}",
            cure=f"let the sender batch, or set SO_RCVBUF and rmem_max to {size(charged / 2)}",
        )
