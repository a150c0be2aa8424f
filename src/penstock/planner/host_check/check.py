"""Whole host check: sockets and all other layers in order, the first broken one, commands, bars.

**Broker.** Linux sizes TCP buffers itself up to `tcp_rmem` and `tcp_wmem`, unless a program
requests a size, which `rmem_max` and `wmem_max` cap. So an explicit `socket.receive.buffer.bytes`
is checked against the latter, and the default against the former.

**Agent.** Unix sockets, whose buffers, queue and descriptors have limits of their own.

    producer ──SO_SNDBUF of the producer──> agent ──SO_SNDBUF of the agent──> answers

A Unix stream has no receive buffer: the sender's buffer bounds the bytes in transit, so `wmem_max`
caps both directions. Streams do not use `net.unix.max_dgram_qlen`, and rings are unlocked shared
memory: both limits are shown without a need.

**Order.** It is that of the chain, outermost first: a loss outside cannot be repaired inside. So
the first broken layer is the outermost that fails, or, without one, the outermost with a warning.
The tightest layer is the one with the least room, whether it holds or not.

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
    task_layers,
    text,
    tightest,
    unknown,
)
from penstock.planner.host_check.receive_chain import receive_chain
from penstock.planner.receive_path.inputs import ARTICLE
from penstock.planner.results import Chart, Curve, Figure, Finding, Plan, Severity, Snippet, ok

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


RATIO_MAX: Final = 10.0
"""Upper end of bars: ten times the need is enough."""

RATIO_MIN: Final = 0.01
"""Lower end of bars, so that 0 is visible on a logarithmic axis."""

_SNIPPETS: Final[dict[FixKind, tuple[str, str]]] = {
    "sysctl": ("Kernel settings, to type as root; /etc/sysctl.d keeps them", "sh"),
    "ethtool": ("The network card, to type as root: traffic stops for a moment", "sh"),
    "ulimit": ("Limits, to type in the shell that starts the process", "sh"),
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
        title="Which layer of this host breaks first",
        inputs=inputs,
        figures=figures,
        findings=(_headline(layers), *[_finding(layer) for layer in layers]),
        snippets=_snippets(layers),
        charts=tuple([chart for name in CHAINS for chart in _charts(name, layers)]),
        answers=tuple([figure.name for figure in figures if figure.name in _ANSWERS]),
    )


def _verdict(facts: HostFacts, layers: tuple[Layer, ...]) -> tuple[Figure, ...]:
    broken, narrow = first_broken(layers), tightest(layers)
    return (
        Figure(
            name="kernel", label="kernel", value=facts.kernel, group=_VERDICT,
            formula="/proc/sys/kernel/osrelease", source="proc(5)",
        ),
        Figure(
            name="first_broken_layer", label="first layer that breaks", group=_VERDICT,
            value="none" if broken is None else broken.rule.label,
            formula="the outermost layer that fails, or else the outermost with a warning",
            source=f"{ARTICLE}: each buffer must absorb the stall of the one inside it",
        ),
        Figure(
            name="tightest_layer", label="layer with the least room", group=_VERDICT,
            value="none" if narrow is None else narrow.rule.label,
            formula="the smallest found ÷ needed", source="the figures below",
        ),
        Figure(
            name="tightest_ratio", label="its room", group=_VERDICT, unit="times the need",
            value=None if narrow is None else narrow.ratio,
            formula="found ÷ needed; for latencies needed ÷ found", source="the figures below",
        ),
        Figure(
            name="unknown_layers", label="layers that are not known", group=_VERDICT,
            value=len([layer for layer in layers if layer.found is None]),
            formula="facts that this host does not report, or not to this user",
            source="the findings below",
        ),
    )  # fmt: skip


def _figures(layer: Layer) -> list[Figure]:
    """Return the found value with its need as the minimum; an upper limit has its own figure."""
    rule, found, needed = layer.rule, layer.found, layer.needed
    words = "unlimited" if isinstance(found, (int, float)) and found >= UNLIMITED else found
    most = rule.most and needed is not None
    formula = rule.formula
    if needed is not None:
        formula = f"{formula} = {text(needed, rule.unit)}"
    if rule.reading:
        formula = f"{formula}; found: {rule.reading}"
    figure = Figure(
        name=rule.name,
        label=rule.label,
        value=words,
        unit="" if isinstance(words, str) else rule.unit,
        formula=rule.reading or f"measured, against {rule.formula}" if most else formula,
        source=rule.source,
        minimum=None if most else needed,
        setting=rule.setting,
        group=rule.chain,
    )
    if not most:
        return [figure]
    stem, _, unit = rule.name.rpartition("_")
    allowed = replace(
        figure,
        name=f"{stem}_allowed_{unit}",
        label=f"{rule.label}: at most",
        value=needed,
        unit=rule.unit,
        formula=rule.formula,
    )
    return [figure, allowed]


def _headline(layers: tuple[Layer, ...]) -> Finding:
    broken = first_broken(layers)
    if broken is None:
        return ok("the chain", "every layer that is known has what is needed")
    word = "breaks first" if broken.severity == "fail" else "is the first warning"
    return Finding(
        severity=broken.severity,
        subject="the chain",
        cause=f"{broken.rule.label} {word}",
    )


def _finding(layer: Layer) -> Finding:
    return Finding(
        severity=layer.severity, subject=layer.rule.label, cause=layer.cause, fix=layer.fix
    )


def _snippets(layers: tuple[Layer, ...]) -> tuple[Snippet, ...]:
    largest: dict[tuple[str, str], Fix] = {}
    for fix in [fix for layer in layers for fix in layer.fixes if layer.severity != "ok"]:
        held = largest.get((fix.kind, fix.key))
        if held is None or held.value < fix.value:
            largest[fix.kind, fix.key] = fix
    texts = {
        kind: "\n".join([fix.line for fix in largest.values() if fix.kind == kind])
        for kind in _SNIPPETS
    }
    return tuple(
        [
            Snippet(title=_SNIPPETS[kind][0], language=_SNIPPETS[kind][1], text=text + "\n")
            for kind, text in texts.items()
            if text
        ]
    )


def _charts(chain: str, layers: tuple[Layer, ...]) -> list[Chart]:
    bars = [
        (layer.rule.label, min(max(layer.ratio, RATIO_MIN), RATIO_MAX))
        for layer in layers
        if layer.rule.chain == chain and layer.ratio is not None
    ]
    if not bars:
        return []
    names = tuple([name for name, _ in bars])
    return [
        Chart(
            title=f"{chain}: found against needed",
            x_label="",
            y_label=f"times the need, up to {RATIO_MAX:g}",
            kind="bar",
            y_log=True,
            curves=(
                Curve(label="found", x=names, y=tuple([ratio for _, ratio in bars])),
                Curve(label="needed", x=names, y=(1.0,) * len(bars)),
            ),
        )
    ]
