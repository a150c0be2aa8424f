"""Drawing of a plan's charts as PNG or SVG, with matplotlib from the extra `plots`."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final

from penstock.base.errors import InvalidError
from penstock.planner.errors import InvalidPlanFile
from penstock.planner.results import Chart, Plan

_FORMATS: Final = {".png": "png", ".svg": "svg"}
_WIDTH_INCHES: Final = 9.0
_HEIGHT_INCHES: Final = 4.0
_INSIDE_MAX: Final = 6
"""Number of curves up to which the legend is inside the plot."""
_COLOURS: Final = 10
"""Colours before they repeat with another line style."""
_STYLES: Final = ("-", "--", ":")


def draw(plan: Plan, suffix: str) -> bytes:
    """Draw all charts of a plan, one below the other, in the format of a file's suffix.

    Raises:
        InvalidPlanFile: an unknown suffix.
        InvalidError: a plan without charts, or matplotlib is not installed.
    """
    kind = _FORMATS.get(suffix.lower())
    if kind is None:
        ends = " or ".join(_FORMATS)
        raise InvalidPlanFile(f"plot files end in {ends}, and not in {suffix or 'nothing'!r}")
    if not plan.charts:
        raise InvalidError(f"plan {plan.title!r} has no charts to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise InvalidError("plots need matplotlib: pip install 'penstock[plots]'") from missing
    height = _HEIGHT_INCHES * len(plan.charts)
    drawing = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
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
