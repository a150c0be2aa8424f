"""Results of a plan: figures with formulas, findings, snippets of configuration, and charts.

Results are plain values. Tables, JSON documents, plots and web pages are made from the same values.
Figures are declared on the functions that compute them:

    class Sizing:
        @figure("bandwidth of a stream", "bytes/s", group="wire", source=ARTICLE,
                formula="{inputs.rate:messages/s} × {message_wire_bytes} on-wire bytes")
        def stream_bytes_per_second(self) -> float: ...

    sizing.stream_bytes_per_second     its value, like a property
    figures_of(sizing)                 all declared figures as `Figure` objects, in order

The name of a figure is the name of its function. Labels, formulas and sources are templates: a name
in braces is an attribute of the object, or of one of its attributes. A unit may follow the name
after a colon; `:g` and `:.3g` are Python's own formats. A text that needs more logic is a function
of the object.

Charts are drawn as PNG or SVG, with matplotlib from the extra `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from io import BytesIO
from string import Formatter
from typing import Any, Final, Generic, Literal, TypeVar, overload

from penstock.base.errors import InvalidError
from penstock.base.extras import required
from penstock.base.settings import describe
from penstock.planner.quantities import InvalidPlanFile, format_quantity

Number = float | int
Severity = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Result of a plan, with its formula.

    `name` is for programs, in snake case with the unit last; `label` is for people. `formula` uses
    the labels of other figures and of inputs, and may include their numbers. `source` names the
    origin of the formula. If `value` is a recommendation, `minimum` is the lowest sufficient value.
    `setting` names the property, sysctl or topic setting that takes the value.
    """

    name: str
    label: str
    value: Number | str | bool | None
    unit: str
    formula: str
    source: str
    _: KW_ONLY
    minimum: Number | None = None
    setting: str = ""
    group: str = ""

    @property
    def text(self) -> str:
        return format_quantity(self.value, self.unit)

    @property
    def minimum_text(self) -> str:
        return "" if self.minimum is None else format_quantity(self.minimum, self.unit)


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding about a requirement, with its cause and the fix.

    Severities: `ok` it is met; `note` a person should check it; `warn` it fails sometimes; `fail`
    it fails.
    """

    severity: Severity
    subject: str
    cause: str
    fix: str = ""


ok: Final = partial(Finding, "ok")
note: Final = partial(Finding, "note")
warn: Final = partial(Finding, "warn")
fail: Final = partial(Finding, "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Line or row of bars: `y` has one value for each value of `x`, which is a word for a bar."""

    label: str
    x: tuple[Number | str, ...]
    y: tuple[Number, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Plot of curves. `marks` labels positions on the x axis, such as the planned value."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    kind: Literal["line", "bar"] = "line"
    x_log: bool = False
    y_log: bool = False
    marks: Mapping[str, Number] | None = None


def curves(
    x: Sequence[Number | str], by_label: Mapping[str, Iterable[Number]]
) -> tuple[Curve, ...]:
    """Return curves over the same `x`."""
    return tuple([Curve(label=label, x=tuple(x), y=tuple(y)) for label, y in by_label.items()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    title: str
    inputs: Any
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...] = ()
    snippets: tuple[Snippet, ...] = ()
    charts: tuple[Chart, ...] = ()
    answers: tuple[str, ...] = ()
    """Names of the figures that answer the question and are shown first; empty means all."""

    def figure(self, name: str) -> Figure:
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(name)

    @property
    def answered(self) -> tuple[Figure, ...]:
        return tuple([self.figure(name) for name in self.answers]) or self.figures

    def value(self, name: str) -> Any:
        return self.figure(name).value

    @property
    def failed(self) -> bool:
        return any([finding.severity == "fail" for finding in self.findings])


_NOTHING: Final = (0, -1, "")
"""Defaults that mean "unknown" or "to be planned". False is not among them: it means no."""


Row = tuple[str, Any, str, str]
"""Name, value, unit and documentation of an input."""


def given_rows(inputs: Any) -> list[Row]:
    """Return the inputs to list with a plan, without those that are unknown or to be planned.

    An input is listed if it differs from its default, or if its default is not in `_NOTHING`.
    """
    changed = changed_rows(inputs)
    return [
        row
        for row in input_rows(inputs)
        if row[1] is False or row in changed or row[1] not in _NOTHING
    ]


def changed_rows(inputs: Any) -> list[Row]:
    defaults = {info.name: info.default for info in describe(type(inputs))}
    return [row for row in input_rows(inputs) if row[1] != defaults[row[0]]]


def input_rows(inputs: Any) -> list[Row]:
    return [
        (info.name, getattr(inputs, info.attribute), info.unit, info.doc)
        for info in describe(type(inputs))
    ]


Value = TypeVar("Value")
Text = str | Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of a figure, with the fields of `Figure`; `shown` returns whether to show it."""

    label: Text
    unit: str = ""
    _: KW_ONLY
    group: str = ""
    formula: Text
    source: Text
    setting: str = ""
    minimum: Callable[[Any], Number] | None = None
    shown: Callable[[Any], Any] | None = None

    def __call__(self, compute: Callable[[Any], Value]) -> Computed[Value]:
        return Computed(compute, self)


figure: Final = Declaration


class Computed(Generic[Value]):
    def __init__(self, compute: Callable[[Any], Value], declared: Declaration) -> None:
        self.compute = compute
        self.declared = declared
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Computed[Value]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...

    def __get__(self, owner: object, kind: type) -> Computed[Value] | Value:
        return self if owner is None else self.compute(owner)


def figures_of(sizing: object, *groups: str) -> tuple[Figure, ...]:
    """Return the figures that the object's class declares, in order; only of `groups` if given."""
    declared = [item for item in vars(type(sizing)).items() if isinstance(item[1], Computed)]
    return tuple(
        [
            _figure(name, one, sizing)
            for name, one in declared
            if (not groups or one.declared.group in groups)
            and (one.declared.shown is None or one.declared.shown(sizing))
        ]
    )


def _figure(name: str, one: Computed[Any], sizing: object) -> Figure:
    declared = one.declared
    return Figure(
        name, filled(declared.label, sizing), one.compute(sizing), declared.unit,
        filled(declared.formula, sizing), filled(declared.source, sizing), group=declared.group,
        minimum=None if declared.minimum is None else declared.minimum(sizing),
        setting=declared.setting,
    )  # fmt: skip


class _Template(Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        found = kwargs["of"]
        for name in field_name.split("."):
            found = getattr(found, name)
        return found, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if not format_spec or format_spec == "g" or not format_spec[0].isalpha():
            return format(value, format_spec)
        return format_quantity(value, format_spec)


_TEMPLATE: Final = _Template()


def filled(text: Text, sizing: object) -> str:
    return _TEMPLATE.vformat(text, (), {"of": sizing}) if isinstance(text, str) else text(sizing)


_FORMATS: Final = {".png": "png", ".svg": "svg"}
_WIDTH_INCHES: Final = 9.0
_HEIGHT_INCHES: Final = 4.0
_INSIDE_MAX: Final = 6
"""Maximum number of curves whose legend is drawn inside the plot."""
_COLOURS: Final = 10
"""Number of colours; further curves repeat them with another line style."""
_STYLES: Final = ("-", "--", ":")


def draw(plan: Plan, suffix: str) -> bytes:
    """Draw all charts of a plan, one below the other, and return the file's bytes.

    `suffix` is that of the file to write, and selects the format.

    Raises:
        InvalidPlanFile: the suffix is unknown.
        InvalidError: the plan has no charts.
        MissingExtra: matplotlib is not installed.
    """
    kind = _FORMATS.get(suffix.lower())
    if kind is None:
        ends = " or ".join(_FORMATS)
        raise InvalidPlanFile(f"plot files end in {ends}, not in {suffix or 'nothing'!r}")
    if not plan.charts:
        raise InvalidError(f"plan {plan.title!r} has no charts to draw")
    figure = required("matplotlib.figure", "plots")
    height = _HEIGHT_INCHES * len(plan.charts)
    drawing = figure.Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    drawing.suptitle(plan.title)
    for place, chart in enumerate(plan.charts, 1):
        _draw_chart(drawing.add_subplot(len(plan.charts), 1, place), chart)
    buffer = BytesIO()
    drawing.savefig(buffer, format=kind)
    return buffer.getvalue()


def _draw_chart(axes: Any, chart: Chart) -> None:
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    for index, curve in enumerate(chart.curves):
        if chart.kind == "bar":
            width = 0.8 / len(chart.curves)
            bar_positions = [at - 0.4 + width * (index + 0.5) for at in range(len(curve.x))]
            axes.bar(bar_positions, curve.y, width=width, label=curve.label)
            axes.set_xticks(
                range(len(curve.x)), [str(at) for at in curve.x], rotation=20, ha="right"
            )
        else:
            style = _STYLES[index // _COLOURS % len(_STYLES)]
            axes.plot(curve.x, curve.y, label=curve.label, linestyle=style)
    for label, place in (chart.marks or {}).items():
        axes.axvline(place, linestyle="--", linewidth=0.8, color="grey")
        axes.annotate(
            label, (place, 1.0), xycoords=("data", "axes fraction"), rotation=90, va="top"
        )
    if chart.x_log:
        axes.set_xscale("log")
    if chart.y_log:
        axes.set_yscale("log")
    if len(chart.curves) > _INSIDE_MAX:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    elif len(chart.curves) > 1:
        axes.legend()
    axes.grid(visible=True, alpha=0.3)
