"""The generated page of results: the aims, then a table and plots for each benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.aims import COLUMNS, aims, limits
from benchmarks.harness import SECONDS, Result, figure, load_all

HEAD = """\
# Results

Made by `make bench-record`. Ratios are measured in one run on one machine; absolute figures drift \
between runs. × better is against the reference of the same row.
"""
AIMS = """
## Aims

A *limit* is an aim that cannot be met. The reasons are below the table, with the figures of \
programs that do only the unavoidable part.

"""


def write(folder: Path) -> Path:
    """Write `README.md` and its plots from the JSON files of a folder."""
    results = load_all(folder)
    for result in results:
        if _has_ratios(result):
            _plot(folder / _plot_name(result), result)
        if result.charts:
            _charts(folder / _charts_name(result), result)
    page = folder / "README.md"
    page.write_text(text(results))
    return page


def text(results: Sequence[Result]) -> str:
    """Return the page of results."""
    parts = [HEAD, *_aims(results)]
    for result in results:
        parts.extend(_section(result))
    return "".join(parts)


def _has_ratios(result: Result) -> bool:
    return any(row.ratio is not None for row in result.rows)


def _plot_name(result: Result) -> str:
    return f"{result.benchmark}.png"


def _charts_name(result: Result) -> str:
    return f"{result.benchmark}-time.png"


def _aims(results: Sequence[Result]) -> Iterator[str]:
    cells = list(aims(results))
    if cells:
        yield AIMS
        yield _line(COLUMNS) + "|---|---|---|---|---|\n"
        yield from map(_line, cells)
        yield "\n"
        yield from (f"- {name}: {limit}\n" for name, limit in limits(results))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _section(result: Result) -> Iterator[str]:
    described = ", ".join(f"{key} {value}" for key, value in result.host.items())
    yield f"\n## {result.benchmark}\n\n{result.taken_at}; {described}"
    yield f"; release {result.release}" if result.release else ""
    yield " (quick run)\n" if result.quick else "\n"
    yield "\n| what | measured | unit | predicted | against | reference | × better |\n"
    yield "|---|--:|---|--:|---|--:|--:|\n"
    for row in result.rows:
        against = row.reference_name
        measured, predicted, reference = map(figure, (row.value, row.prediction, row.reference))
        yield _line(
            (row.name, measured, row.unit, predicted, against, reference, figure(row.ratio))
        )
    yield from (f"\n- {row.name}: {row.note}" for row in result.rows if row.note)
    if _has_ratios(result):
        yield f"\n\n![Ratios of {result.benchmark}]({_plot_name(result)})\n"
    if result.charts:
        yield f"\n![Charts of {result.benchmark}]({_charts_name(result)})\n"


def _plot(path: Path, result: Result) -> None:
    """Draw the ratios of one benchmark as bars on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = [(row, row.ratio) for row in result.rows if row.ratio is not None]
    height = 0.8 + 0.28 * len(rows)
    drawing, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    labels = [f"{row.name}  (vs {row.reference_name})" for row, _ in rows]
    ratios = [ratio for _, ratio in rows]
    colours = ["#2a7f62" if ratio >= 1 else "#b5652a" for ratio in ratios]
    axes.barh(labels, ratios, color=colours)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("times better than the reference of the same run")
    axes.set_title(result.benchmark, loc="left")
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)


def _charts(path: Path, result: Result) -> None:
    """Draw the charts, one panel below the other, or three beside each other if axes differ."""
    charts = result.charts
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shared = len({chart.x for chart in charts}) == 1
    columns = 1 if shared else 3
    lines = -(-len(charts) // columns)
    drawing, panels = pyplot.subplots(
        lines,
        columns,
        figsize=(9 if shared else 15, (2.2 if shared else 2.8) * lines),
        layout="constrained",
        sharex=shared,
        squeeze=False,
    )
    for chart, axes in zip(charts, panels.flat, strict=False):
        over_time = chart.x == SECONDS
        for name, points in chart.lines.items():
            marker = "" if over_time else "o"
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, label=name, marker=marker, markersize=3)
        for name, at in chart.marks.items():
            axes.axvline(at, color="#444444", linewidth=0.8, linestyle=":")
            axes.annotate(name, (at, 1), xycoords=("data", "axes fraction"), fontsize=8, va="top")
        if not over_time:
            axes.set_xscale("log")
        if chart.logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(chart.title, loc="left", fontsize=10)
        axes.set_ylabel(chart.unit)
        if not shared or chart is charts[-1]:
            axes.set_xlabel(chart.x)
        axes.legend(fontsize=8, loc="upper left" if over_time else "best")
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
