"""The generated page of results: one table and one plot per benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import figure


def write(folder: Path) -> Path:
    """Make `README.md` and its plots from the JSON files of a folder."""
    parts = [
        "# Results\n\nMade by `make bench-record`. Ratios are measured in one run on one machine;"
        " absolute figures drift between runs. × better is against the reference of the same row.\n"
    ]
    for path in sorted(folder.glob("*.json")):
        body = json.loads(path.read_text())
        plot = _plot(folder, body)
        described = ", ".join(f"{key} {value}" for key, value in body["host"].items())
        parts.append(f"\n## {body['benchmark']}\n\n{body['taken_at']}; {described}")
        parts.append(" (quick run)\n" if body["quick"] else "\n")
        parts.append("\n| what | measured | unit | predicted | against | reference | × better |\n")
        parts.append("|---|--:|---|--:|---|--:|--:|\n")
        for row in body["rows"]:
            cells = (
                row["name"],
                figure(row["value"]),
                row["unit"],
                figure(row["prediction"]),
                row["reference_name"],
                figure(row["reference"]),
                figure(row["ratio"]),
            )
            parts.append("| " + " | ".join(cells) + " |\n")
        parts.extend(f"\n- {row['name']}: {row['note']}" for row in body["rows"] if row["note"])
        if plot is not None:
            parts.append(f"\n\n![Ratios of {body['benchmark']}]({plot.name})\n")
        over_time = _charts(folder, body)
        if over_time is not None:
            parts.append(f"\n![{body['benchmark']} over time]({over_time.name})\n")
    page = folder / "README.md"
    page.write_text("".join(parts))
    return page


def _plot(folder: Path, body: dict[str, Any]) -> Path | None:
    """Draw the ratios of one benchmark as bars on a logarithmic axis; None without ratios."""
    rows = [row for row in body["rows"] if row["ratio"] is not None]
    if not rows:
        return None
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    height = 0.8 + 0.28 * len(rows)
    drawing, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    labels = [f"{row['name']}  (vs {row['reference_name']})" for row in rows]
    ratios = [row["ratio"] for row in rows]
    colours = ["#2a7f62" if ratio >= 1 else "#b5652a" for ratio in ratios]
    axes.barh(labels, ratios, color=colours)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("times better than the reference of the same run")
    axes.set_title(body["benchmark"], loc="left")
    path = folder / f"{body['benchmark']}.png"
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
    return path


def _charts(folder: Path, body: dict[str, Any]) -> Path | None:
    """Draw what went on over time, one panel below the other; None without charts."""
    charts = body.get("charts")
    if not charts:
        return None
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    drawing, panels = pyplot.subplots(
        len(charts),
        figsize=(9, 2.2 * len(charts)),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    for chart, axes in zip(charts, panels[:, 0], strict=True):
        for name, points in chart["lines"].items():
            axes.plot([at for at, _ in points], [value for _, value in points], label=name)
        for name, at in chart["marks"].items():
            axes.axvline(at, color="#444444", linewidth=0.8, linestyle=":")
            axes.annotate(name, (at, 1), xycoords=("data", "axes fraction"), fontsize=8, va="top")
        if chart["logarithmic"]:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(chart["title"], loc="left", fontsize=10)
        axes.set_ylabel(chart["unit"])
        axes.legend(fontsize=8, loc="upper left")
    panels[-1, 0].set_xlabel("seconds")
    path = folder / f"{body['benchmark']}-time.png"
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
    return path
