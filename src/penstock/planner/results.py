"""What every plan gives: figures with their formulas, findings, texts to paste, and curves.

These are plain values. A table, a JSON document, a plot and a page are made from the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.base.settings import describe
from penstock.planner.quantities import format_quantity

Number = float | int
Severity = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One result.

    `name` is snake case with the unit last, for programs; `label` is what people read. `formula`
    is written with the labels of other figures and inputs, with the numbers that were put in
    where that helps; `source` is where it comes from. `minimum` is what just works, where `value`
    is what is recommended; `setting` the property, sysctl or topic config that it is a value of.
    """

    name: str
    label: str
    value: Number | str | bool | None
    unit: str = ""
    formula: str
    source: str
    minimum: Number | None = None
    setting: str = ""
    group: str = ""

    @property
    def text(self) -> str:
        return format_quantity(self.value, self.unit)

    @property
    def minimum_text(self) -> str:
        return "" if self.minimum is None else format_quantity(self.minimum, self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a person should know: the subject, the cause, and what mends it."""

    severity: Severity
    subject: str
    cause: str
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Text to paste: properties, sysctl lines, a command."""

    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line or row of bars: as many `y` as `x`. Bars have words for `x`."""

    label: str
    x: tuple[Number | str, ...]
    y: tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What one plot shows. `marks` are points of interest: a label and a place on the x axis."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    kind: Literal["line", "bar"] = "line"
    x_log: bool = False
    y_log: bool = False
    marks: Mapping[str, Number] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to one question, with the inputs that it was computed from."""

    title: str
    inputs: Any
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...] = ()
    snippets: tuple[Snippet, ...] = ()
    charts: tuple[Chart, ...] = ()
    answers: tuple[str, ...] = ()
    """Names of the figures that answer the question, which are shown first; none: all of them."""

    def figure(self, name: str) -> Figure:
        """The figure of this name; raises KeyError."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(name)

    @property
    def answered(self) -> tuple[Figure, ...]:
        """The figures that answer the question; raises KeyError."""
        return tuple([self.figure(name) for name in self.answers]) or self.figures

    def value(self, name: str) -> Any:
        """The value of the figure of this name; raises KeyError."""
        return self.figure(name).value

    @property
    def failed(self) -> bool:
        """Whether a finding says that it will not work."""
        return any([finding.severity == "fail" for finding in self.findings])


_NOTHING: Final = (0, -1, "")
"""Defaults that stand for what is not known, or is for the plan to find; False says no."""


def given_rows(inputs: Any) -> list[tuple[str, Any, str, str]]:
    """As `input_rows`, without inputs that nobody gave and that stand for nothing."""
    defaults = {info.name: info.default for info in describe(type(inputs))}
    return [
        row
        for row in input_rows(inputs)
        if row[1] is False or row[1] != defaults[row[0]] or row[1] not in _NOTHING
    ]


def changed_rows(inputs: Any) -> list[tuple[str, Any, str, str]]:
    """As `input_rows`, without inputs that are what they are by default."""
    defaults = {info.name: info.default for info in describe(type(inputs))}
    return [row for row in input_rows(inputs) if row[1] != defaults[row[0]]]


def input_rows(inputs: Any) -> list[tuple[str, Any, str, str]]:
    """Of each input: its name, value, unit, and what it is."""
    return [
        (info.name, getattr(inputs, info.attribute), info.unit, info.doc)
        for info in describe(type(inputs))
    ]
