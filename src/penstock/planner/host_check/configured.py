"""What Penstock's settings ask of a host: descriptors, memory, disk, syncs.

The numbers are those of the settings themselves, so that they never drift from what a broker
and an agent do. The broker's come as `BrokerSide`, since its settings stand above this layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.diskless.limits import STAGED_PUTS_AT_ONCE_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.host.server.settings import HostSettings
from penstock.host.server.socket_file import BACKLOG
from penstock.objects.limits import DIRECTORY_THREADS
from penstock.objects.settings import FetchSettings
from penstock.planner.host_check.inputs import CheckHostInputs
from penstock.planner.quantities import format_quantity
from penstock.storage.limits import INDEX_CACHE_BYTES
from penstock.storage.settings import StorageSettings

PROCESS_FILES: Final = 64
"""Descriptors of a process besides: libraries, databases, the event loop, the log."""

PROCESS_BYTES: Final = 128 << 20
"""Memory of a process besides: the interpreter, libraries, metadata."""

PROCESS_THREADS: Final = 32
"""Threads of a process besides those of its object store: storage, database, network."""

AGENT_BACKLOG: Final = BACKLOG


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSide:
    """The settings of a broker that concern its host."""

    max_connections: int
    admin_max_connections: int
    listen_backlog: int
    receive_buffer_bytes: int
    send_buffer_bytes: int
    queued_request_bytes: int
    segment_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The settings of a broker and of a host agent on one host."""

    broker: BrokerSide
    storage: StorageSettings = field(default_factory=StorageSettings)
    diskless: DisklessSettings = field(default_factory=DisklessSettings)
    fetching: FetchSettings = field(default_factory=FetchSettings)
    agent: HostSettings = field(default_factory=HostSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A number, and the sum that gave it."""

    value: int
    formula: str


def _summed(parts: dict[str, int], unit: str = "") -> Need:
    words = [f"{name} {format_quantity(value, unit)}" for name, value in parts.items()]
    return Need(value=sum(parts.values()), formula=" + ".join(words))


def broker_files(configured: Configured, inputs: CheckHostInputs) -> Need:
    """Descriptors: connections, segments, journal, and what a process has besides."""
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
    """Bytes that the broker's buffers may reach together."""
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
    """Threads of the broker."""
    return _summed({"the object store's": DIRECTORY_THREADS, "the process": PROCESS_THREADS})


def broker_disk(configured: Configured) -> Need:
    """Bytes without which a broker soon stops: its journal, and one segment."""
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
    """Descriptors of the agent: a connection and its ring each, the HTTP front."""
    agent = configured.agent
    connections = inputs.producers or agent.connections_max
    parts = {"connections": connections}
    if agent.ring_max_bytes:
        parts["their rings"] = connections
    if agent.http_listener:
        parts["host.http.max.connections"] = agent.http_max_connections
    return _summed({**parts, "the process": PROCESS_FILES})


def agent_memory(configured: Configured, inputs: CheckHostInputs) -> Need:
    """Bytes that the agent holds: frames that arrive, and payloads that are unanswered."""
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
    """How long a sync may take, and by what."""
    if inputs.sync_ms:
        return inputs.sync_ms, "sync-latency, as given"
    storage = configured.storage
    if storage.log_flush_policy == "interval":
        return float(storage.log_flush_interval_ms), "log.flush.interval.ms"
    if storage.log_flush_policy == "os":
        return float(storage.log_checkpoint_interval_ms), "log.checkpoint.interval.ms"
    interval_ms = configured.diskless.interval_ms(local=True)
    return float(max(interval_ms, 1)), "diskless.commit.interval.ms of a local store"
