"""Operations on lists of consecutive runs, where a run is a range of records in the same state.

A change of several spans of offsets takes one pass. It splits runs that it covers in part, and
joins adjacent runs with the same state, so that the number of runs is minimal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from penstock.broker.share.values import Run

Tag = TypeVar("Tag")
Span = tuple[int, int, Tag]
"""First offset, last offset, and a tag that the change function receives."""

Change = Callable[[Run, Tag], Run]

_FIRST: Final = attrgetter("first")


def index_of(runs: Sequence[Run], offset: int) -> int:
    return bisect_right(runs, offset, key=_FIRST) - 1


def clipped(run: Run, first: int, last: int) -> Run:
    """Return the part of a run within [first, last], which must overlap it."""
    first, last = max(first, run.first), min(last, run.last)
    return run if (first, last) == run[:2] else run._replace(first=first, last=last)


def append(runs: list[Run], run: Run) -> None:
    if runs and runs[-1][2:] == run[2:]:
        runs[-1] = runs[-1]._replace(last=run.last)
    else:
        runs.append(run)


def within(runs: Sequence[Run], first: int, last: int) -> Iterable[Run]:
    """Yield the parts of runs within [first, last]; the range may extend beyond the runs."""
    if not runs:
        return
    for index in range(max(index_of(runs, first), 0), len(runs)):
        run = runs[index]
        if run.first > last:
            return
        if run.last >= first:
            yield clipped(run, first, last)


def changed(runs: Sequence[Run], spans: Sequence[Span[Tag]], change: Change[Tag]) -> list[Run]:
    low, high = index_of(runs, spans[0][0]), index_of(runs, spans[-1][1])
    result = list(runs[:low])
    number = 0
    for run in runs[low : high + 1]:
        at = run.first
        while at <= run.last:
            while number < len(spans) and spans[number][1] < at:
                number += 1
            if number == len(spans) or spans[number][0] > run.last:
                append(result, clipped(run, at, run.last))
                break
            first, last, tag = spans[number]
            if first > at:
                append(result, clipped(run, at, first - 1))
                at = first
            last = min(last, run.last)
            append(result, change(clipped(run, at, last), tag))
            at = last + 1
    for run in runs[high + 1 : high + 2]:
        append(result, run)
    result += runs[high + 2 :]
    return result
