"""Slices of diskless partitions cover every offset once, are cut at batches, grouped by object."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import TopicPartition
from penstock.control.batch_index.values import DisklessExtent
from penstock.spark.extents import PartitionExtents
from penstock.spark.object_planning import trimmed
from penstock.spark.planning import TASK_BYTES_MIN, plan
from penstock.spark.slices import Slice, Task

AT = TopicPartition("t", 0)
STORE = "s3://bucket/place"


def extent(
    object_id: int, base: int, *batches: tuple[int, int], byte_offset: int = 24
) -> DisklessExtent:
    """Batches of (bytes, offsets)."""
    return DisklessExtent(
        object_id, f"wal/{object_id}", "wal", byte_offset, sum(size for size, _ in batches),
        base, base + sum(count for _, count in batches), 7, -1,
        b"".join(pack("<ii", *batch) for batch in batches),
    )  # fmt: skip


@dataclass
class Objects:
    """`ExtentSource` over extents that are known."""

    by_partition: Mapping[TopicPartition, list[DisklessExtent]]

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        found = [item for one in self.by_partition[at] if (item := trimmed(one, start, end))]
        return PartitionExtents(
            topic_id="i", log_start_offset=0, extents=(), store=STORE, objects=tuple(found)
        )


def test_extents_are_trimmed_to_the_batches_that_are_wanted() -> None:
    whole = extent(1, 100, (10, 5), (20, 5), (30, 5))
    assert trimmed(whole, 0, 1_000) == whole
    middle = trimmed(whole, 106, 108)
    assert middle is not None
    assert (middle.byte_offset, middle.size_bytes) == (34, 20)
    assert (middle.base_offset, middle.next_offset) == (105, 110)
    assert middle.layout == pack("<ii", 20, 5)
    assert trimmed(whole, 114, 115) == extent(1, 110, (30, 5), byte_offset=54)
    for start, end in ((0, 100), (115, 200), (107, 107)):
        assert trimmed(whole, start, end) is None


BATCH = st.tuples(st.integers(70, 2_000_000), st.integers(1, 500))
COMMITS = st.lists(
    st.dictionaries(st.integers(0, 3), st.lists(BATCH, min_size=1, max_size=4), min_size=1),
    min_size=1, max_size=12,
)  # fmt: skip


@given(COMMITS, st.integers(1, 6), st.data())
def test_every_offset_once_and_in_order(
    commits: list[dict[int, list[tuple[int, int]]]], slots: int, data: st.DataObject
) -> None:
    """Objects have ids in any order, as when several brokers commit."""
    ids = data.draw(st.permutations(range(len(commits))))
    logs: dict[TopicPartition, list[DisklessExtent]] = {}
    for object_id, commit in zip(ids, commits, strict=True):
        position = 24
        for partition, batches in sorted(commit.items()):
            log = logs.setdefault(TopicPartition("t", partition), [])
            base = log[-1].next_offset if log else 0
            log.append(extent(object_id, base, *batches, byte_offset=position))
            position += log[-1].size_bytes
    ranges = {}
    for at, log in logs.items():
        start = data.draw(st.integers(0, log[-1].next_offset - 1))
        ranges[at] = (start, data.draw(st.integers(start + 1, log[-1].next_offset)))
    tasks = plan(ranges, Objects(logs), parallelism=slots)
    found: dict[TopicPartition, list[Slice]] = {}
    for task in tasks:
        for item in task.slices:
            assert item.store == STORE
            assert item.size_bytes == sum(one.size_bytes for one in item.extents)
            assert len({one.key for one in item.extents}) == 1
            found.setdefault(TopicPartition(item.topic, item.partition), []).append(item)
    assert set(found) == set(ranges)
    for at, (start, end) in ranges.items():
        # In the order of the tasks: a partition's records rise within each, and over all.
        runs = [(item.start, item.end) for item in found[at]]
        assert (runs[0][0], runs[-1][1]) == (start, end)
        assert all(low[1] == high[0] for low, high in itertools.pairwise(runs))
    assert pickle.loads(pickle.dumps(tasks[0])).slices == tasks[0].slices


def test_tasks_are_even_and_take_objects_whole() -> None:
    logs = {
        TopicPartition("t", partition): [
            extent(number, number * 10, (100_000, 10), byte_offset=24 + partition * 100_000)
            for number in range(40)
        ]
        for partition in range(4)
    }
    tasks = plan({at: (0, 400) for at in logs}, Objects(logs), parallelism=4)
    sizes = [sum(item.size_bytes for item in task.slices) for task in tasks]
    assert sizes == [4_000_000] * 4
    objects = [{item.extents[0].key for item in task.slices} for task in tasks]
    assert all(not one & other for one, other in itertools.pairwise(objects))


def test_a_large_object_is_cut_at_batches() -> None:
    logs = {AT: [extent(1, 0, *[(1 << 20, 100)] * 64)]}
    tasks = plan({AT: (50, 6_350)}, Objects(logs), parallelism=4)
    assert [len(task.slices) for task in tasks] == [1] * 4
    cuts = [task.slices[0] for task in tasks]
    assert [item.size_bytes >> 20 for item in cuts] == [16] * 4
    assert [item.start for item in cuts] == [50, 1_600, 3_200, 4_800]
    assert all(item.extents[0].base_offset <= item.start for item in cuts)


def test_many_tiny_objects_are_shared_out_by_requests() -> None:
    logs = {AT: [extent(number, number, (100, 1)) for number in range(1_000)]}
    assert len(plan({AT: (0, 1_000)}, Objects(logs), parallelism=4)) == 4
    assert len(plan({AT: (0, 20)}, Objects(logs), parallelism=4)) == 1


def test_what_no_extent_holds_goes_to_the_broker() -> None:
    logs = {AT: [extent(1, 10, (100, 10)), extent(2, 30, (100, 10))]}
    (task,) = plan({AT: (5, 50)}, Objects(logs), parallelism=2)
    found = sorted(task.slices, key=lambda item: item.start)
    assert [(item.start, item.end, item.store) for item in found] == [
        (5, 10, None), (10, 20, STORE), (20, 30, None), (30, 40, STORE), (40, 50, None),
    ]  # fmt: skip


def test_little_of_files_and_objects_is_one_task() -> None:
    logs = {AT: [extent(1, 0, (100, 10))]}
    (task,) = plan({AT: (0, 12)}, Objects(logs), parallelism=8)
    assert isinstance(task, Task)
    assert sum(item.size_bytes for item in task.slices) < TASK_BYTES_MIN
