"""Dedup window: both bounds, and removed entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import InvalidError
from penstock.outbox.reader.consuming import DedupWindow


def test_a_batch_is_seen_until_it_is_too_old() -> None:
    window = DedupWindow(entries_max=10, age_max_ms=100)
    window.add(("p", "b"), 7, 1_000)
    assert window.seen(("p", "b"), 1_100) == 7
    assert window.seen(("p", "b"), 1_101) is None
    assert window.seen(("q", "b"), 1_000) is None


def test_the_oldest_give_way() -> None:
    window = DedupWindow(entries_max=2, age_max_ms=100)
    for name in "abc":
        window.add(("p", name), 0, 0)
    assert [window.seen(("p", name), 0) for name in "abc"] == [None, 0, 0]
    assert (len(window), window.forgotten) == (2, 1)


def test_adding_again_makes_a_batch_the_newest() -> None:
    window = DedupWindow(entries_max=2, age_max_ms=100)
    for name in "abac":
        window.add(("p", name), 0, 0)
    assert [window.seen(("p", name), 0) for name in "abc"] == [0, None, 0]


def test_age_cuts_without_a_look() -> None:
    window = DedupWindow(entries_max=1_000, age_max_ms=10)
    for number in range(100):
        window.add(("p", str(number)), 0, number)
    assert len(window) == 11


def test_a_window_of_nothing_remembers_nothing() -> None:
    window = DedupWindow(entries_max=0, age_max_ms=10)
    window.add(("p", "b"), 0, 0)
    assert window.seen(("p", "b"), 0) is None


@pytest.mark.parametrize(("entries", "age"), [(-1, 0), (0, -1)])
def test_bounds_below_zero_are_refused(entries: int, age: int) -> None:
    with pytest.raises(InvalidError, match="must be 0 or more"):
        DedupWindow(entries_max=entries, age_max_ms=age)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=80))
def test_it_says_what_a_plain_list_would(steps: list[tuple[int, int]]) -> None:
    entries_max, age_max_ms = 4, 50
    window = DedupWindow(entries_max=entries_max, age_max_ms=age_max_ms)
    plain: list[tuple[int, int]] = []
    now_ms = 0
    for name, pause_ms in steps:
        now_ms += pause_ms
        young = [(n, at) for n, at in plain if now_ms - at <= age_max_ms]
        for number in range(10):
            expected = number if number in [n for n, _ in young] else None
            assert window.seen(("p", str(number)), now_ms) == expected
        window.add(("p", str(name)), name, now_ms)
        plain = [(n, at) for n, at in plain if n != name] + [(name, now_ms)]
        plain = [(n, at) for n, at in plain if now_ms - at <= age_max_ms][-entries_max:]
        assert len(window) <= entries_max
