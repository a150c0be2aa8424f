"""Inputs of a host check. For 0, Penstock's own settings decide.

The defaults of the receive path are Aeron's: a window of 128 KiB, a term of 16 MiB, datagrams of
1408 bytes. Rings and backlogs must hold stall × packet rate: a scheduler may keep a receiver off
its CPU for about 10 ms.

Needs of Penstock's settings (descriptors, memory, disk, syncs) are computed from the settings
themselves, so that they never drift. Those of the broker come as `BrokerSide`, since its settings
belong to a higher layer.

Source: receive-path sizing (Aeron's constraints A, B and C); Aeron: Configuration.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.base.settings import INT_MAX, LONG_MAX, setting
from penstock.diskless.settings import STAGED_PUTS_AT_ONCE_MAX, DisklessSettings
from penstock.host.server.settings import HostSettings
from penstock.host.server.socket_file import BACKLOG
from penstock.objects.settings import DIRECTORY_THREADS, FetchSettings
from penstock.planner.errors import ImpossiblePlan
from penstock.planner.quantities import format_quantity
from penstock.planner.receive_path.chain import SOCKET_HEADROOM, B, C
from penstock.planner.receive_path.limits import (
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
from penstock.storage.limits import INDEX_CACHE_BYTES
from penstock.storage.settings import StorageSettings

CHAIN_WORDS: Final = ("receive-path", "broker", "agent")
_OWN_CHAINS: Final = ("broker", "agent")
_RECEIVE_INPUTS: Final = ("window", "term", "mtu", "so-rcvbuf", "stall", "packet-rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHostInputs:
    """Requirements for the layers of a host.

    Raises:
        ImpossiblePlan: no host can serve these: a window below the MTU, or above the buffer.
    """

    chains: tuple[str, ...] = setting(
        (),
        name="chains",
        doc="Chains of the host to check: the receive path of Aeron's datagrams, a broker, a host"
        " agent. Without it broker and agent, and the receive path where one of its inputs is"
        " given.",
        choices=CHAIN_WORDS,
    )
    window_bytes: int = setting(
        WINDOW_DEFAULT_BYTES, name="window", doc="Bytes that a sender may have in flight.",
        unit="bytes", minimum=1, maximum=WINDOW_MAX_BYTES,
    )  # fmt: skip
    term_bytes: int = setting(
        TERM_DEFAULT_BYTES, name="term",
        doc="Length of a term buffer; the window is at most half of it.", unit="bytes",
        minimum=TERM_MIN_BYTES, maximum=TERM_MAX_BYTES,
    )  # fmt: skip
    mtu_bytes: int = setting(
        MTU_DEFAULT_BYTES, name="mtu", doc="Longest datagram, without the headers of UDP and IP.",
        unit="bytes", minimum=32, maximum=MTU_MAX_BYTES,
    )  # fmt: skip
    so_rcvbuf_bytes: int = setting(
        0, name="so-rcvbuf",
        doc=f"SO_RCVBUF that the receiver asks for; 0 is {SOCKET_HEADROOM} windows.", unit="bytes",
        minimum=0, maximum=SOCKET_BUFFER_MAX_BYTES,
    )  # fmt: skip
    stall_ms: float = setting(
        10.0, name="stall", doc="Longest time that the receiver's CPU is away.", unit="ms",
        minimum=0, maximum=60_000,
    )  # fmt: skip
    packets_per_second: float = setting(
        100_000.0, name="packet-rate", doc="Packets that come in, at worst.", unit="packets/s",
        minimum=0, maximum=1e9,
    )  # fmt: skip
    connections: int = setting(
        0, name="connections",
        doc="Kafka connections at a time; 0 is the broker's max.connections.", minimum=0,
        maximum=INT_MAX,
    )  # fmt: skip
    producers: int = setting(
        0, name="producers",
        doc="Connections of the host agent at a time; 0 is its host.connections.max.", minimum=0,
        maximum=65_536,
    )  # fmt: skip
    sync_ms: float = setting(
        0.0,
        name="sync-latency",
        doc=(
            "Longest median of a sync of the data directory; 0 follows log.flush.policy: the"
            " interval in which an object of a local store gathers for `group`,"
            " log.flush.interval.ms for `interval`, log.checkpoint.interval.ms for `os`."
        ),
        unit="ms",
        minimum=0,
        maximum=3_600_000,
    )
    broker_memory_bytes: int = setting(
        0, name="broker-memory",
        doc="Memory that the broker needs; 0 is the sum of its configured buffers.", unit="bytes",
        minimum=0, maximum=LONG_MAX,
    )  # fmt: skip
    agent_memory_bytes: int = setting(
        0, name="agent-memory",
        doc="Memory that the host agent needs; 0 is the sum of its configured buffers.",
        unit="bytes", minimum=0, maximum=LONG_MAX,
    )  # fmt: skip
    clock_error_ms: float = setting(
        2_000.0, name="clock-error",
        doc="Largest error of the clock, as its discipline estimates it.", unit="ms", minimum=0,
        maximum=86_400_000,
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
"""Other descriptors of a process: libraries, databases, the event loop, the log."""

PROCESS_BYTES: Final = 128 << 20
"""Other memory of a process: the interpreter, libraries, metadata."""

PROCESS_THREADS: Final = 32
"""Other threads of a process than its object store's: storage, database, network."""

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
    """Return the allowed latency of a sync, and its setting."""
    if inputs.sync_ms:
        return inputs.sync_ms, "sync-latency, as given"
    storage = configured.storage
    if storage.log_flush_policy == "interval":
        return float(storage.log_flush_interval_ms), "log.flush.interval.ms"
    if storage.log_flush_policy == "os":
        return float(storage.log_checkpoint_interval_ms), "log.checkpoint.interval.ms"
    interval_ms = configured.diskless.interval_ms(local=True)
    return float(max(interval_ms, 1)), "diskless.commit.interval.ms of a local store"
