"""Tasks cover every offset once, are few, and even; those of objects are cut at batches."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.planning import trimmed
from penstock.base.ids import TopicPartition
from penstock.records.extents import Extent, SignedRange, file_extent
from penstock.records.transactions import AbortedRange
from penstock.spark.reads.chunks import Slice, Task
from penstock.spark.reads.extents import PartitionExtents
from penstock.spark.reads.planning import (
    TASK_BYTES_MAX,
    TASK_BYTES_MIN,
    plan,
    renewed,
    slices_of,
    task_bytes,
)
from tests.spark.fakes import FakeExtents, object_extent

AT = TopicPartition("t", 0)
STORE = "s3://bucket/place"
RANGES = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 5_000), st.integers(0, 20_000)),
    max_size=8,
)


def covered(tasks: list[Task]) -> dict[TopicPartition, list[tuple[int, int]]]:
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for task in tasks:
        for item in task.slices:
            found.setdefault(item.at, []).append((item.start, item.end))
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


def test_slices_have_their_aborted_transactions() -> None:
    aborted = [AbortedRange(7, low, low + 150_000) for low in range(0, 1_000_000, 200_000)]
    source = FakeExtents(aborted=tuple(aborted))
    tasks = plan({AT: (100, 1_000_000)}, source, parallelism=4)
    slices = sorted((item for task in tasks for item in task.slices), key=lambda item: item.start)
    assert len(slices) > 2
    for item in slices:
        assert item.aborted == tuple(
            range_
            for range_ in aborted
            if range_.first_offset < item.end and range_.last_offset >= item.start
        )
    assert pickle.loads(pickle.dumps(slices)) == slices


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
    (where,) = second.extents
    assert (second.start, where.base_offset, where.byte_offset) == (10_005, 10_000, 10_000_000)


def test_huge_ranges_get_equally_many_tasks_for_every_slot() -> None:
    ranges = {TopicPartition("t", 0): (0, 2_000_000)}
    tasks = plan(ranges, FakeExtents(record_bytes=1_000), parallelism=3)
    assert len(tasks) == 6
    sizes = [sum(item.size_bytes for item in task.slices) for task in tasks]
    assert max(sizes) <= TASK_BYTES_MAX
    assert max(sizes) - min(sizes) <= 20_000


@given(st.integers(0, 10 << 40), st.integers(1, 1_000))
def test_a_task_is_as_large_as_it_may_be_and_slots_end_together(total: int, slots: int) -> None:
    size = task_bytes(total, slots)
    assert TASK_BYTES_MIN <= size <= TASK_BYTES_MAX
    if size > TASK_BYTES_MIN:
        rounds = -(-total // (size * slots))
        assert size * slots * rounds - total < slots * (rounds + 1)
        assert rounds == 1 or 2 * size > TASK_BYTES_MAX


def test_without_extents_the_broker_is_asked() -> None:
    tasks = plan({TopicPartition("t", 0): (0, 100_000)}, None, parallelism=2)
    assert not any(item.extents for task in tasks for item in task.slices)
    assert covered(tasks)[TopicPartition("t", 0)][0][0] == 0


def test_holes_between_extents_go_to_the_broker() -> None:
    class Holes:
        def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
            runs = ((0, 10), (20, 30))
            found = tuple(
                file_extent("/x", byte_offset=0, size_bytes=5, base_offset=low, next_offset=high)
                for low, high in runs
            )
            return PartitionExtents(topic_id="i", log_start_offset=0, extents=found)

    found = slices_of(TopicPartition("t", 0), 5, 40, Holes())
    assert [(item.start, item.end, [extent.key for extent in item.extents]) for item in found] == [
        (5, 10, ["/x"]), (10, 20, []), (20, 30, ["/x"]), (30, 40, []),
    ]  # fmt: skip


def test_tasks_travel() -> None:
    task = plan({TopicPartition("t", 0): (0, 10)}, FakeExtents(), parallelism=1)[0]
    assert pickle.loads(pickle.dumps(task)).slices == task.slices
    assert TASK_BYTES_MIN > 0


@dataclass
class Objects:
    """`ExtentSource` over extents that are known."""

    by_partition: Mapping[TopicPartition, list[Extent]]

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        found = [item for extent in self.by_partition[at] if (item := trimmed(extent, start, end))]
        return PartitionExtents(topic_id="i", log_start_offset=0, extents=tuple(found), store=STORE)


BATCH = st.tuples(st.integers(70, 2_000_000), st.integers(1, 500))
COMMITS = st.lists(
    st.dictionaries(st.integers(0, 3), st.lists(BATCH, min_size=1, max_size=4), min_size=1),
    min_size=1, max_size=12,
)  # fmt: skip


@given(COMMITS, st.integers(1, 6), st.data())
def test_every_offset_of_objects_once_and_in_order(
    commits: list[dict[int, list[tuple[int, int]]]], slots: int, data: st.DataObject
) -> None:
    """Objects have ids in any order, as when several brokers commit."""
    ids = data.draw(st.permutations(range(len(commits))))
    logs: dict[TopicPartition, list[Extent]] = {}
    for object_id, commit in zip(ids, commits, strict=True):
        position = 24
        for partition, batches in sorted(commit.items()):
            log = logs.setdefault(TopicPartition("t", partition), [])
            base = log[-1].next_offset if log else 0
            log.append(object_extent(object_id, base, *batches, byte_offset=position))
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
            assert len({extent.key for extent in item.extents}) == 1
            found.setdefault(item.at, []).append(item)
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
            object_extent(number, number * 10, (100_000, 10), byte_offset=24 + partition * 100_000)
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
    logs = {AT: [object_extent(1, 0, *[(1 << 20, 100)] * 64)]}
    tasks = plan({AT: (50, 6_350)}, Objects(logs), parallelism=4)
    assert [len(task.slices) for task in tasks] == [1] * 4
    cuts = [task.slices[0] for task in tasks]
    assert [item.size_bytes >> 20 for item in cuts] == [16] * 4
    assert [item.start for item in cuts] == [50, 1_600, 3_200, 4_800]
    assert all(item.extents[0].base_offset <= item.start for item in cuts)


def test_many_tiny_objects_are_shared_out_by_requests() -> None:
    logs = {AT: [object_extent(number, number, (100, 1)) for number in range(1_000)]}
    assert len(plan({AT: (0, 1_000)}, Objects(logs), parallelism=4)) == 4
    assert len(plan({AT: (0, 20)}, Objects(logs), parallelism=4)) == 1


def test_what_no_extent_holds_goes_to_the_broker() -> None:
    logs = {AT: [object_extent(1, 10, (100, 10)), object_extent(2, 30, (100, 10))]}
    (task,) = plan({AT: (5, 50)}, Objects(logs), parallelism=2)
    found = sorted(task.slices, key=lambda item: item.start)
    assert [(item.start, item.end, item.store) for item in found] == [
        (5, 10, ""), (10, 20, STORE), (20, 30, ""), (30, 40, STORE), (40, 50, ""),
    ]  # fmt: skip


def test_little_of_files_and_objects_is_one_task() -> None:
    logs = {AT: [object_extent(1, 0, (100, 10))]}
    (task,) = plan({AT: (0, 12)}, Objects(logs), parallelism=8)
    assert isinstance(task, Task)
    assert sum(item.size_bytes for item in task.slices) < TASK_BYTES_MIN


def test_extents_that_overlap_are_read_once() -> None:
    logs = {AT: [object_extent(1, 0, (100, 10)), object_extent(2, 5, (200, 5), (200, 20))]}
    (task,) = plan({AT: (0, 30)}, Objects(logs), parallelism=2)
    assert [(item.start, item.end) for item in task.slices] == [(0, 10), (10, 30)]


@dataclass
class Signed:
    """`ExtentSource` of one batch of 10 offsets and 4 MiB after the other, each with a URL."""

    expires_ms: int
    requests: int = 0

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        self.requests += 1
        found = [
            object_extent(number, number * 10, (4 << 20, 5), (4 << 10, 5), byte_offset=0)
            for number in range(start // 10, -(-end // 10))
        ]
        signed = {
            extent.key: SignedRange(
                url=f"https://host/{extent.key}", start=24, size_bytes=extent.size_bytes,
                expires_ms=self.expires_ms,
            )
            for extent in found
        }  # fmt: skip
        return PartitionExtents(
            topic_id="i", log_start_offset=0, extents=tuple(found), store=STORE, signed=signed
        )


def test_a_range_with_a_url_is_a_slice_that_is_never_cut() -> None:
    tasks = plan({AT: (0, 100)}, Signed(1), parallelism=20)
    found = [item for task in tasks for item in task.slices]
    assert [(item.start, item.end) for item in found] == [(n, n + 10) for n in range(0, 100, 10)]
    assert len(tasks) == 10
    for item in found:
        (extent,) = item.extents
        assert item.signed is not None
        assert item.signed.url == f"https://host/{extent.key}"
    assert pickle.loads(pickle.dumps(found)) == found
    assert "https://host" not in repr(found)


@given(RANGES, RANGES)
def test_urls_are_renewed_run_by_run(
    ranges: dict[TopicPartition, tuple[int, int]], others: dict[TopicPartition, tuple[int, int]]
) -> None:
    small = {at: (start, min(end, start + 200)) for at, (start, end) in ranges.items()}
    old = [item for task in plan(small, Signed(1), parallelism=2) for item in task.slices]
    plain = [item for task in plan(others, FakeExtents(), parallelism=2) for item in task.slices]
    source = Signed(2)
    found = renewed([*old, *plain], source)
    assert [item for item in found if item.signed is None] == plain
    assert covered([Task([item for item in found if item.signed])]) == covered([Task(old)])
    assert {item.signed.expires_ms for item in found if item.signed} <= {2}
    assert source.requests == len({item.at for item in old})
    for at in ranges:
        starts = [item.start for item in found if item.at == at and item.signed]
        assert starts == sorted(starts)
