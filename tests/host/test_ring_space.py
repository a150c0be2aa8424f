"""Places in the ring: whole, apart from each other, given back in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.ring import RingSpace


def test_first_in_first_out_around_the_end() -> None:
    space = RingSpace(100)
    assert [space.take(40), space.take(40)] == [0, 40]
    assert space.take(21) is None  # 20 are left at the end, none at the beginning
    space.give_back(0)
    assert space.take(30) == 0  # the 20 at the end are left out
    assert space.taken_bytes == 90
    assert space.take(11) is None
    assert space.take(10) == 30
    assert space.taken_bytes == 100
    space.give_back(40)
    assert space.taken_bytes == 60
    space.give_back(0)
    space.give_back(30)
    assert space.taken_bytes == 0
    assert space.take(100) == 0


def test_space_is_free_in_the_order_in_which_it_was_taken() -> None:
    space = RingSpace(30)
    assert [space.take(10), space.take(10), space.take(10)] == [0, 10, 20]
    space.give_back(10)
    assert space.taken_bytes == 30
    assert space.take(1) is None
    space.give_back(0)
    assert space.taken_bytes == 10
    assert space.take(20) == 0


@pytest.mark.parametrize("size", [0, -1, 101])
def test_what_never_has_a_place(size: int) -> None:
    assert RingSpace(100).take(size) is None


def test_a_place_is_given_back_once() -> None:
    space = RingSpace(10)
    position = space.take(4)
    assert position == 0
    assert space.take(4) == 4
    space.give_back(0)
    space.give_back(0)
    space.give_back(7)
    assert space.taken_bytes == 4


sizes = st.integers(1, 40)


@given(
    st.integers(1, 64),
    st.lists(st.one_of(sizes, st.tuples(st.just("give"), st.integers(0, 9))), max_size=80),
)
def test_places_never_overlap_and_all_space_comes_back(
    size_bytes: int, steps: list[int | tuple[str, int]]
) -> None:
    space = RingSpace(size_bytes)
    held: dict[int, int] = {}
    for step in steps:
        if isinstance(step, int):
            position = space.take(step)
            if not held:
                assert (position is not None) is (step <= size_bytes)
            if position is not None:
                assert 0 <= position <= position + step <= size_bytes
                for other, size in held.items():
                    assert position + step <= other or other + size <= position
                held[position] = step
        elif held:
            position = list(held)[step[1] % len(held)]
            del held[position]
            space.give_back(position)
        assert sum(held.values()) <= space.taken_bytes <= size_bytes
        assert held or space.taken_bytes == 0
    for position in list(held):
        space.give_back(position)
    assert space.take(size_bytes) == 0
