"""Load beside a client whose latency is measured, and how much of what it costs is the machine's.

Whoever makes the load shares the cores with client and broker, which in production is somewhere
else. So a load is measured three times: at the client's broker (`HERE`), at another broker of the
same machine (`ELSEWHERE`), which shows what the machine's part is, and at the client's broker by
somebody who gives way to all others (`GIVING_WAY`, nice 19), which shows the broker's part.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool

from benchmarks.harness import Row

HERE, ELSEWHERE, GIVING_WAY = "here", "at another broker", "giving way"
_NICE = 19


@contextmanager
def load_makers() -> Iterator[Mapping[str, Pool]]:
    """A process that makes load, by way."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as usual, spawn.Pool(1, os.nice, (_NICE,)) as polite:
        yield {HERE: usual, ELSEWHERE: usual, GIVING_WAY: polite}


def explained(found_ms: Mapping[str, float]) -> str:
    """What the other two ways say, in words."""
    return (
        f"the same at another broker: {found_ms[ELSEWHERE]:.1f} ms,"
        f" by who gives way: {found_ms[GIVING_WAY]:.1f} ms"
    )


def compared_rows(
    name: str,
    found_ms: Mapping[str, Sequence[float]],
    predicted_times: Mapping[str, float],
    aim_times: float,
    note: str,
) -> list[Row]:
    """Return a row for each way with a prediction, which compares `HERE` with it.

    `found_ms` has the figures of each way, one a round. Predictions and the aim are multiples of
    the way's median.
    """
    value = statistics.median(found_ms[HERE])
    rounds = ", ".join(f"{figure:.2f}" for figure in found_ms[HERE])
    rows = []
    for way, times in predicted_times.items():
        reference = statistics.median(found_ms[way])
        rows.append(
            Row(
                name=name,
                value=value,
                unit="ms",
                prediction=reference * times,
                reference=reference,
                reference_name=way,
                lower_is_better=True,
                note=f"{value / reference:.2f} times, the aim is {aim_times:g}; rounds: {rounds}"
                f" ms; {note}",
            )
        )
    return rows
