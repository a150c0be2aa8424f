"""Tasks cover every offset once, are few, and are even."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import TopicPartition
from penstock.spark.extents import Extent, PartitionExtents
from penstock.spark.planning import TASK_BYTES_MIN, plan, slices_of
from penstock.spark.slices import Task
from tests.spark.fakes import FakeExtents

RANGES = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 5_000), st.integers(0, 20_000)),
    max_size=8,
)


def covered(tasks: list[Task]) -> dict[TopicPartition, list[tuple[int, int]]]:
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for task in tasks:
        for item in task.slices:
            at = TopicPartition(item.topic, item.partition)
            found.setdefault(at, []).append((item.start, item.end))
    return {at: sorted(runs) for at, runs in found.items()}


@given(RANGES, st.integers(1, 8))
def test_every_offset_once(ranges: dict[TopicPartition, tuple[int, int]], slots: int) -> None:
    tasks = plan(ranges, FakeExtents(), parallelism=slots)
    assert len(tasks) <= slots
    runs = covered(tasks)
    wanted = {at: span for at, span in ranges.items() if span[0] < span[1]}
    assert set(runs) == set(wanted)
    for at, (start, end) in wanted.items():
        assert (runs[at][0][0], runs[at][-1][1]) == (start, end)
        assert all(low[1] == high[0] for low, high in zip(runs[at], runs[at][1:], strict=False))


def test_little_is_one_task() -> None:
    ranges = {TopicPartition("t", index): (0, 10) for index in range(64)}
    assert len(plan(ranges, FakeExtents(), parallelism=8)) == 1


def test_much_is_cut_evenly_with_positions_from_the_index() -> None:
    ranges = {TopicPartition("t", 0): (5, 40_005)}
    tasks = plan(ranges, FakeExtents(), parallelism=4)
    assert len(tasks) == 4
    sizes = [sum(item.size_bytes for item in task.slices) for task in tasks]
    assert max(sizes) - min(sizes) <= 20_000
    second = sorted((task.slices[0] for task in tasks), key=lambda item: item.start)[1]
    assert (second.start, second.base_offset, second.position) == (10_005, 10_000, 10_000_000)


def test_huge_ranges_get_more_tasks_than_slots() -> None:
    ranges = {TopicPartition("t", 0): (0, 2_000_000)}
    assert len(plan(ranges, FakeExtents(record_bytes=1_000), parallelism=2)) > 10


def test_without_extents_the_broker_is_asked() -> None:
    tasks = plan({TopicPartition("t", 0): (0, 100_000)}, None, parallelism=2)
    assert all(item.path is None for task in tasks for item in task.slices)
    assert covered(tasks)[TopicPartition("t", 0)][0][0] == 0


def test_holes_between_extents_go_to_the_broker() -> None:
    class Holes:
        def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
            runs = ((0, 10), (20, 30))
            found = tuple(
                Extent(path="/x", position=0, size_bytes=5, base_offset=low, next_offset=high,
                       leader_epoch=0)
                for low, high in runs
            )  # fmt: skip
            return PartitionExtents(topic_id="i", log_start_offset=0, extents=found)

    found = slices_of(TopicPartition("t", 0), 5, 40, Holes())
    assert [(item.start, item.end, item.path) for item in found] == [
        (5, 10, "/x"), (10, 20, None), (20, 30, "/x"), (30, 40, None),
    ]  # fmt: skip


def test_tasks_travel() -> None:
    task = plan({TopicPartition("t", 0): (0, 10)}, FakeExtents(), parallelism=1)[0]
    assert pickle.loads(pickle.dumps(task)).slices == task.slices
    assert TASK_BYTES_MIN > 0
