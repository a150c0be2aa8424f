"""Whole host check: all layers in order, the first broken one, commands, bars.

The order is that of the chain, outermost first: a loss outside cannot be repaired inside. So the
first broken layer is the outermost that fails, or, without one, the outermost with a warning. The
tightest layer is the one with the least room, whether it holds or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.planner.host_check.disk_layers import clock_layers, disk_layers
from penstock.planner.host_check.facts import UNLIMITED, HostFacts
from penstock.planner.host_check.inputs import (
    CHAIN_WORDS,
    CheckHostInputs,
    Configured,
    broker_memory,
    broker_threads,
)
from penstock.planner.host_check.layers import (
    BROKER,
    CHAINS,
    Fix,
    FixKind,
    Layer,
    first_broken,
    text,
    tightest,
)
from penstock.planner.host_check.process_layers import (
    cpu_layers,
    memory_layers,
    pressure_layers,
    task_layers,
)
from penstock.planner.host_check.receive_chain import receive_chain
from penstock.planner.host_check.sockets import agent_chain, socket_layers
from penstock.planner.receive_path.limits import ARTICLE
from penstock.planner.results import Chart, Curve, Figure, Finding, Plan, Snippet, ok

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
