"""`pipelines` with backlogs of 20 M rows, where the start of Java and Spark counts less.

Prediction: the query has the ratios of 2 M rows, or somewhat more, as Java has compiled its code
after the first of ten batches. The whole command, of which 8 s are Spark's start and stop, reaches
three times the program by hand. An upsert is limited by the way of its rows from Java to Python;
its merges take 1.0 CPU s per million rows (`main_job/merges.py`).
"""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.pipelines import SCALES, SINKS, measure_backlogs


def measure(*, quick: bool = False) -> list[Row]:
    """Every sink with 20 M rows; with `quick`, with the rows of a quick run of `pipelines`."""
    return measure_backlogs(SCALES["quick" if quick else "full"], SINKS)
