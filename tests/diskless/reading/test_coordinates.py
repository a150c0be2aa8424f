"""The coordinate cache: what it finds, and what it forgets."""

from __future__ import annotations

import random
from itertools import pairwise

from penstock.diskless.reading.reader import Coordinates, weight
from penstock.records.extents import Extent
from tests.diskless.reading.extents import KEY, TOPIC, extent

OTHER = (TOPIC, 1)


def cache(max_bytes: int = 1 << 20, age_seconds: float = 30.0) -> Coordinates:
    return Coordinates(max_bytes=max_bytes, age_seconds=age_seconds)


def bases(found: list[Extent]) -> list[int]:
    return [found_extent.base_offset for found_extent in found]


def test_finds_from_the_extent_that_holds_the_offset_on() -> None:
    known = cache()
    known.add(KEY, [extent(0, [(100, 10)]), extent(10, [(100, 10)]), extent(20, [(100, 5)])], 0.0)
    assert bases(known.find(KEY, 0, 1000, 0.0)) == [0, 10, 20]
    assert bases(known.find(KEY, 19, 1000, 0.0)) == [10, 20]
    assert bases(known.find(KEY, 24, 1000, 0.0)) == [20]
    assert known.find(KEY, 25, 1000, 0.0) == []
    assert known.find(OTHER, 0, 1000, 0.0) == []


def test_takes_no_more_than_the_bytes_that_are_wanted() -> None:
    known = cache()
    known.add(KEY, [extent(n, [(100, 1)]) for n in range(10)], 0.0)
    # The first may be cut anywhere, so its bytes do not count.
    assert bases(known.find(KEY, 3, 150, 0.0)) == [3, 4, 5]
    assert bases(known.find(KEY, 3, 1, 0.0)) == [3, 4]


def test_ends_at_a_gap() -> None:
    known = cache()
    known.add(KEY, [extent(0, [(100, 10)])], 0.0)
    known.add(KEY, [extent(20, [(100, 10)])], 0.0)
    assert bases(known.find(KEY, 5, 1000, 0.0)) == [0]
    assert known.find(KEY, 15, 1000, 0.0) == []
    known.add(KEY, [extent(10, [(100, 10)])], 0.0)
    assert bases(known.find(KEY, 5, 1000, 0.0)) == [0, 10, 20]


def test_new_extents_take_the_place_of_those_that_they_overlap() -> None:
    known = cache()
    known.add(KEY, [extent(n, [(100, 10)]) for n in range(0, 50, 10)], 0.0)
    sealed = extent(10, [(100, 10), (100, 10)], key="sealed")
    known.add(KEY, [sealed], 1.0)
    assert [found_extent.key for found_extent in known.find(KEY, 0, 10_000, 1.0)] == [
        "o1",
        "sealed",
        "o1",
        "o1",
    ]
    assert len(known) == 4


def test_what_is_too_old_is_not_found_and_then_gone() -> None:
    known = cache(age_seconds=30.0)
    known.add(KEY, [extent(0, [(100, 10)])], 0.0)
    known.add(KEY, [extent(10, [(100, 10)])], 20.0)
    assert known.find(KEY, 0, 1000, 31.0) == []
    assert bases(known.find(KEY, 10, 1000, 31.0)) == [10]
    known.add(OTHER, [extent(0, [(1, 1)])], 31.0)
    assert len(known) == 2


def test_learning_again_makes_it_young() -> None:
    known = cache(age_seconds=30.0)
    known.add(KEY, [extent(0, [(100, 10)])], 0.0)
    known.add(KEY, [extent(0, [(100, 10)])], 25.0)
    known.add(OTHER, [extent(0, [(1, 1)])], 40.0)
    assert bases(known.find(KEY, 0, 1000, 40.0)) == [0]


def test_the_bytes_are_bounded_and_the_oldest_goes_first() -> None:
    one = extent(0, [(100, 1)])
    known = cache(max_bytes=3 * weight(one))
    for base in range(10):
        known.add(KEY, [extent(base, [(100, 1)])], float(base))
    assert known.size_bytes <= 3 * weight(one)
    assert bases(known.find(KEY, 7, 10_000, 9.0)) == [7, 8, 9]
    assert known.find(KEY, 6, 10_000, 9.0) == []


def test_a_partition_can_be_dropped() -> None:
    known = cache()
    known.add(KEY, [extent(0, [(100, 10)])], 0.0)
    known.add(OTHER, [extent(0, [(100, 10)])], 0.0)
    known.drop(KEY)
    known.drop(KEY)
    assert known.find(KEY, 0, 1, 0.0) == []
    assert bases(known.find(OTHER, 0, 1, 0.0)) == [0]
    assert known.size_bytes == weight(extent(0, [(100, 10)]))


def test_random_learning_never_answers_with_a_gap_or_an_overlap() -> None:
    dice = random.Random(5)
    known = cache(max_bytes=20_000, age_seconds=50.0)
    for step in range(3000):
        now = step / 10
        base = dice.randrange(200)
        shape = [
            (dice.randrange(61, 200), dice.randrange(1, 9)) for _ in range(dice.randrange(1, 4))
        ]
        known.add(KEY, [extent(base, shape)], now)
        offset = dice.randrange(200)
        found = known.find(KEY, offset, 2000, now)
        assert known.size_bytes <= 20_000
        if found:
            assert found[0].base_offset <= offset < found[0].next_offset
        for left, right in pairwise(found):
            assert left.next_offset == right.base_offset
    assert known.size_bytes == sum(
        weight(found_extent) for found_extent, _ in known._partitions[KEY].extents.values()
    )
