"""Facts about a host, which the caller reads, and the requirements for its layers.

**Facts.** `None` means that a fact could not be read. `HostFacts.unread` then has the reason under
the fact's name. `UNLIMITED` means that a limit is not set. An unknown fact is reported and never
guessed.

**Requirements.** An input of 0 takes the requirement from Penstock's own settings. The defaults of
the receive path are Aeron's: a window of 128 KiB, a term of 16 MiB, datagrams of 1408 bytes. Rings
and backlogs must hold stall × packet rate, because a scheduler may keep a receiver off its CPU for
about 10 ms. Descriptors, memory, disk and syncs are computed from the settings themselves. The
broker's settings are passed as `BrokerSide`, because they belong to a higher layer of the code.

Source: proc(5), sysfs, cgroups(7), ethtool(8), adjtimex(2), socket(7); receive-path sizing (Aeron's
constraints A, B and C); Aeron: Configuration.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.diskless.settings import STAGED_PUTS_AT_ONCE_MAX, DisklessSettings
from penstock.host.server.settings import HostSettings
from penstock.host.server.socket_file import BACKLOG
from penstock.objects.settings import DIRECTORY_THREADS, FetchSettings
from penstock.planner.quantities import ImpossiblePlan, format_quantity
from penstock.planner.receive_path.chain import SOCKET_HEADROOM, B, C
from penstock.planner.receive_path.inputs import (
    MTU_DEFAULT_BYTES,
    MTU_MAX_BYTES,
    SOCKET_BUFFER_MAX_BYTES,
    TERM_DEFAULT_BYTES,
    TERM_MAX_BYTES,
    TERM_MIN_BYTES,
    WINDOW_DEFAULT_BYTES,
    WINDOW_MAX_BYTES,
)
from penstock.planner.results import changed_rows
from penstock.storage.files.errors import INDEX_CACHE_BYTES
from penstock.storage.files.settings import StorageSettings

UNLIMITED: Final = 2**63 - 1
"""Value of a limit that is not set."""

SocketKind = Literal["udp", "tcp", "unix"]
BufferOption = Literal["SO_RCVBUF", "SO_SNDBUF"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Network interface that receives the packets.

    `drops` holds the counters of lost packets, of kernel and driver, by name, since the interface
    came up. `allowances` holds the driver's counters of packets that exceeded an allowance of the
    cloud instance. None means that the counters could not be read.
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
    """Counters of `/proc/net/softnet_stat` over all CPUs.

    They count processed packets, dropped packets, and softirq runs that ended before all packets
    were processed.
    """

    processed: int
    dropped: int
    squeezed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Datagrams:
    """Counters of the `Udp` row of `/proc/net/snmp`."""

    received: int
    buffer_errors: int
    memory_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """Limits of a process's control group; each is the lowest of the group and its ancestors."""

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
    """CPUs available to the process, their last-level cache, and time stolen by the hypervisor."""

    count: int | None = None
    cache_bytes: int | None = None
    cache_shared_by: int | None = None
    steal_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory and swap from `/proc/meminfo`, and the kernel's mode of transparent huge pages."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swap_used_bytes: int | None = None
    huge_pages: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """File system of the data directory, and the measured latency of a 4 KiB sync on it."""

    directory: str
    measured_in: str = ""
    """Directory of the measurement if `directory` is missing: its nearest existing parent."""
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
    """Result of a request for a socket buffer.

    `reported_bytes` is twice the granted size, because the kernel includes its own bookkeeping.
    """

    kind: SocketKind
    option: BufferOption
    asked_bytes: int
    reported_bytes: int

    @property
    def granted_bytes(self) -> int:
        """Granted size as requests count it, without the kernel's own bookkeeping."""
        return self.reported_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts about a host that the check uses.

    `sysctls` holds the numbers of each kernel setting under its dotted name. Most settings have one
    number, some have three (`net.ipv4.tcp_rmem`).
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
        """Return one number of a kernel setting, by default the last, which is the maximum of
        three.
        """
        numbers = self.sysctls.get(name)
        return numbers[place] if numbers else None

    def grant(self, kind: SocketKind, option: BufferOption, asked_bytes: int) -> Grant | None:
        """Return the grant for exactly this request; None if the caller did not try it."""
        for grant in self.grants:
            if (grant.kind, grant.option, grant.asked_bytes) == (kind, option, asked_bytes):
                return grant
        return None

    def why(self, *names: str) -> str:
        """Return why a fact is unknown: the first reason recorded under one of `names`."""
        for name in names:
            if name in self.unread:
                return self.unread[name]
        return "this host does not report it"


CHAIN_WORDS: Final = ("receive-path", "broker", "agent")
_OWN_CHAINS: Final = ("broker", "agent")
_RECEIVE_INPUTS: Final = ("window", "term", "mtu", "so-rcvbuf", "stall", "packet-rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHostInputs:
    """Requirements for the layers of a host.

    Raises:
        ImpossiblePlan: the window is smaller than the MTU, or larger than the socket buffer.
    """

    SEPARATOR: ClassVar = "-"

    chains: tuple[str, ...] = setting(
        (), "Chains of layers to check: the receive path of Aeron's datagrams, the broker, the"
        " host agent. Without it the broker and the agent are checked, and the receive path"
        " if one of its inputs is given.", choices=CHAIN_WORDS,
    )  # fmt: skip
    window_bytes: int = setting(
        WINDOW_DEFAULT_BYTES, "Maximum number of bytes that a sender may have in flight.",
        1, WINDOW_MAX_BYTES,
        name="window", unit="bytes",
    )  # fmt: skip
    term_bytes: int = setting(
        TERM_DEFAULT_BYTES, "Length of a term buffer. The window is at most half of it.",
        TERM_MIN_BYTES, TERM_MAX_BYTES, name="term", unit="bytes",
    )  # fmt: skip
    mtu_bytes: int = setting(
        MTU_DEFAULT_BYTES, "Maximum size of a datagram, without the UDP and IP headers.", 32,
        MTU_MAX_BYTES, name="mtu", unit="bytes",
    )  # fmt: skip
    so_rcvbuf_bytes: int = setting(
        0, f"Size of SO_RCVBUF that the receiver requests. 0 is {SOCKET_HEADROOM} windows.", 0,
        SOCKET_BUFFER_MAX_BYTES, name="so-rcvbuf", unit="bytes",
    )  # fmt: skip
    stall_ms: float = setting(
        10.0,
        "Longest time for which the receiver does not run on a CPU.",
        0,
        60_000,
        name="stall",
        unit="ms",
    )
    packets_per_second: float = setting(
        100_000.0, "Maximum rate of incoming packets.", 0, 1e9, name="packet-rate", unit="packets/s"
    )
    connections: int = setting(
        0,
        "Maximum number of Kafka connections at the same time. 0 takes the broker's"
        " max.connections.",
        0,
        INT_MAX,
    )
    producers: int = setting(
        0,
        "Maximum number of connections to the host agent at the same time. 0 takes its"
        " host.connections.max.",
        0,
        65_536,
    )
    sync_ms: float = setting(
        0.0, "Maximum median time of a sync of the data directory. 0 takes it from"
        " log.flush.policy. For `group` it is the time in which a local store collects an"
        " object. For `interval` it is log.flush.interval.ms, for `os`"
        " log.checkpoint.interval.ms.",
        0, 3_600_000, name="sync-latency", unit="ms",
    )  # fmt: skip
    broker_memory_bytes: int = setting(
        0, "Memory that the broker needs. 0 takes the sum of its configured buffers.", 0, LONG_MAX,
        name="broker-memory", unit="bytes",
    )  # fmt: skip
    agent_memory_bytes: int = setting(
        0, "Memory that the host agent needs. 0 takes the sum of its configured buffers.",
        0, LONG_MAX,
        name="agent-memory", unit="bytes",
    )  # fmt: skip
    clock_error_ms: float = setting(
        2_000.0, "Maximum error of the clock, as the time service estimates it.", 0, 86_400_000,
        name="clock-error", unit="ms",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.window_bytes < self.mtu_bytes:
            raise ImpossiblePlan(
                B,
                f"the window of {self.window_bytes} bytes is below the MTU of {self.mtu_bytes}",
                f"give --window {self.mtu_bytes} or more, or a smaller --mtu",
            )
        if self.receive_buffer_bytes < self.window_bytes:
            raise ImpossiblePlan(
                C,
                f"SO_RCVBUF of {self.so_rcvbuf_bytes} bytes is below the window of"
                f" {self.window_bytes}",
                f"give --so-rcvbuf {self.window_bytes} or more, or a smaller --window",
            )

    @property
    def counted(self) -> tuple[str, ...]:
        given = {name for name, *_ in changed_rows(self)}
        asked = ("receive-path",) if given.intersection(_RECEIVE_INPUTS) else ()
        return self.chains or (*asked, *_OWN_CHAINS)

    @property
    def receive_buffer_bytes(self) -> int:
        return self.so_rcvbuf_bytes or SOCKET_HEADROOM * self.window_bytes

    @property
    def stalled_packets(self) -> float:
        return self.packets_per_second * self.stall_ms / 1000


PROCESS_FILES: Final = 64
"""Descriptors of a process for other purposes: libraries, databases, the event loop, the log."""

PROCESS_BYTES: Final = 128 << 20
"""Memory of a process for other purposes: the interpreter, libraries, metadata."""

PROCESS_THREADS: Final = 32
"""Threads of a process besides those of its object store: storage, database, network."""

AGENT_BACKLOG: Final = BACKLOG


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSide:
    max_connections: int
    admin_max_connections: int
    listen_backlog: int
    receive_buffer_bytes: int
    send_buffer_bytes: int
    queued_request_bytes: int
    segment_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    broker: BrokerSide
    storage: StorageSettings = field(default_factory=StorageSettings)
    diskless: DisklessSettings = field(default_factory=DisklessSettings)
    fetching: FetchSettings = field(default_factory=FetchSettings)
    agent: HostSettings = field(default_factory=HostSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    value: int
    formula: str


def _summed(parts: dict[str, int], unit: str = "") -> Need:
    words = [f"{name} {format_quantity(value, unit)}" for name, value in parts.items()]
    return Need(value=sum(parts.values()), formula=" + ".join(words))


def broker_files(configured: Configured, inputs: CheckHostInputs) -> Need:
    return _summed(
        {
            "connections": inputs.connections or configured.broker.max_connections,
            "admin.max.connections": configured.broker.admin_max_connections,
            "open.files.max": configured.storage.open_files_max,
            "journal.files.max": configured.storage.journal_files_max,
            "the process": PROCESS_FILES,
        }
    )


def broker_memory(configured: Configured, inputs: CheckHostInputs) -> Need:
    if inputs.broker_memory_bytes:
        return Need(value=inputs.broker_memory_bytes, formula="broker-memory, as given")
    diskless = configured.diskless
    return _summed(
        {
            "queued.max.request.bytes": configured.broker.queued_request_bytes,
            "pending.bytes.max": configured.storage.pending_bytes_max,
            "tail.cache.bytes": configured.storage.tail_cache_bytes,
            "the index cache": INDEX_CACHE_BYTES,
            "diskless.pending.bytes.max": diskless.pending_bytes_max,
            "diskless.consume.cache.max.bytes": configured.fetching.cache_bytes_max,
            "2 × diskless.consolidation.segment.bytes": 2 * diskless.consolidation_segment_bytes,
            "objects of a sink's commit": (STAGED_PUTS_AT_ONCE_MAX + 1) * diskless.buffer_bytes_max,
            "the process": PROCESS_BYTES,
        },
        "bytes",
    )


def broker_threads() -> Need:
    return _summed({"the object store's": DIRECTORY_THREADS, "the process": PROCESS_THREADS})


def broker_disk(configured: Configured) -> Need:
    storage = configured.storage
    return _summed(
        {
            "journal.files.max × journal.file.bytes": storage.journal_files_max
            * storage.journal_file_bytes,
            "log.segment.bytes": configured.broker.segment_bytes,
        },
        "bytes",
    )


def agent_files(configured: Configured, inputs: CheckHostInputs) -> Need:
    agent = configured.agent
    connections = inputs.producers or agent.connections_max
    parts = {"connections": connections}
    if agent.ring_max_bytes:
        parts["their rings"] = connections
    if agent.http_listener:
        parts["host.http.max.connections"] = agent.http_max_connections
    return _summed({**parts, "the process": PROCESS_FILES})


def agent_memory(configured: Configured, inputs: CheckHostInputs) -> Need:
    if inputs.agent_memory_bytes:
        return Need(value=inputs.agent_memory_bytes, formula="agent-memory, as given")
    agent = configured.agent
    parts = {
        "host.queued.max.bytes": agent.queued_max_bytes,
        "host.credit.total.bytes": agent.credit_total_bytes,
    }
    if agent.http_listener:
        parts["HTTP bodies"] = agent.http_max_connections * agent.http_body_max_bytes
    return _summed({**parts, "the process": PROCESS_BYTES}, "bytes")


def sync_wanted_ms(configured: Configured, inputs: CheckHostInputs) -> tuple[float, str]:
    """Return the maximum median latency of a sync, and the setting that it comes from."""
    if inputs.sync_ms:
        return inputs.sync_ms, "sync-latency, as given"
    storage = configured.storage
    if storage.log_flush_policy == "interval":
        return float(storage.log_flush_interval_ms), "log.flush.interval.ms"
    if storage.log_flush_policy == "os":
        return float(storage.log_checkpoint_interval_ms), "log.checkpoint.interval.ms"
    interval_ms = configured.diskless.interval_ms(local=True)
    return float(max(interval_ms, 1)), "diskless.commit.interval.ms of a local store"
