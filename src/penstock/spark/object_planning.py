"""Slices and tasks of diskless partitions: cut by what the batch index knows, grouped by object.

A write-ahead object mixes partitions, so tasks are filled object by object: what several
partitions have in one is read with one request. Ranges are cut at batches, whose sizes and offsets
the layouts tell, and only the wanted ones travel with a slice.

    objects in order of commit   [p0 p1 p2][p0 p2][p1 p2 ...]
    tasks                        |─── task 0 ────|── task 1 ─|

Within a task a partition's records come in order of offsets: commits are in one order for all
partitions, so the objects have an order that suits each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

import numpy as np
import numpy.typing as npt

from penstock.base.ids import TopicPartition
from penstock.control.batch_index.values import DisklessExtent
from penstock.spark.slices import Slice, Task

Layout = npt.NDArray[np.int32]


def object_slices(
    at: TopicPartition, start: int, end: int, store: str, extents: Sequence[DisklessExtent]
) -> list[Slice]:
    """One slice for each run of extents in one object, cut to [start, end), by offset.

    What no extent holds is left out.
    """
    slices: list[Slice] = []
    for _, run in itertools.groupby(extents, key=lambda extent: extent.object_id):
        item = _slice(at, store, [cut for one in run if (cut := trimmed(one, start, end))])
        if item is not None:
            low = max(start, item.start)
            slices.append(replace(item, start=low, end=min(end, item.end)))
    return slices


def trimmed(extent: DisklessExtent, start: int, end: int) -> DisklessExtent | None:
    """The batches of an extent that hold offsets of [start, end); None if there are none."""
    if start <= extent.base_offset and end >= extent.next_offset:
        return extent
    layout = _layout(extent)
    after = extent.base_offset + np.cumsum(layout[:, 1], dtype=np.int64)
    first = int(np.searchsorted(after, start, side="right"))
    last = int(np.searchsorted(after, end, side="left")) + 1
    kept = layout[first:last]
    if not len(kept) or end <= start:
        return None
    base = int(after[first] - layout[first, 1])
    if base >= end:
        return None
    return extent._replace(
        byte_offset=extent.byte_offset + int(layout[:first, 0].sum(dtype=np.int64)),
        size_bytes=int(kept[:, 0].sum(dtype=np.int64)),
        base_offset=base,
        next_offset=int(after[min(last, len(layout)) - 1]),
        layout=kept.tobytes(),
    )


def cut(item: Slice, target: int) -> list[Slice]:
    """A slice as several of about `target` bytes, cut at batches; a fifth more is left whole."""
    parts = -(-item.size_bytes * 5 // (target * 6))
    if parts <= 1:
        return [item]
    layouts = np.concatenate([_layout(extent) for extent in item.extents])
    sizes = np.cumsum(layouts[:, 0], dtype=np.int64)
    after = item.extents[0].base_offset + np.cumsum(layouts[:, 1], dtype=np.int64)
    wanted = np.arange(1, parts, dtype=np.int64) * item.size_bytes // parts
    inner = np.unique(after[np.searchsorted(sizes, wanted)])
    edges = [item.start, *(int(edge) for edge in inner if item.start < edge < item.end), item.end]
    at = TopicPartition(item.topic, item.partition)
    return [
        piece
        for low, high in itertools.pairwise(edges)
        for piece in object_slices(at, low, high, item.store or "", item.extents)
    ]


def tasks_of(slices: Sequence[Slice], target: int) -> list[Task]:
    """Tasks of about `target` bytes that read object by object."""
    weights = [item.load_bytes for item in slices]
    total = sum(weights)
    count = max(1, min(-(-total // target), len(slices)))
    packed: list[list[Slice]] = [[] for _ in range(count)]
    read = 0
    for index in _in_order(slices):
        middle = read + weights[index] // 2
        packed[min(count - 1, middle * count // total)].append(slices[index])
        read += weights[index]
    return [Task(items) for items in packed if items]


def _in_order(slices: Sequence[Slice]) -> Iterator[int]:
    """Indexes of slices, object by object, such that every partition's are by offset."""
    by_object: dict[int, list[int]] = {}
    last_of: dict[tuple[str, int], int] = {}
    order: TopologicalSorter[int] = TopologicalSorter()
    for index in sorted(range(len(slices)), key=lambda index: slices[index].start):
        item = slices[index]
        object_id = item.extents[0].object_id
        by_object.setdefault(object_id, []).append(index)
        before = last_of.get((item.topic, item.partition), object_id)
        last_of[item.topic, item.partition] = object_id
        order.add(object_id, *(() if before == object_id else (before,)))
    for object_id in order.static_order():
        yield from sorted(
            by_object[object_id],
            key=lambda index: (slices[index].extents[0].byte_offset, slices[index].start),
        )


def _slice(at: TopicPartition, store: str, extents: Sequence[DisklessExtent]) -> Slice | None:
    if not extents:
        return None
    return Slice(
        topic=at.topic,
        partition=at.partition,
        start=extents[0].base_offset,
        end=extents[-1].next_offset,
        size_bytes=sum(extent.size_bytes for extent in extents),
        store=store,
        extents=tuple(extents),
    )


def _layout(extent: DisklessExtent) -> Layout:
    return np.frombuffer(extent.layout, dtype="<i4").reshape(-1, 2)
