"""Ready batches are found by offset, bounded, and dropped after their time."""

from __future__ import annotations

from penstock.archive.assembly import Run
from penstock.diskless.errors import Unreadable
from penstock.diskless.reading.loads import FAILURE_SECONDS, READY_PER_PARTITION_MAX, Ready
from tests.diskless.reading.extents import KEY, TOPIC

OTHER = (TOPIC, 1)


def run(base_offset: int, next_offset: int, size: int = 100) -> Run:
    return Run(memoryview(bytes(size)), [base_offset], [size], next_offset)


def test_a_run_is_found_by_any_offset_in_it() -> None:
    ready = Ready(max_bytes=1000, seconds=10.0)
    one = run(5, 10)
    ready.put(KEY, one, 0.0)
    assert [ready.run(KEY, offset) is one for offset in (4, 5, 9, 10)] == [False, True, True, False]
    assert ready.run(OTHER, 5) is None


def test_the_newest_run_of_an_offset_is_taken() -> None:
    ready = Ready(max_bytes=1000, seconds=10.0)
    ready.put(KEY, run(5, 10), 0.0)
    longer = run(7, 20)
    ready.put(KEY, longer, 1.0)
    assert ready.run(KEY, 8) is longer


def test_the_bytes_are_bounded_but_the_newest_always_stays() -> None:
    ready = Ready(max_bytes=250, seconds=10.0)
    for base in range(5):
        ready.put(KEY, run(base, base + 1), 0.0)
    assert [ready.run(KEY, base) is not None for base in range(5)] == [False] * 3 + [True] * 2
    assert ready.size_bytes == 200
    huge = run(9, 10, size=5000)
    ready.put(OTHER, huge, 0.0)
    assert ready.run(OTHER, 9) is huge
    assert ready.run(KEY, 4) is None
    assert ready.size_bytes == 5000


def test_a_partition_has_a_bounded_number_of_runs() -> None:
    ready = Ready(max_bytes=1 << 30, seconds=10.0)
    for base in range(READY_PER_PARTITION_MAX + 3):
        ready.put(KEY, run(base, base + 1), 0.0)
    assert ready.run(KEY, 2) is None
    assert ready.run(KEY, 3) is not None
    assert ready.size_bytes == READY_PER_PARTITION_MAX * 100


def test_unread_batches_expire() -> None:
    ready = Ready(max_bytes=1000, seconds=10.0)
    ready.put(KEY, run(0, 1), 0.0)
    ready.put(KEY, run(1, 2), 6.0)
    ready.evict(11.0)
    assert ready.run(KEY, 0) is None
    assert ready.run(KEY, 1) is not None
    ready.evict(17.0)
    assert ready.size_bytes == 0


def test_a_failure_is_remembered_for_its_time() -> None:
    ready = Ready(max_bytes=1000, seconds=10.0)
    failure = ready.fail(KEY, 3, Unreadable("gone"), 5.0 - FAILURE_SECONDS)
    assert ready.failure(KEY, 3, 4.9) is failure
    assert ready.failure(KEY, 4, 4.9) is None
    assert ready.failure(KEY, 3, 5.0) is None
    ready.fail(KEY, 3, Unreadable("gone"), 5.0 - FAILURE_SECONDS)
    ready.evict(6.0)
    assert ready.failure(KEY, 3, 4.0) is None


def test_dropping_a_partition_drops_all_of_it() -> None:
    ready = Ready(max_bytes=1000, seconds=10.0)
    ready.put(KEY, run(0, 1), 0.0)
    ready.put(OTHER, run(0, 1), 0.0)
    ready.fail(KEY, 1, Unreadable("gone"), 4.9)
    ready.drop(KEY)
    assert ready.run(KEY, 0) is None
    assert ready.failure(KEY, 1, 0.0) is None
    assert ready.run(OTHER, 0) is not None
    assert ready.size_bytes == 100
