"""Facts of a host as plain values, which the caller reads.

`None` is a fact that could not be read; `HostFacts.unread` has the reason, by the fact's name. A
limit that is not set is `UNLIMITED`. Nothing is guessed: a check of an unknown fact reports it.

Source: proc(5), sysfs, cgroups(7), ethtool(8), adjtimex(2), socket(7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

UNLIMITED: Final = 2**63 - 1
"""Value of a limit that is not set."""

SocketKind = Literal["udp", "tcp", "unix"]
BufferOption = Literal["SO_RCVBUF", "SO_SNDBUF"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Network interface of incoming packets.

    `drops` are the kernel's and the driver's counters of lost packets since the interface came
    up, by their names; `allowances` the driver's counters of packets that the instance's
    allowance delayed. None: neither could be read.
    """

    name: str
    mtu_bytes: int | None = None
    speed_bits: int | None = None
    rx_ring: int | None = None
    rx_ring_max: int | None = None
    queues: int | None = None
    queues_max: int | None = None
    drops: Mapping[str, int] | None = None
    allowances: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Softirq:
    """`/proc/net/softnet_stat` over all CPUs: packets handled, dropped, and turns cut short."""

    processed: int
    dropped: int
    squeezed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Datagrams:
    """The `Udp` row of `/proc/net/snmp`."""

    received: int
    buffer_errors: int
    memory_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """Limits of a process's control group: the tightest of it and its ancestors."""

    version: str = ""
    memory_max_bytes: int | None = None
    memory_used_bytes: int | None = None
    kills: int | None = None
    quota_us: int | None = None
    period_us: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_us: int | None = None
    tasks_max: int | None = None
    tasks: int | None = None
    io_limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    files: int | None = None
    files_hard: int | None = None
    locked_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """CPUs available to the process, their last cache, and time stolen by the hypervisor."""

    count: int | None = None
    cache_bytes: int | None = None
    cache_shared_by: int | None = None
    steal_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """`/proc/meminfo`, and the kernel's huge page mode."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swap_used_bytes: int | None = None
    huge_pages: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """File system of the data directory, and its latency of a 4 KiB sync."""

    directory: str
    measured_in: str = ""
    """Nearest existing parent if the directory is missing; empty means the directory itself."""
    file_system: str | None = None
    mount_point: str | None = None
    options: tuple[str, ...] = ()
    free_bytes: int | None = None
    free_inodes: int | None = None
    syncs: int = 0
    sync_p50_ms: float | None = None
    sync_p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    source: str | None = None
    synchronised: bool | None = None
    offset_ms: float | None = None
    error_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Response of the kernel to a request for a socket buffer.

    `reported_bytes` is twice the granted size, since the kernel includes its own bookkeeping.
    """

    kind: SocketKind
    option: BufferOption
    asked_bytes: int
    reported_bytes: int

    @property
    def granted_bytes(self) -> int:
        """Granted bytes, in the units of the request."""
        return self.reported_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts that the check uses.

    `sysctls` has the numbers of each kernel setting by its dotted name: most have one, others
    (`net.ipv4.tcp_rmem`) three.
    """

    kernel: str | None = None
    page_bytes: int = 4096
    sysctls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    interface: Interface | None = None
    softirq: Softirq | None = None
    datagrams: Datagrams | None = None
    group: ControlGroup = field(default_factory=ControlGroup)
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    processors: Processors = field(default_factory=Processors)
    memory: Memory = field(default_factory=Memory)
    disk: Disk | None = None
    socket_file_system: str | None = None
    clock: ClockState = field(default_factory=ClockState)
    grants: tuple[Grant, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    def sysctl(self, name: str, place: int = -1) -> int | None:
        """Return one number of a kernel setting: the last, which is the largest of three."""
        numbers = self.sysctls.get(name)
        return numbers[place] if numbers else None

    def grant(self, kind: SocketKind, option: BufferOption, asked_bytes: int) -> Grant | None:
        """Return the grant for exactly this request, if it was tried."""
        for grant in self.grants:
            if (grant.kind, grant.option, grant.asked_bytes) == (kind, option, asked_bytes):
                return grant
        return None

    def why(self, *names: str) -> str:
        """Return why a fact is unknown: the first reason for these names."""
        for name in names:
            if name in self.unread:
                return self.unread[name]
        return "this host does not report it"
