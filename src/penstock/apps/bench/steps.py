"""Measurement in rounds: runs steps and returns the median of each figure, without I/O or clock.

Each round runs every step once. If the machine becomes slower or faster over time, all steps are
affected alike, and ratios of medians stay valid. A figure's name ends with its unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from penstock.planner.calibration import Measured

Figures = Mapping[str, float]
"""Figures of one run by name, without those that could not be measured."""

RUNS: Final = 5
QUICK_RUNS: Final = 3
QUICK_BELOW_SECONDS: Final = 30.0
_UNITS: Final = {
    "_mb_per_s": "MB/s", "_s_per_gb": "s/GB", "_ms": "ms", "requests_per_s": "requests/s",
}  # fmt: skip
_SIGNIFICANT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Step of a measurement.

    `run` measures for a number of seconds and returns figures. `hows` describes for each figure how
    it is measured. `share` is the step's part of the total time, relative to the shares of other
    steps.
    """

    label: str
    share: float
    run: Callable[[float], Figures]
    hows: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ratio of a broker's measured figure to a limit of this host, such as that of its disk.

    `name` is the ratio's own name; `figure` and `limit` are the names of measured figures.
    """

    name: str
    figure: str
    limit: str


RATIOS: Final = (
    Ratio(name="produce_to_loopback", figure="produce_mb_per_s", limit="loopback_mb_per_s"),
    Ratio(name="consume_to_loopback", figure="consume_mb_per_s", limit="loopback_mb_per_s"),
    Ratio(name="produce_to_disk_append", figure="produce_mb_per_s", limit="disk_append_mb_per_s"),
    Ratio(name="produce_p50_to_sync_p50", figure="produce_p50_ms", limit="sync_p50_ms"),
)


def runs_of(seconds: float) -> int:
    """Return the number of rounds in a measurement of `seconds`."""
    return QUICK_RUNS if seconds < QUICK_BELOW_SECONDS else RUNS


def measure(
    steps: Sequence[Step], *, seconds: float, runs: int, begin: Callable[[str], None]
) -> dict[str, Measured]:
    """Run all steps one after the other, `runs` times, and return the median of each figure.

    `seconds` is the time of all runs together; preparations take additional time. `begin` is called
    with a step's label before each run of it.
    """
    shares = sum([step.share for step in steps])
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for step in steps:
            begin(step.label)
            for name, value in step.run(seconds * step.share / shares / runs).items():
                found[name].append(value)
    hows = {name: how for step in steps for name, how in step.hows.items()}
    return {
        name: Measured(
            value=float(f"{median(values):.{_SIGNIFICANT}g}"),
            unit=unit_of(name),
            how=hows[name],
            runs=len(values),
        )
        for name, values in found.items()
    }


def unit_of(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def ratios(measured: Mapping[str, Measured]) -> dict[str, float]:
    """Return the ratios for which both the figure and the limit were measured."""
    return {
        ratio.name: round(measured[ratio.figure].value / measured[ratio.limit].value, 3)
        for ratio in RATIOS
        if ratio.figure in measured and ratio.limit in measured and measured[ratio.limit].value
    }


def quantile_hows(stem: str, how: str) -> dict[str, str]:
    """Return the descriptions of a latency's two figures, p50 and p99 of a run.

    The figures are those of `quantiles_ms`; `how` says how the latency is measured.
    """
    return {f"{stem}_p50_ms": f"{how}; p50 of a run", f"{stem}_p99_ms": f"{how}; p99 of a run"}
