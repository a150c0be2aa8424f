"""Figures of measurements: quantiles, medians of interleaved runs, processor time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final

from penstock.base.errors import UnavailableError

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def quantiles_ms(stem: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return `<stem>_p50_ms` and `<stem>_p99_ms` of latencies in seconds."""
    return {
        f"{stem}_p50_ms": percentile(seconds, 0.5) * 1000,
        f"{stem}_p99_ms": percentile(seconds, 0.99) * 1000,
    }


def interleaved(
    contenders: Mapping[str, Callable[[], float]], *, runs: int = 5
) -> dict[str, float]:
    """Run every contender in turn, `runs` times, and return each one's median.

    Interleaving spreads the machine's drift evenly over all of them.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            figures[name].append(contender())
    return {name: median(values) for name, values in figures.items()}


def cpu_seconds(pid: int) -> float | None:
    """Return a process's user and system seconds; None if the kernel does not report them.

    Raises:
        UnavailableError: the process has ended.
    """
    if not Path("/proc/self/stat").exists():
        return None
    process = Path("/proc") / str(pid)
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        if not (process / "schedstat").exists():
            return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        total = 0
        for task in (process / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9
    except OSError:
        raise UnavailableError(f"the broker's process {pid} has ended") from None
