"""Planning of Spark tasks from extents.

A Python task of Spark costs 32 to 80 ms of overhead, so small ranges are packed together and large
ones are cut. A task is a list of slices. A slice is a run of bytes in one file or object, and the
offsets to read from it. Objects are cut between batches. Files are cut at offsets, because the
broker's index knows their byte positions; a batch that spans a cut is read by both tasks. A range
with its own signed URL is never cut.

Slices of files are distributed evenly over the tasks. A write-ahead object has records of many
partitions, so tasks are filled object by object: one request then reads all of them.

    objects in order of commit   [p0 p1 p2][p0 p2][p1 p2 ...]
    tasks                        |─── task 0 ────|── task 1 ─|

Within a task the records of a partition come in offset order, because objects are in commit order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final

import numpy as np

from penstock.archive.planning import batches_of, trimmed
from penstock.base.ids import TopicPartition
from penstock.records.extents import Extent, SignedRange
from penstock.records.transactions import AbortedRange
from penstock.spark.reads.chunks import Slice, Task, overlapping
from penstock.spark.reads.extents import ExtentSource

TASK_BYTES_MIN: Final = 2 << 20
TASK_BYTES_MAX: Final = 512 << 20
"""Most bytes of a task: some seconds of work, which a retried task repeats."""

Range = tuple[int, int]
_NONE_SIGNED: Final[Mapping[str, SignedRange]] = {}


def plan(
    ranges: Mapping[TopicPartition, Range], source: ExtentSource | None, *, parallelism: int
) -> list[Task]:
    """Return tasks that together read every range once.

    Args:
        ranges: offsets [start, end) by partition; empty ranges get no task.
        source: source of extents; with None, all records are fetched from the broker.
        parallelism: number of tasks that can run at the same time.

    Raises:
        ExtentsUnavailable: as in `ExtentSource.extents`.
    """
    slices = [item for at in sorted(ranges) for item in slices_of(at, *ranges[at], source)]
    target = task_bytes(sum(item.load_bytes for item in slices), parallelism)
    pieces = [piece for item in slices for piece in _cut(item, target, source)]
    # Pieces may share batches, so the slices before cutting are summed.
    file_bytes = sum(item.size_bytes for item in slices if not item.store)
    files = _evenly([item for item in pieces if not item.store], -(-file_bytes // target))
    objects = _object_by_object([item for item in pieces if item.store], target)
    if len(files) == len(objects) == 1:  # one task is enough if both are small
        both = (*files[0].slices, *objects[0].slices)
        if sum(item.size_bytes for item in both) <= target:
            return [Task(both)]
    return [*files, *objects]


def renewed(slices: Sequence[Slice], source: ExtentSource) -> list[Slice]:
    """Return the slices of a task, with new signed URLs for those that have one.

    The extents, and so the slices, may have changed since the task was planned.

    Raises:
        ExtentsUnavailable: as in `ExtentSource.extents`.
    """
    runs: list[tuple[TopicPartition, int, int]] = []
    for item in sorted(slices, key=lambda item: (item.at, item.start)):
        if item.signed is None:
            continue
        if runs and (runs[-1][0], runs[-1][2]) == (item.at, item.start):
            runs[-1] = (item.at, runs[-1][1], item.end)
        else:
            runs.append((item.at, item.start, item.end))
    found = [item for item in slices if item.signed is None]
    found += [item for run in runs for item in slices_of(*run, source)]
    stored = [item for item in found if item.store]
    return [*(item for item in found if not item.store), *_in_order(stored)]


def task_bytes(total_bytes: int, parallelism: int) -> int:
    """Return the target size of a task: one task per slot, or several of equal size.

    It is at least `TASK_BYTES_MIN` and at most `TASK_BYTES_MAX`.
    """
    share = -(-total_bytes // max(1, parallelism))
    tasks_of_a_slot = max(1, -(-share // TASK_BYTES_MAX))
    return max(TASK_BYTES_MIN, -(-share // tasks_of_a_slot))


def slices_of(at: TopicPartition, start: int, end: int, source: ExtentSource | None) -> list[Slice]:
    """Return slices that cover the offsets [start, end) in order and without gaps."""
    if start >= end:
        return []
    if source is None:
        return [Slice(at=at, start=start, end=end)]
    found = source.extents(at, start, end)
    return list(_slices(at, start, end, found.store, found.extents, found.aborted, found.signed))


def _slices(
    at: TopicPartition,
    start: int,
    end: int,
    store: str,
    extents: Iterable[Extent],
    aborted: Sequence[AbortedRange],
    signed: Mapping[str, SignedRange] = _NONE_SIGNED,
) -> Iterator[Slice]:
    """Yield a slice for each extent of a file, and for each run of adjacent extents in an object.

    Offsets without an extent (removed by compaction, or not in a file yet) become slices that are
    read from the broker.
    """
    runs: list[list[Extent]] = []
    for extent in sorted(extents, key=lambda extent: extent.base_offset):
        wanted = trimmed(extent, start, end)
        if wanted is None:
            continue
        last = runs[-1][-1] if runs and store else None
        if last and (last.key, last.next_offset) == (wanted.key, wanted.base_offset):
            runs[-1].append(wanted)
        else:
            runs.append([wanted])
    here = start
    for run in runs:
        low, high = max(here, run[0].base_offset), min(end, run[-1].next_offset)
        if low >= high:
            continue
        if low > here:
            yield Slice(at=at, start=here, end=low)
        yield Slice(
            at=at,
            start=low,
            end=high,
            store=store,
            extents=tuple(run),
            aborted=overlapping(aborted, low, high),
            signed=signed.get(run[0].key),
        )
        here = high
    if here < end:
        yield Slice(at=at, start=here, end=end)


def _cut(item: Slice, target: int, source: ExtentSource | None) -> list[Slice]:
    # An excess of up to a fifth of the target gets no task of its own, which would cost more.
    parts = -(-(item.size_bytes * 5 - target) // (target * 5))
    if parts <= 1 or item.signed is not None:
        return [item]
    pieces: list[Slice] = []
    for low, high in itertools.pairwise(_edges(item, parts)):
        if item.store:
            pieces.extend(_slices(item.at, low, high, item.store, item.extents, item.aborted))
        else:
            pieces.extend(slices_of(item.at, low, high, source if item.extents else None))
    return pieces


def _edges(item: Slice, parts: int) -> list[int]:
    """Return offsets that cut a slice into about `parts` parts.

    The parts have equal bytes in objects, and equal numbers of offsets in files.
    """
    numbers = np.arange(1, parts, dtype=np.int64)
    if item.store:
        batches = np.concatenate([batches_of(extent) for extent in item.extents])
        ends = np.cumsum(batches, axis=0, dtype=np.int64)
        wanted = np.searchsorted(ends[:, 0], numbers * item.size_bytes // parts)
        inner = item.extents[0].base_offset + ends[wanted, 1]
    else:
        inner = item.start + (item.end - item.start) * numbers // parts
    between = [int(edge) for edge in np.unique(inner) if item.start < edge < item.end]
    return [item.start, *between, item.end]


def _evenly(slices: Sequence[Slice], count: int) -> list[Task]:
    # The next largest slice goes into the smallest task, so that tasks are of similar size.
    if not slices:
        return []
    loads = [(0, index) for index in range(max(1, min(count, len(slices))))]
    packed: list[list[Slice]] = [[] for _ in loads]
    for item in sorted(slices, key=lambda item: -item.size_bytes):
        size, index = heapq.heappop(loads)
        packed[index].append(item)
        heapq.heappush(loads, (size + item.size_bytes, index))
    return [Task(sorted(items, key=lambda item: (item.at, item.start))) for items in packed]


def _object_by_object(slices: Sequence[Slice], target: int) -> list[Task]:
    # The tasks have about `target` bytes each.
    if not slices:
        return []
    total = sum(item.load_bytes for item in slices)
    count = max(1, min(-(-total // target), len(slices)))
    packed: list[list[Slice]] = [[] for _ in range(count)]
    read = 0
    for item in _in_order(slices):
        middle = read + item.load_bytes // 2
        packed[min(count - 1, middle * count // total)].append(item)
        read += item.load_bytes
    return [Task(items) for items in packed if items]


def _in_order(slices: Sequence[Slice]) -> Iterator[Slice]:
    """Yield slices grouped by object, with the slices of each partition in offset order.

    One request can then read all slices of an object.
    """
    by_object: dict[str, list[Slice]] = {}
    last_of: dict[TopicPartition, str] = {}
    order: TopologicalSorter[str] = TopologicalSorter()
    for item in sorted(slices, key=lambda item: item.start):
        key = item.extents[0].key
        by_object.setdefault(key, []).append(item)
        before = last_of.get(item.at, key)
        last_of[item.at] = key
        order.add(key, *(() if before == key else (before,)))
    for key in order.static_order():
        yield from sorted(
            by_object[key], key=lambda item: (item.extents[0].byte_offset, item.start)
        )
