"""Inputs of a receive path plan, and the instance families.

Sizes of 0 are planned; given sizes are judged as the driver and the kernel would judge them.
Families are the data of `families.toml`, which names its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import setting
from penstock.planner.receive_path.limits import (
    MESSAGE_MAX_BYTES,
    MTU_DEFAULT_BYTES,
    MTU_MAX_BYTES,
    PATH_MTU_ETHERNET_BYTES,
    PATH_MTU_MIN_BYTES,
    PATH_MTU_VPC_BYTES,
    QUEUES_USUAL,
    RING_ASSUMED_MAX_ENTRIES,
    RING_DEFAULT_ENTRIES,
    RING_MAX_ENTRIES,
    SOCKET_BUFFER_MAX_BYTES,
    TERM_MAX_BYTES,
)
from penstock.planner.tables import read_table

OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a family; bandwidths in Gbit/s."""

    vcpus: int
    baseline_gbit: float
    burst_gbit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Instance family: `l3_bytes` are shared by `l3_cores` cores; `queues_max` per interface."""

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
    message_bytes: int = setting(
        256, name="message-bytes", doc="Length of a message, without any header.", unit="bytes",
        minimum=1, maximum=MESSAGE_MAX_BYTES,
    )  # fmt: skip
    rate: float = setting(
        500_000.0, name="rate", doc="Messages of each stream.", unit="messages/s", minimum=1,
        maximum=1e9,
    )  # fmt: skip
    streams: int = setting(
        1, name="streams", doc="Streams that the host receives.", minimum=1, maximum=10_000
    )
    streams_per_socket: int = setting(
        1, name="streams-per-socket",
        doc="Streams of one endpoint, which share its socket and its flow.", minimum=1,
        maximum=10_000,
    )  # fmt: skip
    rtt_us: float = setting(
        100.0, name="rtt", doc="Round trip between sender and receiver, as measured.", unit="us",
        minimum=1, maximum=10_000_000,
    )  # fmt: skip
    stall_ms: float = setting(
        10.0, name="stall", doc="Longest pause of the receiving vCPU that must not lose packets.",
        unit="ms", minimum=0, maximum=60_000,
    )  # fmt: skip
    transport: str = setting(
        "unicast", name="transport",
        doc="Transport to receivers; mdc sends a copy to each of several destinations.",
        choices=("unicast", "multicast", "mdc"),
    )  # fmt: skip
    receivers: int = setting(
        1, name="receivers", doc="Receivers of each stream (fan-out).", minimum=1, maximum=1_000
    )
    path: str = setting(
        "same-zone", name="path", doc="Path between sender and receiver.",
        choices=("same-zone", "cross-zone", "cross-region"),
    )  # fmt: skip
    path_mtu_bytes: int = setting(
        0, name="path-mtu",
        doc="Largest IP packet of the path; 0: 9001 within a region, 1500 between regions.",
        unit="bytes", minimum=0, maximum=65_535,
    )  # fmt: skip
    mtu_bytes: int = setting(
        MTU_DEFAULT_BYTES, name="mtu",
        doc="Aeron's MTU: largest datagram payload, a multiple of 32.", unit="bytes", minimum=64,
        maximum=MTU_MAX_BYTES,
    )  # fmt: skip
    family: str = setting(
        OTHER, name="family", doc="Instance family of the receiver.", choices=(OTHER, *FAMILIES)
    )
    vcpus: int = setting(
        0, name="vcpus",
        doc="Size of the instance; 0: the smallest whose baseline bandwidth carries the load.",
        minimum=0, maximum=1_024,
    )  # fmt: skip
    nic_bandwidth: float = setting(
        0.0, name="nic-bandwidth",
        doc="Bandwidth of the host that is always there; 0: the family's, else unknown.",
        unit="bit/s", minimum=0, maximum=1e13,
    )  # fmt: skip
    packets_allowed: float = setting(
        0.0, name="packets-allowed",
        doc="Packet rate that the provider allows the instance; 0: unknown.", unit="packets/s",
        minimum=0, maximum=1e10,
    )  # fmt: skip
    ring_entries: int = setting(
        0, name="ring-entries",
        doc="RX ring as it stands, by `ethtool -g`; 0: the family's default, else 1024.",
        unit="entries", minimum=0, maximum=RING_MAX_ENTRIES * 4,
    )  # fmt: skip
    ring_max_entries: int = setting(
        0, name="ring-max", doc="Largest RX ring, by `ethtool -g`; 0: 8192 is assumed.",
        unit="entries", minimum=0, maximum=RING_MAX_ENTRIES * 4,
    )  # fmt: skip
    rx_queues: int = setting(
        0, name="rx-queues", doc="Receive queues, by `ethtool -l`; 0: by family and vCPUs, else 8.",
        minimum=0, maximum=1_024,
    )  # fmt: skip
    l3_bytes: int = setting(
        0, name="l3", doc="L3 cache that the receiving cores share; 0: the family's, else unknown.",
        unit="bytes", minimum=0, maximum=1 << 34,
    )  # fmt: skip
    window_bytes: int = setting(
        0, name="window", doc="aeron.rcv.initial.window.length as it stands; 0: planned.",
        unit="bytes", minimum=0, maximum=TERM_MAX_BYTES,
    )  # fmt: skip
    term_bytes: int = setting(
        0, name="term", doc="aeron.term.buffer.length as it stands; 0: planned.", unit="bytes",
        minimum=0, maximum=1 << 40,
    )  # fmt: skip
    so_rcvbuf_bytes: int = setting(
        0, name="so-rcvbuf", doc="aeron.socket.so_rcvbuf as it stands; 0: planned.", unit="bytes",
        minimum=0, maximum=SOCKET_BUFFER_MAX_BYTES,
    )  # fmt: skip
    so_sndbuf_bytes: int = setting(
        0, name="so-sndbuf", doc="aeron.socket.so_sndbuf as it stands; 0: planned.", unit="bytes",
        minimum=0, maximum=SOCKET_BUFFER_MAX_BYTES,
    )  # fmt: skip
    rmem_max_bytes: int = setting(
        0, name="rmem-max", doc="net.core.rmem_max of the receiver; 0: unknown.", unit="bytes",
        minimum=0, maximum=2**31 - 1,
    )  # fmt: skip
    device: str = setting(
        "eth0", name="device", doc="Network interface that the ethtool lines name."
    )

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise InvalidSetting(
                "device", self.device, "must be the name of a network interface, as eth0"
            )
        if 0 < self.path_mtu_bytes < PATH_MTU_MIN_BYTES:
            raise InvalidSetting(
                "path-mtu",
                self.path_mtu_bytes,
                f"must be at least {PATH_MTU_MIN_BYTES}, which every IPv4 path carries; 0: unknown",
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
        """Whether receivers share loss reports, so that they wait before they send one."""
        return self.transport in GROUP_TRANSPORTS
