"""Rows, charts and stored results of benchmarks, and the host that they were measured on.

A benchmark module offers `measure(quick: bool)`, which returns rows, or a `Report`: rows and
charts. A row has the figure, its prediction from first principles before the measurement, and the
limit or peer of the same run: the ratio between the two is the result, because absolute times on
shared machines drift about two-fold between runs.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from penstock.apps.bench.machine import memory_bytes, processor

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "benchmarks" / "results"
"""Results that are kept, and their page."""

SCRATCH = ROOT / ".cache" / "bench"
"""Results of runs that are not kept, and tracebacks of benchmarks that failed."""

LEFT_FREE_BYTES = 2 << 30
SECONDS = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Measured figure. `ratio` is `value / reference`, or its inverse if `lower_is_better`.

    Args:
        aim_ratio: the least ratio that the product should reach.
        aim_value: the figure that it should reach, in `unit`.
        limit: why an aim is missed, as a profile and a bare program have shown.
        bare: figure of the bare program of the same run, in `unit`.
    """

    name: str
    value: float
    unit: str
    prediction: float | None = None
    reference: float | None = None
    reference_name: str = ""
    lower_is_better: bool = False
    note: str = ""
    aim_ratio: float | None = None
    aim_value: float | None = None
    limit: str = ""
    bare: float | None = None

    @property
    def met(self) -> bool | None:
        """True if every aim of the row is met, None for a row without an aim."""
        if self.aim_ratio is None and self.aim_value is None:
            return None
        if self.aim_ratio is not None and (self.ratio is None or self.ratio < self.aim_ratio):
            return False
        if self.aim_value is None:
            return True
        return (
            self.value <= self.aim_value if self.lower_is_better else self.value >= self.aim_value
        )

    @property
    def limited(self) -> bool:
        """Whether the reason of a missed aim is known, and the bare program misses it, too."""
        return bool(self.limit) and (
            self.bare is None or not replace(self, value=self.bare, bare=None).met
        )

    @property
    def ratio(self) -> float | None:
        """How many times better than the reference; None without one."""
        if not self.reference or not self.value:
            return None
        if self.lower_is_better:
            return self.reference / self.value
        return self.value / self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over time or over another quantity.

    Args:
        lines: the points of each line.
        marks: names of values on the horizontal axis.
        logarithmic: whether the vertical axis is.
        x: the horizontal axis; every other one than time is logarithmic.
    """

    title: str
    unit: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    marks: Mapping[str, float] = field(default_factory=dict)
    logarithmic: bool = False
    x: str = SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of a benchmark, and charts to go with them."""

    rows: Sequence[Row]
    charts: Sequence[Chart] = ()


def seconds(action: Callable[[], object]) -> float:
    """The wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@contextmanager
def memory_in_use() -> Iterator[float]:
    """Fill the page cache, as it is on a machine that has run for a while; seconds per GiB.

    A host gives a virtual machine a page of memory when it is first written to, and may take back
    what is free: 1.3 to 2.5 s per GiB where that was measured, ten times what a copy into memory
    in use costs. What keeps its data would be charged with it, what writes over one file not. Here
    it is paid before the runs: the pages hold a file of zeros, which the kernel drops for others.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = max(0, free - LEFT_FREE_BYTES)
    piece = memoryview(bytearray(1 << 20))
    with tempfile.TemporaryFile(prefix="penstock-bench-", buffering=0) as file:
        file.truncate(size)

        def read() -> None:
            while file.readinto(piece):
                pass

        yield seconds(read) / max(1.0, size / 2**30)


def host() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory_bytes() / 2**30),
        "processor": processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Stored run of one benchmark.

    Args:
        release: the release of the product; empty if the run did not store it.
        sources: the digest of each measured folder of the product's source.
    """

    benchmark: str
    taken_at: str
    quick: bool
    host: Mapping[str, str | int]
    release: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[Row]
    charts: Sequence[Chart] = ()


def save(folder: Path, result: Result) -> Path:
    """Write a run as JSON, with the ratio and the verdict of each row."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.benchmark}.json"
    body = asdict(result)
    for row, stored in zip(result.rows, body["rows"], strict=True):
        stored.update(ratio=row.ratio, met=row.met)
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path


def load(path: Path) -> Result:
    """Read a stored run; keys that older runs lack have their defaults."""
    body = json.loads(path.read_text())
    known = {item.name for item in fields(Row)}
    rows = [Row(**{key: row[key] for key in known & row.keys()}) for row in body.pop("rows")]
    charts = [_chart(**chart) for chart in body.pop("charts", ())]
    return Result(**body, rows=rows, charts=charts)


def _chart(*, lines: Mapping[str, Sequence[tuple[float, float]]], **others: Any) -> Chart:
    return Chart(lines={name: [(x, y) for x, y in lines[name]] for name in lines}, **others)


def load_all(folder: Path) -> list[Result]:
    """Read the stored runs of a folder by name."""
    return [load(path) for path in sorted(folder.glob("*.json"))]


def figure(value: float | None) -> str:
    """A figure with three significant digits; a dash for none."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
