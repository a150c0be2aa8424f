"""Constants of Aeron's driver and Linux, and functions for shared texts.

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
"""Largest payload of a UDP datagram, rounded down to the alignment."""
PATH_MTU_MIN_BYTES: Final = 576
PATH_MTU_ETHERNET_BYTES: Final = 1500
PATH_MTU_VPC_BYTES: Final = 9001
MESSAGE_MAX_BYTES: Final = 16 << 20
TERMS: Final = 3
"""Terms of a log buffer: the current, the previous, and one that is cleaned."""
TERM_MIN_BYTES: Final = 64 << 10
TERM_MAX_BYTES: Final = 1 << 30
TERM_DEFAULT_BYTES: Final = 16 << 20
MESSAGES_PER_TERM_MIN: Final = 8
"""Ratio of a term to the longest message or datagram."""
WINDOW_DEFAULT_BYTES: Final = 128 << 10
WINDOW_MAX_BYTES: Final = TERM_MAX_BYTES // 2
SOCKET_BUFFER_DEFAULT_BYTES: Final = 128 << 10
SOCKET_BUFFER_MAX_BYTES: Final = (2**31 - 1) // 2
"""Largest request, since Linux doubles it in an int."""
RMEM_MAX_DEFAULT_BYTES: Final = 212_992
"""Usual `net.core.rmem_max`."""

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
"""Assumed maximum of an interface; `ethtool -g` shows the real one."""
QUEUES_USUAL: Final = 8

NAK_UNICAST_DELAY_US: Final = 1.0
NAK_UNICAST_RETRY_RATIO: Final = 100
NAK_MULTICAST_BACKOFF_US: Final = 10_000.0
NAK_MULTICAST_GROUP: Final = 10
RETRANSMIT_DELAY_US: Final = 0.0
RETRANSMIT_LINGER_US: Final = 10_000.0
BACKOFF_FLOOR_US: Final = 100.0
"""Shortest backoff that timers and threads of a host can keep."""

FLOW_BITS_MAX: Final = 5e9
"""Limit of one flow between EC2 instances outside of a cluster placement group."""
FLOW_BITS_PLACED_MAX: Final = 10e9
FLOW_BITS_EXPRESS_MAX: Final = 25e9
CROSS_REGION_BITS_SMALL: Final = 5e9
CROSS_REGION_VCPUS: Final = 32
"""vCPUs from which half the bandwidth is available to other regions; below, 5 Gbit/s."""


CONFIGURATION: Final = "Aeron: Configuration.java"
ENA: Final = "ENA Linux driver best practices"
ARTICLE: Final = "The Four Receive-Path Buffers"


def shown(value: float, unit: str) -> str:
    return format_quantity(value, unit)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    return shown(number, "bytes")


def bits_of(number: float) -> str:
    return shown(number, "bit/s")


def micros(number: float) -> str:
    return shown(number, "us")
