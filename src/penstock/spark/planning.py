"""Tasks from extents: pure arithmetic over bytes.

A Python task of Spark costs 32 to 80 ms however little it reads, so small ranges are packed
together; a large one is cut so that every slot has work. What a task gets is a list of slices,
each one run of bytes in one file with the offsets wanted from it. Cuts are made at offsets and
the broker's index is asked for their byte positions, so a task opens only the batches around its
own offsets; a batch that spans a cut is opened by both sides, each of which keeps its own part.

Slices of diskless partitions are of objects in a store; `object_planning` cuts and packs them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.base.ids import TopicPartition
from penstock.spark.extents import Extent, ExtentSource
from penstock.spark.object_planning import cut, object_slices, tasks_of
from penstock.spark.slices import Slice, Task

TASK_BYTES_MIN: Final = 2 << 20
TASK_BYTES_MAX: Final = 128 << 20
RECORD_BYTES_GUESS: Final = 256

Range = tuple[int, int]


def plan(
    ranges: Mapping[TopicPartition, Range], extents: ExtentSource | None, *, parallelism: int
) -> list[Task]:
    """Tasks that read every range once.

    Args:
        ranges: offsets [start, end) per partition; empty ones are left out.
        extents: where the bytes are; None when only the broker can be asked.
        parallelism: tasks that can run at the same time.

    Raises:
        ExtentsUnavailable: as `ExtentSource.extents`.
    """
    slices: list[Slice] = []
    for at in sorted(ranges):
        start, end = ranges[at]
        if start < end:
            slices.extend(slices_of(at, start, end, extents))
    total = sum(item.load_bytes for item in slices)
    target = task_bytes(total, parallelism)
    files: list[Slice] = []
    objects: list[Slice] = []
    for item in slices:
        if item.store is None:
            files.extend(_cut(item, target, extents))
        else:
            objects.extend(cut(item, target))
    # Of the slices before they were cut: cut ones may share batches.
    rest = sum(item.size_bytes for item in slices if item.store is None)
    packed = _pack(files, -(-rest // target))
    if not objects:
        return packed
    return _joined(packed, tasks_of(objects, target), target)


def _joined(files: list[Task], objects: list[Task], target: int) -> list[Task]:
    # One task for both where both are little.
    if len(files) == len(objects) == 1:
        both = (*files[0].slices, *objects[0].slices)
        if sum(item.size_bytes for item in both) <= target:
            return [Task(both)]
    return [*files, *objects]


def task_bytes(total_bytes: int, parallelism: int) -> int:
    """How much one task should read: one task per slot, more only when tasks would be huge."""
    share = -(-total_bytes // max(1, parallelism))
    return max(TASK_BYTES_MIN, min(share, TASK_BYTES_MAX))


def slices_of(at: TopicPartition, start: int, end: int, source: ExtentSource | None) -> list[Slice]:
    """The slices of one range, one per extent, without gaps between their offsets."""
    if source is None:
        guess = (end - start) * RECORD_BYTES_GUESS
        return [
            Slice(topic=at.topic, partition=at.partition, start=start, end=end, size_bytes=guess)
        ]
    answer = source.extents(at, start, end)
    if answer.store:
        found = object_slices(at, start, end, answer.store, answer.objects)
    else:
        found = list(_file_slices(at, start, end, answer.extents))
    return list(_cover(at, start, end, found))


def _cover(at: TopicPartition, start: int, end: int, found: Iterable[Slice]) -> Iterable[Slice]:
    # Offsets that no extent holds (a compacted stretch, or bytes not in a file yet) go to the
    # broker, which knows whether anything is there.
    here = start
    for item in found:
        if item.start > here:
            yield _from_broker(at, here, item.start)
        yield item
        here = item.end
    if here < end:
        yield _from_broker(at, here, end)


def _file_slices(
    at: TopicPartition, start: int, end: int, extents: Iterable[Extent]
) -> Iterable[Slice]:
    here = start
    for extent in sorted(extents, key=lambda item: item.base_offset):
        if extent.next_offset <= here or extent.base_offset >= end:
            continue
        here, stop = max(here, extent.base_offset), min(end, extent.next_offset)
        yield Slice(
            topic=at.topic,
            partition=at.partition,
            start=here,
            end=stop,
            size_bytes=extent.size_bytes,
            path=extent.path,
            position=extent.position,
            base_offset=extent.base_offset,
        )
        here = stop


def _from_broker(at: TopicPartition, start: int, end: int) -> Slice:
    size = (end - start) * RECORD_BYTES_GUESS
    return Slice(topic=at.topic, partition=at.partition, start=start, end=end, size_bytes=size)


def _cut(item: Slice, target: int, source: ExtentSource | None) -> list[Slice]:
    # A slice a fifth over the target is left whole: another Python task would cost more.
    parts = min(-(-item.size_bytes * 5 // (target * 6)), item.end - item.start)
    if parts <= 1:
        return [item]
    at = TopicPartition(item.topic, item.partition)
    count = item.end - item.start
    edges = [item.start + count * index // parts for index in range(parts + 1)]
    pieces: list[Slice] = []
    for low, high in itertools.pairwise(edges):
        pieces.extend(slices_of(at, low, high, source if item.path is not None else None))
    return pieces


def _pack(slices: Sequence[Slice], count: int) -> list[Task]:
    # Largest first into the emptiest task: even tasks, and never more of them than planned.
    if not slices:
        return []
    loads = [(0, index) for index in range(max(1, min(count, len(slices))))]
    packed: list[list[Slice]] = [[] for _ in loads]
    for item in sorted(slices, key=lambda item: -item.size_bytes):
        size, index = heapq.heappop(loads)
        packed[index].append(item)
        heapq.heappush(loads, (size + item.size_bytes, index))
    return [
        Task(sorted(items, key=lambda item: (item.topic, item.partition, item.start)))
        for items in packed
    ]
