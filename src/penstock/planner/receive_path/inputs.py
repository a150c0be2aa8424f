"""Inputs of a receive path plan, constants of Aeron and Linux, and the instance families.

A size of 0 is planned. A given size is checked with the rules of the driver and of the kernel.
Instance families come from `families.toml`, which names its source.

Source: Aeron's `Configuration.java`, `FrameDescriptor.java`, `LogBufferDescriptor.java` and
`PublicationParams.java`; Linux `net/core/sock.c`; IEEE 802.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import setting
from penstock.planner.quantities import format_quantity, read_table

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
"""Number of terms of a log buffer: the current one, the previous one, and one that is cleaned."""
TERM_MIN_BYTES: Final = 64 << 10
TERM_MAX_BYTES: Final = 1 << 30
TERM_DEFAULT_BYTES: Final = 16 << 20
MESSAGES_PER_TERM_MIN: Final = 8
"""Minimum ratio of a term's length to the longest message or datagram."""
WINDOW_DEFAULT_BYTES: Final = 128 << 10
WINDOW_MAX_BYTES: Final = TERM_MAX_BYTES // 2
SOCKET_BUFFER_MAX_BYTES: Final = (2**31 - 1) // 2
"""Largest size that can be requested, because Linux doubles it in a 32-bit integer."""
RMEM_MAX_DEFAULT_BYTES: Final = 212_992
"""Usual default of `net.core.rmem_max`."""

UDP_HEADER_BYTES: Final = 8
IP_HEADER_BYTES: Final = 20
ETHERNET_BYTES: Final = 14 + 4 + 8 + 12
"""Bytes per frame on the wire: header, check sequence, preamble, and the gap after the frame."""
DATAGRAM_OVERHEAD_BYTES: Final = UDP_HEADER_BYTES + IP_HEADER_BYTES + ETHERNET_BYTES

RING_MIN_ENTRIES: Final = 256
RING_DEFAULT_ENTRIES: Final = 1024
RING_MAX_ENTRIES: Final = 16_384
RING_ASSUMED_MAX_ENTRIES: Final = 8192
"""Assumed maximum ring size of an interface; `ethtool -g` shows the real one."""
QUEUES_USUAL: Final = 8

NAK_UNICAST_DELAY_US: Final = 1.0
NAK_UNICAST_RETRY_RATIO: Final = 100
NAK_MULTICAST_BACKOFF_US: Final = 10_000.0
NAK_MULTICAST_GROUP: Final = 10
RETRANSMIT_LINGER_US: Final = 10_000.0
BACKOFF_FLOOR_US: Final = 100.0
"""Shortest backoff that the timers and threads of a host can meet."""

FLOW_BITS_MAX: Final = 5e9
"""Bits per second of one flow between EC2 instances that do not share a cluster placement group."""
FLOW_BITS_PLACED_MAX: Final = 10e9
FLOW_BITS_EXPRESS_MAX: Final = 25e9
CROSS_REGION_BITS_SMALL: Final = 5e9
CROSS_REGION_VCPUS: Final = 32
"""Number of vCPUs from which half of the bandwidth is available to other regions.

Smaller instances have 5 Gbit/s to other regions.
"""


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


OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of an instance family; bandwidths are in Gbit/s."""

    vcpus: int
    baseline_gbit: float
    burst_gbit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Instance family of EC2.

    `l3_cores` cores share an L3 cache of `l3_bytes`. `queues_max` is per network interface.
    """

    name: str
    processor: str
    l3_bytes: int
    l3_cores: int
    sizes: tuple[Size, ...]
    queues_max: int = QUEUES_USUAL
    ring_default_entries: int = RING_DEFAULT_ENTRIES
    ring_max_entries: int = RING_ASSUMED_MAX_ENTRIES


def _family(name: str, row: Mapping[str, Any]) -> Family:
    sizes = [
        Size(vcpus=vcpus, baseline_gbit=float(low), burst_gbit=float(high))
        for vcpus, low, high in row["sizes"]
    ]
    return Family(
        name=name,
        processor=row["processor"],
        l3_bytes=int(row["l3_mib"] * (1 << 20)),
        l3_cores=row["l3_cores"],
        sizes=tuple(sizes),
        queues_max=row.get("queues_max", QUEUES_USUAL),
    )


_DATA: Final = read_table(__package__, "families.toml")
AS_OF: Final[str] = _DATA["as_of"]
FAMILIES: Final[Mapping[str, Family]] = {
    name: _family(name, row) for row in _DATA["family"] for name in row["names"]
}


GROUP_TRANSPORTS: Final = ("multicast", "mdc")
_DEVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivePathInputs:
    SEPARATOR: ClassVar = "-"

    message_bytes: int = setting(
        256, "Length of a message, without any header.", 1, MESSAGE_MAX_BYTES, unit="bytes"
    )
    rate: float = setting(500_000.0, "Message rate of each stream.", 1, 1e9, unit="messages/s")
    streams: int = setting(1, "Number of streams that the host receives.", 1, 10_000)
    streams_per_socket: int = setting(
        1, "Number of streams per endpoint. They share one socket and one flow.", 1, 10_000
    )
    rtt_us: float = setting(
        100.0, "Measured round-trip time between sender and receiver.", 1, 10_000_000, name="rtt",
        unit="us",
    )  # fmt: skip
    stall_ms: float = setting(
        10.0, "Longest pause of the receiving vCPU during which no packet may be lost.", 0, 60_000,
        name="stall", unit="ms",
    )  # fmt: skip
    transport: str = setting(
        "unicast", "Transport to the receivers. mdc sends a copy to each of several destinations.",
        choices=("unicast", "multicast", "mdc"),
    )  # fmt: skip
    receivers: int = setting(1, "Number of receivers of each stream (fan-out).", 1, 1_000)
    path: str = setting(
        "same-zone", "Path between sender and receiver.",
        choices=("same-zone", "cross-zone", "cross-region"),
    )  # fmt: skip
    path_mtu_bytes: int = setting(
        0, "Largest IP packet that the path carries. 0 assumes 9001 bytes within a region, 1500"
        " between regions.", 0,
        65_535, name="path-mtu", unit="bytes",
    )  # fmt: skip
    mtu_bytes: int = setting(
        MTU_DEFAULT_BYTES, "MTU of Aeron: the largest payload of a datagram, a multiple of 32.", 64,
        MTU_MAX_BYTES, name="mtu", unit="bytes",
    )  # fmt: skip
    family: str = setting(OTHER, "Instance family of the receiver.", choices=(OTHER, *FAMILIES))
    vcpus: int = setting(
        0, "Number of vCPUs of the instance. 0 takes the smallest size whose baseline bandwidth"
        " carries the load.", 0,
        1_024,
    )  # fmt: skip
    nic_bandwidth: float = setting(
        0.0, "Bandwidth of the host without bursts. 0 takes the baseline of its family, if known.",
        0, 1e13,
        unit="bit/s",
    )  # fmt: skip
    packets_allowed: float = setting(
        0.0, "Packet rate that the cloud provider allows for the instance. 0 means unknown.",
        0, 1e10,
        unit="packets/s",
    )  # fmt: skip
    ring_entries: int = setting(
        0, "Current size of the RX ring, as `ethtool -g` shows it. 0 takes the family's default,"
        " or else 1024.", 0,
        RING_MAX_ENTRIES * 4, unit="entries",
    )  # fmt: skip
    ring_max_entries: int = setting(
        0, "Maximum size of the RX ring, as `ethtool -g` shows it. 0 assumes 8192.",
        0, RING_MAX_ENTRIES * 4,
        name="ring-max", unit="entries",
    )  # fmt: skip
    rx_queues: int = setting(
        0,
        "Number of receive queues, as `ethtool -l` shows it. 0 takes it from family and"
        " vCPUs, or else 8.",
        0,
        1_024,
    )
    l3_bytes: int = setting(
        0, "Size of the L3 cache that the receiving cores share. 0 takes the family's, if known.",
        0, 1 << 34,
        name="l3", unit="bytes",
    )  # fmt: skip
    window_bytes: int = setting(
        0, "Current aeron.rcv.initial.window.length. 0 plans it.", 0, TERM_MAX_BYTES,
        name="window", unit="bytes",
    )  # fmt: skip
    term_bytes: int = setting(
        0, "Current aeron.term.buffer.length. 0 plans it.", 0, 1 << 40, name="term",
        unit="bytes",
    )  # fmt: skip
    so_rcvbuf_bytes: int = setting(
        0, "Current aeron.socket.so_rcvbuf. 0 plans it.", 0, SOCKET_BUFFER_MAX_BYTES,
        name="so-rcvbuf", unit="bytes",
    )  # fmt: skip
    so_sndbuf_bytes: int = setting(
        0, "Current aeron.socket.so_sndbuf. 0 plans it.", 0, SOCKET_BUFFER_MAX_BYTES,
        name="so-sndbuf", unit="bytes",
    )  # fmt: skip
    rmem_max_bytes: int = setting(
        0, "Current net.core.rmem_max of the receiver. 0 means unknown.",
        0, 2**31 - 1, name="rmem-max",
        unit="bytes",
    )  # fmt: skip
    device: str = setting("eth0", "Name of the network interface in the ethtool commands.")

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise InvalidSetting(
                "device", self.device, "must be the name of a network interface, such as eth0"
            )
        if 0 < self.path_mtu_bytes < PATH_MTU_MIN_BYTES:
            raise InvalidSetting(
                "path-mtu",
                self.path_mtu_bytes,
                f"must be at least {PATH_MTU_MIN_BYTES}, which every IPv4 path carries, or"
                " 0 for unknown",
            )

    @property
    def path_packet_bytes(self) -> int:
        far = self.path == "cross-region"
        return self.path_mtu_bytes or (PATH_MTU_ETHERNET_BYTES if far else PATH_MTU_VPC_BYTES)

    @property
    def sharing(self) -> int:
        return min(self.streams_per_socket, self.streams)

    @property
    def to_group(self) -> bool:
        """Whether receivers form a group; they then wait before they report a loss."""
        return self.transport in GROUP_TRANSPORTS
