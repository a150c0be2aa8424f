"""Layer of the chain: the found value, the need, and the consequences.

    found, needed ──> judged(rule, …) ──> Layer: ok | note | warn | fail, cause, fix, fixes

A rule describes a layer, and the severity of a shortage. An unknown fact gives a note with the
reason, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.planner.host_check.facts import UNLIMITED
from penstock.planner.quantities import format_quantity
from penstock.planner.results import Number, Severity

RECEIVE: Final = "Receive path, from the wire inwards"
BROKER: Final = "The broker, from its sockets to its disk and clock"
AGENT: Final = "The host agent, on its Unix socket"
CHAINS: Final = (RECEIVE, BROKER, AGENT)

RANKS: Final[Mapping[Severity, int]] = {"ok": 0, "note": 1, "warn": 2, "fail": 3}

FixKind = Literal["sysctl", "ethtool", "ulimit", "systemd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Command line; of two layers with the same `key` the larger value wins."""

    kind: FixKind
    key: str
    value: int
    rest: str = ""

    @property
    def line(self) -> str:
        if self.kind == "sysctl":
            middle = f"'{self.rest} {self.value}'" if self.rest else str(self.value)
            return f"sysctl -w {self.key}={middle}"
        if self.kind == "ethtool":
            return f"ethtool {self.key} {self.value}"
        if self.kind == "ulimit":
            return f"ulimit {self.key} {self.value}"
        return f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Description of a layer. `short` is the severity of a shortage.

    `formula` is that of the need, `reading` explains the found number if its label does not.
    """

    name: str
    label: str
    chain: str
    unit: str = ""
    setting: str = ""
    formula: str
    source: str
    short: Severity = "fail"
    reading: str = ""
    most: bool = False
    """Whether the need is an upper limit, as for a latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    rule: Rule
    found: Number | str | None
    needed: Number | None
    severity: Severity
    cause: str
    fix: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Found value as a multiple of the need; None without a number or limit."""
        found, needed = self.found, self.needed
        if found is None or isinstance(found, str) or needed is None or found >= UNLIMITED:
            return None
        if self.rule.most:
            found, needed = needed, found
        return found / needed if needed > 0 else None


def text(value: Number, unit: str) -> str:
    """Return a number for display."""
    return "unlimited" if value >= UNLIMITED else format_quantity(value, unit)


def judged(
    rule: Rule,
    found: Number | None,
    needed: Number,
    *,
    unread: str = "",
    cause: str = "",
    fix: str = "",
    fixes: tuple[Fix, ...] = (),
    short: Severity | None = None,
    detail: str = "",
) -> Layer:
    """Compare. `cause`, `fix` and `fixes` are for a shortage, `detail` for every result."""
    if found is None:
        return unknown(rule, unread, needed)
    enough = found <= needed if rule.most else found >= needed
    comparison = (
        f"found {text(found, rule.unit)}, allowed at most {text(needed, rule.unit)}"
        if rule.most
        else f"found {text(found, rule.unit)}, needed {text(needed, rule.unit)}"
    )
    if detail:
        comparison = f"{comparison} ({detail})"
    if enough:
        return Layer(rule=rule, found=found, needed=needed, severity="ok", cause=comparison)
    return Layer(
        rule=rule,
        found=found,
        needed=needed,
        severity=short or rule.short,
        cause=f"{comparison}: {cause}" if cause else comparison,
        fix=fix or "; ".join([fix.line for fix in fixes]),
        fixes=fixes,
    )


def unknown(rule: Rule, unread: str, needed: Number | None = None) -> Layer:
    return Layer(
        rule=rule, found=None, needed=needed, severity="note", cause=f"not known: {unread}"
    )


def counted(rule: Rule, count: int | None, *, unread: str, cause: str, fix: str) -> Layer:
    """Return a layer for a counter of losses: any value above 0 is a warning."""
    if count is None:
        return unknown(rule, unread)
    if count == 0:
        return Layer(rule=rule, found=0, needed=None, severity="ok", cause="none counted")
    return Layer(rule=rule, found=count, needed=None, severity=rule.short, cause=cause, fix=fix)


def informed(rule: Rule, found: Number | str | None, severity: Severity, cause: str, fix: str = "",
) -> Layer:  # fmt: skip
    return Layer(rule=rule, found=found, needed=None, severity=severity, cause=cause, fix=fix)


def first_broken(layers: tuple[Layer, ...]) -> Layer | None:
    """Return the outermost layer that fails, or else the outermost one with a warning."""
    for severity in ("fail", "warn"):
        for layer in layers:
            if layer.severity == severity:
                return layer
    return None


def tightest(layers: tuple[Layer, ...]) -> Layer | None:
    """Return the layer with the smallest ratio, of those that can break the chain."""
    measured = [
        (layer.ratio, place)
        for place, layer in enumerate(layers)
        if layer.ratio is not None and layer.rule.short != "note"
    ]
    return layers[min(measured)[1]] if measured else None
