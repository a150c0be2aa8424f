"""Host check: the layers of all chains in order, the first broken layer, commands, and charts.

**Broker.** If a program sets no buffer size, Linux sizes TCP buffers itself, up to `tcp_rmem` and
`tcp_wmem`. If it requests a size, `rmem_max` and `wmem_max` cap it. So an explicit
`socket.receive.buffer.bytes` is checked against `rmem_max`, and the default against `tcp_rmem`.

**Agent.** Unix sockets have their own limits for buffers, queue and descriptors.

    producer ──SO_SNDBUF of the producer──> agent ──SO_SNDBUF of the agent──> responses

A Unix stream has no receive buffer. The sender's buffer bounds the bytes in transit, so `wmem_max`
caps both directions. `net.unix.max_dgram_qlen` does not apply to streams, and rings are shared
memory that is not locked. Both limits are shown, but have no minimum.

**Order.** Layers are ordered from the outermost inwards, because inner layers cannot repair a loss
in an outer layer. The first broken layer is the outermost that fails. If none fails, it is the
outermost with a warning. The tightest layer is the one with the smallest ratio of found to needed,
whether or not it suffices.

Source: tcp(7), unix(7), socket(7), listen(2), getrlimit(2), memfd_create(2), proc(5); Kafka:
SocketServerConfigs; host IPC article, three rings of backpressure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.host.client.options import ClientOptions
from penstock.planner.host_check.inputs import (
    AGENT_BACKLOG,
    CHAIN_WORDS,
    PROCESS_THREADS,
    UNLIMITED,
    BufferOption,
    CheckHostInputs,
    Configured,
    HostFacts,
    Need,
    SocketKind,
    agent_files,
    agent_memory,
    broker_files,
    broker_memory,
    broker_threads,
)
from penstock.planner.host_check.layers import (
    AGENT,
    BROKER,
    CHAINS,
    NETWORK_FILE_SYSTEMS,
    Fix,
    FixKind,
    Layer,
    Rule,
    clock_layers,
    cpu_layers,
    disk_layers,
    first_broken,
    informed,
    judged,
    memory_layers,
    pressure_layers,
    sysctl_layer,
    task_layers,
    text,
    tightest,
    unknown,
)
from penstock.planner.host_check.receive_chain import receive_chain
from penstock.planner.receive_path.inputs import ARTICLE
from penstock.planner.results import Chart, Figure, Finding, Plan, Severity, Snippet, curves, ok

_BACKLOG: Final = Rule(
    "listen_backlog_connections", "listen backlog", BROKER, "socket.listen.backlog.size",
    "listen(2): somaxconn caps the length of the queue; BrokerSettings", unit="connections",
    setting="net.core.somaxconn", short="warn",
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
    return (
        sysctl_layer(
            facts, _BACKLOG, broker.listen_backlog,
            "the kernel shortens the queue without an error, and clients that connect at the"
            " same time must retry",
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
        f"tcp_{word}_buffer_bytes", f"TCP {word} buffer", BROKER, "2 × window",
        "tcp(7): maximum of automatic sizing; about half of a buffer is window",
        unit="bytes", setting=name,
        short="warn", reading=f"third number of {name}",
    )  # fmt: skip
    needed = 2 * inputs.window_bytes
    numbers = facts.sysctls.get(name, ())
    fix = Fix("sysctl", name, needed, " ".join(map(str, numbers[:-1])))
    return judged(
        rule, facts.sysctl(name), needed, unread=facts.why(name), fixes=(fix,),
        cause="a connection's window cannot grow to its bandwidth × round trip",
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
    """Return a layer for an explicitly requested socket buffer, which the kernel caps silently.

    `setting` is the setting that requests the size. `who` says whose socket it is, as a key of
    `_WHOSE`.
    """
    name = _CEILINGS[option]
    rule = Rule(
        f"{who}{kind}_{_NAMES[option]}_buffer_bytes",
        " ".join([_LABELS[kind], _NAMES[option], "buffer", _WHOSE[who]]).strip(), chain, setting,
        "socket(7), SO_RCVBUF and SO_SNDBUF", unit="bytes", setting=name, short=short,
        reading=f"{name}, or the granted size if that is smaller",
    )  # fmt: skip
    cap, grant = facts.sysctl(name), facts.grant(kind, option, asked)
    found = cap
    if grant is not None:
        full = grant.granted_bytes >= asked
        found = max(cap or 0, grant.granted_bytes) if full else grant.granted_bytes
    detail = (
        "" if grant is None else f"requested {asked}, the kernel reports {grant.reported_bytes}"
    )
    return judged(
        rule, found, asked, unread=facts.why(name), detail=detail,
        fixes=(Fix("sysctl", name, asked),),
        cause="the kernel caps the requested size without an error",
    )  # fmt: skip


_LABELS: Final = {"udp": "UDP", "tcp": "TCP", "unix": "Unix-socket"}
_WHOSE: Final = {"": "", "producer_": "of a producer", "agent_": "of the agent"}


def descriptor_layers(facts: HostFacts, need: Need, chain: str, who: str) -> tuple[Layer, ...]:
    rule = Rule(
        f"{who}_descriptors", f"file descriptors of the {who}", chain, need.formula,
        "getrlimit(2): accept and open fail with EMFILE beyond it", setting="RLIMIT_NOFILE",
    )  # fmt: skip
    opened = Rule(
        f"{who}_descriptors_allowed", f"hard maximum of descriptors, {who}", chain, need.formula,
        "proc(5), fs.nr_open", setting="fs.nr_open", short="warn",
    )  # fmt: skip
    system = Rule(
        f"{who}_descriptors_of_the_system", f"descriptors of the whole host, {who}",
        chain, need.formula,
        "proc(5), fs.file-max", setting="fs.file-max",
    )  # fmt: skip
    limits = facts.limits
    may = limits.files_hard is not None and limits.files_hard >= need.value
    line = f"ulimit -n {need.value}, or LimitNOFILE={need.value} in the service"
    return (
        judged(
            rule, limits.files, need.value, unread=facts.why("limits"),
            cause="the kernel rejects further connections and open files",
            fix=line if may else f"as root: {line}; the current hard limit is {limits.files_hard}",
            fixes=(Fix("ulimit", "-n", need.value),),
        ),
        sysctl_layer(facts, opened, need.value),
        sysctl_layer(facts, system, need.value),
    )  # fmt: skip


_QUEUE: Final = Rule(
    "unix_backlog_connections", "listen queue of the Unix socket",
    AGENT, "the agent's listen backlog",
    "listen(2), unix(7)", unit="connections", setting="net.core.somaxconn", short="warn",
)  # fmt: skip
_DATAGRAMS: Final = Rule(
    "unix_datagram_queue", "queued Unix datagrams", AGENT, "no need: the agent uses a stream",
    "unix(7)", setting="net.unix.max_dgram_qlen",
)  # fmt: skip
_PLACE: Final = Rule(
    "socket_file_system", "directory of the socket", AGENT, "file system of the socket's directory",
    "unix(7); host IPC article, where to put the socket file", setting="host.socket.path",
)  # fmt: skip
_LOCKED: Final = Rule(
    "locked_memory_bytes", "locked memory", AGENT, "no need: rings are not locked",
    "getrlimit(2)", setting="RLIMIT_MEMLOCK",
)  # fmt: skip


def producer_buffer_bytes() -> int:
    return ClientOptions().socket_buffer_bytes


def agent_chain(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
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
        sysctl_layer(
            facts, _QUEUE, AGENT_BACKLOG,
            "producers that connect at the same time, as after a restart, must retry",
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
            _PLACE, kind, "fail", f"{path} is on {kind}; a Unix socket on a network file system"
            " cannot connect two hosts",
            "set host.socket.path to a local directory of this host, such as /var/run/penstock",
        )  # fmt: skip
    return informed(_PLACE, kind, "ok", f"{path} is on {kind}")


def _unused(facts: HostFacts) -> tuple[Layer, ...]:
    name = "net.unix.max_dgram_qlen"
    queue, locked = facts.sysctl(name), facts.limits.locked_bytes
    return (
        unknown(_DATAGRAMS, facts.why(name))
        if queue is None
        else informed(
            _DATAGRAMS,
            queue,
            "ok",
            f"found {queue}; no minimum, because the agent uses a stream socket",
        ),
        unknown(_LOCKED, facts.why("limits"))
        if locked is None
        else informed(
            _LOCKED,
            text(locked, "bytes"),
            "ok",
            f"found {text(locked, 'bytes')}; no minimum, because rings are not locked",
        ),
    )


RATIO_MAX: Final = 10.0
"""Largest ratio that charts show; more than ten times the need is shown as ten times."""

RATIO_MIN: Final = 0.01
"""Smallest ratio that charts show, so that 0 is visible on a logarithmic axis."""

_SNIPPETS: Final[dict[FixKind, tuple[str, str]]] = {
    "sysctl": ("Kernel settings: run as root; write them to /etc/sysctl.d to keep them", "sh"),
    "ethtool": ("Network interface: run as root; traffic stops for a moment", "sh"),
    "ulimit": ("Limits: run in the shell that starts the process", "sh"),
    "systemd": ("The service's unit, in [Service]", "ini"),
}
_VERDICT: Final = "Verdict"
_ANSWERS: Final = (
    "first_broken_layer", "tightest_layer", "tightest_ratio", "unknown_layers",
    "sync_p50_ms", "sync_p99_ms", "free_disk_bytes",
)  # fmt: skip


def host_layers(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
    chains = {
        "receive-path": lambda: receive_chain(facts, inputs),
        "broker": lambda: _broker_chain(facts, configured, inputs),
        "agent": lambda: agent_chain(facts, configured, inputs),
    }
    return tuple(
        [layer for word in CHAIN_WORDS if word in inputs.counted for layer in chains[word]()]
    )


def _broker_chain(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
    memory, threads = broker_memory(configured, inputs), broker_threads()
    return (
        *socket_layers(facts, configured, inputs),
        *memory_layers(facts, memory, BROKER, "broker"),
        *pressure_layers(facts, BROKER),
        *task_layers(facts, threads, BROKER, "broker"),
        *cpu_layers(facts, inputs, BROKER),
        *disk_layers(facts, configured, inputs),
        *clock_layers(facts, inputs),
    )


def check_host(facts: HostFacts, configured: Configured, inputs: CheckHostInputs) -> Plan:
    layers = host_layers(facts, configured, inputs)
    figures = (
        *_verdict(facts, layers),
        *[figure for layer in layers for figure in _figures(layer)],
    )
    return Plan(
        title="First layer of this host that breaks",
        inputs=inputs,
        figures=figures,
        findings=(_headline(layers), *[_finding(layer) for layer in layers]),
        snippets=_snippets(layers),
        charts=tuple([chart for name in CHAINS for chart in _charts(name, layers)]),
        answers=tuple([figure.name for figure in figures if figure.name in _ANSWERS]),
    )


def _verdict(facts: HostFacts, layers: tuple[Layer, ...]) -> tuple[Figure, ...]:
    broken, narrow = first_broken(layers), tightest(layers)
    unread = len([layer for layer in layers if layer.found is None])
    return (
        Figure("kernel", "kernel", facts.kernel, "", "/proc/sys/kernel/osrelease", "proc(5)",
               group=_VERDICT),
        Figure("first_broken_layer", "first layer that breaks",
               "none" if broken is None else broken.rule.label, "",
               "the outermost layer that fails, or else the outermost with a warning",
               f"{ARTICLE}: each buffer must absorb the stall of the one inside it",
               group=_VERDICT),
        Figure("tightest_layer", "layer with the smallest ratio",
               "none" if narrow is None else narrow.rule.label, "", "smallest ratio found ÷ needed",
               "the figures below", group=_VERDICT),
        Figure("tightest_ratio", "smallest ratio", None if narrow is None else narrow.ratio,
               "times the need", "found ÷ needed; needed ÷ found for an upper limit, such as a"
               " latency",
               "the figures below", group=_VERDICT),
        Figure("unknown_layers", "layers with unknown facts", unread, "",
               "facts that this host does not report, or that this user must not read",
               "the findings below",
               group=_VERDICT),
    )  # fmt: skip


def _figures(layer: Layer) -> list[Figure]:
    """Return a figure of the found value with its minimum, and a second figure for a maximum."""
    rule, found, needed = layer.rule, layer.found, layer.needed
    words = "unlimited" if isinstance(found, (int, float)) and found >= UNLIMITED else found
    most = rule.most and needed is not None
    formula = rule.formula if needed is None else f"{rule.formula} = {text(needed, rule.unit)}"
    if most:
        formula = rule.reading or f"measured, against {rule.formula}"
    elif rule.reading:
        formula = f"{formula}; found: {rule.reading}"
    figure = Figure(
        rule.name, rule.label, words, "" if isinstance(words, str) else rule.unit, formula,
        rule.source, minimum=None if most else needed, setting=rule.setting, group=rule.chain,
    )  # fmt: skip
    if not most:
        return [figure]
    stem, _, unit = rule.name.rpartition("_")
    allowed = replace(
        figure, name=f"{stem}_allowed_{unit}", label=f"{rule.label}: at most", value=needed,
        unit=rule.unit, formula=rule.formula,
    )  # fmt: skip
    return [figure, allowed]


def _headline(layers: tuple[Layer, ...]) -> Finding:
    broken = first_broken(layers)
    if broken is None:
        return ok("the chain", "each known layer has what it needs")
    word = "breaks first" if broken.severity == "fail" else "has the first warning"
    return Finding(broken.severity, "the chain", f"{broken.rule.label} {word}")


def _finding(layer: Layer) -> Finding:
    return Finding(layer.severity, layer.rule.label, layer.cause, layer.fix)


def _snippets(layers: tuple[Layer, ...]) -> tuple[Snippet, ...]:
    largest: dict[tuple[str, str], Fix] = {}
    for fix in [fix for layer in layers for fix in layer.fixes if layer.severity != "ok"]:
        held = largest.get((fix.kind, fix.key))
        if held is None or held.value < fix.value:
            largest[fix.kind, fix.key] = fix
    lines = {kind: [fix.line for fix in largest.values() if fix.kind == kind] for kind in _SNIPPETS}
    return tuple(
        [
            Snippet(title=title, language=language, text="\n".join([*lines[kind], ""]))
            for kind, (title, language) in _SNIPPETS.items()
            if lines[kind]
        ]
    )


def _charts(chain: str, layers: tuple[Layer, ...]) -> list[Chart]:
    bars = {
        layer.rule.label: min(max(layer.ratio, RATIO_MIN), RATIO_MAX)
        for layer in layers
        if layer.rule.chain == chain and layer.ratio is not None
    }
    if not bars:
        return []
    return [
        Chart(
            title=f"{chain}: found ÷ needed", x_label="", kind="bar", y_log=True,
            y_label=f"found ÷ needed, up to {RATIO_MAX:g}",
            curves=curves([*bars], {"found": bars.values(), "needed": [1.0] * len(bars)}),
        )
    ]  # fmt: skip
