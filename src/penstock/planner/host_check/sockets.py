"""Sockets of the broker and of the host agent: queues, buffers, descriptors.

**Broker.** Linux sizes TCP buffers itself up to `tcp_rmem` and `tcp_wmem`, unless a program
requests a size, which `rmem_max` and `wmem_max` cap. So an explicit `socket.receive.buffer.bytes`
is checked against the latter, and the default against the former.

**Agent.** Unix sockets, whose buffers, queue and descriptors have limits of their own.

    producer ──SO_SNDBUF of the producer──> agent ──SO_SNDBUF of the agent──> answers

A Unix stream has no receive buffer: the sender's buffer bounds the bytes in transit, so
`wmem_max` caps both directions. Streams do not use `net.unix.max_dgram_qlen`, and rings are
unlocked shared memory: both limits are shown without a need.

Source: tcp(7), unix(7), socket(7), listen(2), getrlimit(2), memfd_create(2), proc(5); Kafka:
SocketServerConfigs; host IPC article, three rings of backpressure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.host.client.options import ClientOptions
from penstock.planner.host_check.disk_layers import NETWORK_FILE_SYSTEMS
from penstock.planner.host_check.facts import BufferOption, HostFacts, SocketKind
from penstock.planner.host_check.inputs import (
    AGENT_BACKLOG,
    PROCESS_THREADS,
    CheckHostInputs,
    Configured,
    Need,
    agent_files,
    agent_memory,
    broker_files,
)
from penstock.planner.host_check.layers import (
    AGENT,
    BROKER,
    Fix,
    Layer,
    Rule,
    informed,
    judged,
    text,
    unknown,
)
from penstock.planner.host_check.process_layers import memory_layers, task_layers
from penstock.planner.results import Severity

_BACKLOG: Final = Rule(
    name="listen_backlog_connections", label="listen backlog", chain=BROKER, unit="connections",
    setting="net.core.somaxconn", formula="socket.listen.backlog.size", short="warn",
    source="listen(2): a longer queue is cut to somaxconn; BrokerSettings",
)  # fmt: skip

_CEILINGS: Final[Mapping[BufferOption, str]] = {
    "SO_RCVBUF": "net.core.rmem_max",
    "SO_SNDBUF": "net.core.wmem_max",
}
_AUTOMATIC: Final[Mapping[BufferOption, str]] = {
    "SO_RCVBUF": "net.ipv4.tcp_rmem",
    "SO_SNDBUF": "net.ipv4.tcp_wmem",
}
_NAMES: Final[Mapping[BufferOption, str]] = {"SO_RCVBUF": "receive", "SO_SNDBUF": "send"}


def socket_layers(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
    broker = configured.broker
    name = "net.core.somaxconn"
    return (
        judged(
            _BACKLOG, facts.sysctl(name), broker.listen_backlog, unread=facts.why(name),
            cause="the kernel cuts the queue without an error; clients that come at once wait and"
            " try again",
            fixes=(Fix(kind="sysctl", key=name, value=broker.listen_backlog),),
        ),
        _connection_buffer(facts, inputs, "SO_RCVBUF", broker.receive_buffer_bytes),
        _connection_buffer(facts, inputs, "SO_SNDBUF", broker.send_buffer_bytes),
        *descriptor_layers(facts, broker_files(configured, inputs), BROKER, "broker"),
    )  # fmt: skip


def _connection_buffer(
    facts: HostFacts, inputs: CheckHostInputs, option: BufferOption, asked: int
) -> Layer:
    if asked >= 0:
        setting = f"socket.{_NAMES[option]}.buffer.bytes"
        return asked_buffer(facts, "tcp", option, asked, BROKER, setting)
    name, word = _AUTOMATIC[option], _NAMES[option]
    rule = Rule(
        name=f"tcp_{word}_buffer_bytes", label=f"TCP {word} buffer", chain=BROKER, unit="bytes",
        setting=name, formula="2 × window", short="warn",
        reading=f"third number of {name}",
        source="tcp(7): buffers grow up to it, and about half of it is window",
    )  # fmt: skip
    needed = 2 * inputs.window_bytes
    numbers = facts.sysctls.get(name, ())
    fix = Fix(kind="sysctl", key=name, value=needed, rest=" ".join(map(str, numbers[:-1])))
    return judged(
        rule, facts.sysctl(name), needed, unread=facts.why(name), fixes=(fix,),
        cause="a connection's window cannot grow as far as its bandwidth and round trip ask",
    )  # fmt: skip


def asked_buffer(
    facts: HostFacts,
    kind: SocketKind,
    option: BufferOption,
    asked: int,
    chain: str,
    setting: str,
    *,
    who: str = "",
    short: Severity = "warn",
) -> Layer:
    """Return a layer for a requested buffer, which the kernel caps without an error."""
    name = _CEILINGS[option]
    rule = Rule(
        name=f"{who}{kind}_{_NAMES[option]}_buffer_bytes",
        label=" ".join([_LABELS[kind], _NAMES[option], "buffer", _WHOSE[who]]).strip(),
        chain=chain, unit="bytes", setting=name, short=short,
        formula=setting, reading=f"{name}, or what was granted if that is less",
        source="socket(7), SO_RCVBUF and SO_SNDBUF",
    )  # fmt: skip
    cap, grant = facts.sysctl(name), facts.grant(kind, option, asked)
    found = cap
    if grant is not None:
        full = grant.granted_bytes >= asked
        found = max(cap or 0, grant.granted_bytes) if full else grant.granted_bytes
    detail = (
        "" if grant is None else f"asked for {asked}, the kernel reports {grant.reported_bytes}"
    )
    return judged(
        rule, found, asked, unread=facts.why(name), detail=detail,
        fixes=(Fix(kind="sysctl", key=name, value=asked),),
        cause="the kernel cuts the request without an error",
    )  # fmt: skip


_LABELS: Final = {"udp": "UDP", "tcp": "TCP", "unix": "Unix-socket"}
_WHOSE: Final = {"": "", "producer_": "of a producer", "agent_": "of the agent"}


def descriptor_layers(facts: HostFacts, need: Need, chain: str, who: str) -> tuple[Layer, ...]:
    rule = Rule(
        name=f"{who}_descriptors", label=f"file descriptors of the {who}", chain=chain,
        setting="RLIMIT_NOFILE",
        formula=need.formula, source="getrlimit(2): accept and open fail with EMFILE above",
    )  # fmt: skip
    opened = Rule(
        name=f"{who}_descriptors_allowed", label=f"ceiling of the {who}'s descriptors", chain=chain,
        setting="fs.nr_open", formula=need.formula, source="proc(5), fs.nr_open", short="warn",
    )  # fmt: skip
    system = Rule(
        name=f"{who}_descriptors_of_the_system", label=f"all descriptors, for the {who}",
        chain=chain,
        setting="fs.file-max", formula=need.formula, source="proc(5), fs.file-max",
    )  # fmt: skip
    limits = facts.limits
    may = limits.files_hard is not None and limits.files_hard >= need.value
    line = f"ulimit -n {need.value}, or LimitNOFILE={need.value} in the service"
    return (
        judged(
            rule, limits.files, need.value, unread=facts.why("limits"),
            cause="connections and segments above it are refused by the kernel",
            fix=line if may else f"as root: {line}; the hard limit is {limits.files_hard}",
            fixes=(Fix(kind="ulimit", key="-n", value=need.value),),
        ),
        _system_limit(facts, opened, "fs.nr_open", need.value),
        _system_limit(facts, system, "fs.file-max", need.value),
    )  # fmt: skip


def _system_limit(facts: HostFacts, rule: Rule, name: str, needed: int) -> Layer:
    return judged(
        rule, facts.sysctl(name), needed, unread=facts.why(name),
        fixes=(Fix(kind="sysctl", key=name, value=needed),),
    )  # fmt: skip


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
    return ClientOptions().socket_buffer_bytes


def agent_chain(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
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
