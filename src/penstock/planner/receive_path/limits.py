"""Numbers that Aeron's driver and Linux fix, which no plan can move, and words that texts share.

Source: Aeron's `Configuration.java`, `FrameDescriptor.java`, `LogBufferDescriptor.java` and
`PublicationParams.java`; Linux `net/core/sock.c`; IEEE 802.3.
"""

from __future__ import annotations

from typing import Final

from penstock.planner.quantities import format_quantity

FRAME_HEADER_BYTES: Final = 32
FRAME_ALIGNMENT_BYTES: Final = 32
MTU_DEFAULT_BYTES: Final = 1408
MTU_JUMBO_BYTES: Final = 8192
MTU_MAX_BYTES: Final = 65_504
"""The largest payload of a UDP datagram, rounded down to the alignment."""
PATH_MTU_MIN_BYTES: Final = 576
PATH_MTU_ETHERNET_BYTES: Final = 1500
PATH_MTU_VPC_BYTES: Final = 9001
MESSAGE_MAX_BYTES: Final = 16 << 20
TERMS: Final = 3
"""Terms of a log buffer: one is written, one is behind it, one is cleaned."""
TERM_MIN_BYTES: Final = 64 << 10
TERM_MAX_BYTES: Final = 1 << 30
TERM_DEFAULT_BYTES: Final = 16 << 20
MESSAGES_PER_TERM_MIN: Final = 8
"""A message, and a datagram, is at most an eighth of a term."""
WINDOW_DEFAULT_BYTES: Final = 128 << 10
WINDOW_MAX_BYTES: Final = TERM_MAX_BYTES // 2
SOCKET_BUFFER_DEFAULT_BYTES: Final = 128 << 10
SOCKET_BUFFER_MAX_BYTES: Final = (2**31 - 1) // 2
"""Linux doubles what is asked for, in an int."""
RMEM_MAX_DEFAULT_BYTES: Final = 212_992
"""`net.core.rmem_max` of most kernels."""

UDP_HEADER_BYTES: Final = 8
IP_HEADER_BYTES: Final = 20
ETHERNET_BYTES: Final = 14 + 4 + 8 + 12
"""Header, check sequence, preamble, and the gap after a frame."""
ETHERNET_FRAME_BYTES: Final = 14 + 4
DATAGRAM_OVERHEAD_BYTES: Final = UDP_HEADER_BYTES + IP_HEADER_BYTES + ETHERNET_BYTES

RING_MIN_ENTRIES: Final = 256
RING_DEFAULT_ENTRIES: Final = 1024
RING_MAX_ENTRIES: Final = 16_384
RING_ASSUMED_MAX_ENTRIES: Final = 8192
"""Where an interface's own maximum is not known: `ethtool -g` tells it."""
QUEUES_USUAL: Final = 8

NAK_UNICAST_DELAY_US: Final = 1.0
NAK_UNICAST_RETRY_RATIO: Final = 100
NAK_MULTICAST_BACKOFF_US: Final = 10_000.0
NAK_MULTICAST_GROUP: Final = 10
RETRANSMIT_DELAY_US: Final = 0.0
RETRANSMIT_LINGER_US: Final = 10_000.0
BACKOFF_FLOOR_US: Final = 100.0
"""Shorter backoffs are below what timers and threads of a host keep to."""

FLOW_BITS_MAX: Final = 5e9
"""Of one flow between EC2 instances that are not in one cluster placement group."""
FLOW_BITS_PLACED_MAX: Final = 10e9
FLOW_BITS_EXPRESS_MAX: Final = 25e9
CROSS_REGION_BITS_SMALL: Final = 5e9
CROSS_REGION_VCPUS: Final = 32
"""From so many vCPUs on, half the bandwidth goes to other regions; below, 5 Gbit/s."""


CONFIGURATION: Final = "Aeron: Configuration.java"
ENA: Final = "ENA Linux driver best practices"
ARTICLE: Final = "The Four Receive-Path Buffers"


def say(value: float, unit: str) -> str:
    """Return a number in a formula."""
    return format_quantity(value, unit)


def count(number: int, noun: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes, as people read them."""
    return say(number, "bytes")


def bits_of(number: float) -> str:
    """Bits per second, as people read them."""
    return say(number, "bit/s")


def micros(number: float) -> str:
    """Microseconds, as people read them."""
    return say(number, "us")
