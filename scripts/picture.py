"""Draw the picture of README.md: `python scripts/picture.py` writes docs/architecture.svg.

The source is docs/architecture.toml: boxes with their places, and arrows between them.
"""

from __future__ import annotations

import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text

FOLDER = Path(__file__).resolve().parent.parent / "docs"
SOURCE = FOLDER / "architecture.toml"
PICTURE = FOLDER / "architecture.svg"
INK, PAPER, ACCENT = "#1f2933", "#ffffff", "#d9e8f6"


def load() -> dict[str, Any]:
    """Return the source of the picture."""
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))


def drawn(source: dict[str, Any]) -> tuple[Figure, dict[str, Text]]:
    """Draw the picture.

    Returns:
        The figure, and the text of each box by the box's name.
    """
    width, height = source["size"]
    figure = Figure(figsize=(width / 2.4, height / 2.4), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    patches, texts = {}, {}
    for name, box in source["box"].items():
        x, y, box_width, box_height = box["at"]
        strong = box.get("strong", False)
        patches[name] = axes.add_patch(
            FancyBboxPatch(
                (x, y), box_width, box_height, boxstyle="round,pad=0,rounding_size=0.2",
                facecolor=ACCENT if strong else PAPER, edgecolor=INK, linewidth=1.2,
            )
        )  # fmt: skip
        texts[name] = axes.text(
            x + box_width / 2, y + box_height / 2, box["text"], ha="center", va="center",
            fontsize=9, color=INK, linespacing=1.25,
        )  # fmt: skip
    for names in source["arrows"]:
        begin, end = (_middle(source["box"][name]["at"]) for name in names)
        axes.add_patch(
            FancyArrowPatch(
                begin, end, patchA=patches[names[0]], patchB=patches[names[1]],
                arrowstyle="-|>", mutation_scale=11, color=INK, linewidth=1.1, shrinkA=0, shrinkB=0,
                zorder=0,
            )
        )  # fmt: skip
    return figure, texts


def _middle(place: list[float]) -> tuple[float, float]:
    x, y, width, height = place
    return x + width / 2, y + height / 2


def svg() -> str:
    """Return the picture as SVG; the same text for the same source."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "penstock"}):
        figure, _ = drawn(load())
        file = BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    lines = file.getvalue().decode().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
