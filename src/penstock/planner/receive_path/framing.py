"""What a message is on the wire: frames, fragments, datagrams, packets per second.

    frame:     | header 32 | payload | padding to 32 |
    datagram:  | frame | frame | … |        up to the MTU, when the sender finds several ready
    message over MTU − 32:  full frames of the MTU, then one frame with the rest

Source: Aeron's `FrameDescriptor.computeFragmentedFrameLength`, and its `Sender`, which sends as
many whole frames as fit into the MTU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from penstock.planner.receive_path.limits import (
    DATAGRAM_OVERHEAD_BYTES,
    FRAME_ALIGNMENT_BYTES,
    FRAME_HEADER_BYTES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """One message size at one MTU.

    `message_bytes` is what the message takes in a term; either `messages_per_datagram` or
    `datagrams_per_message` is above 1, or neither.
    """

    payload_max_bytes: int
    message_bytes: int
    messages_per_datagram: int
    datagrams_per_message: int

    def packets_best(self, messages_per_second: float) -> float:
        """Packets per second when every datagram is as full as it can be."""
        return messages_per_second * self.datagrams_per_message / self.messages_per_datagram

    def packets_worst(self, messages_per_second: float) -> float:
        """Packets per second when every message travels alone."""
        return messages_per_second * self.datagrams_per_message

    def wire_bits(self, messages_per_second: float, packets_per_second: float) -> float:
        """Bits per second on the link, headers and gaps of Ethernet, IPv4 and UDP included."""
        in_frames = messages_per_second * self.message_bytes
        return 8 * (in_frames + packets_per_second * DATAGRAM_OVERHEAD_BYTES)


def aligned(length: int) -> int:
    """A length in bytes, rounded up to the alignment of frames."""
    return -(-length // FRAME_ALIGNMENT_BYTES) * FRAME_ALIGNMENT_BYTES


def frame(message_bytes: int, mtu_bytes: int) -> Framing:
    """How messages of a size, in bytes, travel in datagrams of up to `mtu_bytes`."""
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
    """Packets per second that fill a bandwidth with packets of one size, in bytes."""
    return bits_per_second / 8 / packet_bytes
