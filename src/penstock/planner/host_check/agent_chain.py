"""The host agent: Unix sockets, whose buffers, queue and descriptors have limits of their own.

    producer ──SO_SNDBUF of the producer──> agent ──SO_SNDBUF of the agent──> answers

A Unix stream has no receive buffer: what may be on its way is bounded by the sender's buffer, so
`wmem_max` caps both directions. Streams do not use `net.unix.max_dgram_qlen`, and rings are
shared memory that is not locked: both limits are shown, and nothing is asked of them.

Source: unix(7), socket(7), memfd_create(2); host IPC article, three rings of backpressure.
"""

from __future__ import annotations

from typing import Final

from penstock.host.client.options import ClientOptions
from penstock.planner.host_check.configured import (
    AGENT_BACKLOG,
    PROCESS_THREADS,
    Configured,
    Need,
    agent_files,
    agent_memory,
)
from penstock.planner.host_check.disk_layers import NETWORK_FILE_SYSTEMS
from penstock.planner.host_check.facts import HostFacts
from penstock.planner.host_check.inputs import CheckHostInputs
from penstock.planner.host_check.layers import (
    AGENT,
    Fix,
    Layer,
    Rule,
    informed,
    judged,
    text,
    unknown,
)
from penstock.planner.host_check.process_layers import memory_layers, task_layers
from penstock.planner.host_check.socket_layers import asked_buffer, descriptor_layers

_QUEUE: Final = Rule(
    name="unix_backlog_connections", label="queue of the Unix socket", chain=AGENT,
    unit="connections", setting="net.core.somaxconn", short="warn",
    formula="the agent's listen backlog", source="listen(2), unix(7)",
)  # fmt: skip
_DATAGRAMS: Final = Rule(
    name="unix_datagram_queue", label="queued Unix datagrams", chain=AGENT,
    setting="net.unix.max_dgram_qlen", formula="none: the agent's socket is a stream",
    source="unix(7)",
)  # fmt: skip
_PLACE: Final = Rule(
    name="socket_file_system", label="directory of the socket", chain=AGENT,
    setting="host.socket.path", formula="file system of its mount",
    source="unix(7); host IPC article, where to put the socket file",
)  # fmt: skip
_LOCKED: Final = Rule(
    name="locked_memory_bytes", label="locked memory", chain=AGENT, setting="RLIMIT_MEMLOCK",
    formula="none: rings are shared memory that is not locked", source="getrlimit(2)",
)  # fmt: skip


def producer_buffer_bytes() -> int:
    """What a producer's client asks for, unless it is told otherwise."""
    return ClientOptions().socket_buffer_bytes


def agent_chain(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
    """The layers from a producer's socket to the agent's memory."""
    name = "net.core.somaxconn"
    agent = configured.agent
    threads = Need(value=PROCESS_THREADS, formula=f"the process {PROCESS_THREADS}")
    return (
        _place(facts, agent.socket_path),
        asked_buffer(
            facts, "unix", "SO_SNDBUF", producer_buffer_bytes(), AGENT,
            "host.client.socket.buffer.bytes", who="producer_", short="note",
        ),
        asked_buffer(
            facts, "unix", "SO_SNDBUF", agent.socket_buffer_bytes, AGENT,
            "host.socket.buffer.bytes", who="agent_",
        ),
        judged(
            _QUEUE, facts.sysctl(name), AGENT_BACKLOG, unread=facts.why(name),
            cause="producers that connect at once, as after a restart, wait and try again",
            fixes=(Fix(kind="sysctl", key=name, value=AGENT_BACKLOG),),
        ),
        *descriptor_layers(facts, agent_files(configured, inputs), AGENT, "agent"),
        *memory_layers(facts, agent_memory(configured, inputs), AGENT, "agent"),
        *task_layers(facts, threads, AGENT, "agent"),
        *_unused(facts),
    )  # fmt: skip


def _place(facts: HostFacts, path: str) -> Layer:
    kind = facts.socket_file_system
    if kind is None:
        return unknown(_PLACE, facts.why("socket", "mount"))
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        return informed(
            _PLACE, kind, "fail", f"{path} is on {kind}: a Unix socket serves one kernel only",
            "set host.socket.path to a directory of this host, such as /var/run/penstock",
        )  # fmt: skip
    return informed(_PLACE, kind, "ok", f"{path} is on {kind}")


def _unused(facts: HostFacts) -> tuple[Layer, ...]:
    name = "net.unix.max_dgram_qlen"
    queue, locked = facts.sysctl(name), facts.limits.locked_bytes
    return (
        unknown(_DATAGRAMS, facts.why(name))
        if queue is None
        else informed(_DATAGRAMS, queue, "ok", f"{queue}, and nothing is needed"),
        unknown(_LOCKED, facts.why("limits"))
        if locked is None
        else informed(
            _LOCKED, text(locked, "bytes"), "ok", f"{text(locked, 'bytes')}, nothing is needed"
        ),
    )
