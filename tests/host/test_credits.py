"""The credit window: all three dimensions or nothing, never negative, never above the grant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.credits import NO_CREDIT, Credit, CreditWindow
from penstock.host.errors import CreditBug

GRANTED = Credit(10, 20, 30)


def test_taking_and_giving_back() -> None:
    window = CreditWindow(GRANTED)
    assert window.try_acquire(3, 5, 7)
    assert window.available == Credit(7, 15, 23)
    assert window.taken == Credit(3, 5, 7)
    window.restore(3, 5, 7)
    assert window.available == window.granted == GRANTED


@pytest.mark.parametrize("need", [Credit(11, 0, 0), Credit(0, 21, 0), Credit(0, 0, 31)])
def test_one_short_dimension_is_enough_to_take_nothing(need: Credit) -> None:
    window = CreditWindow(GRANTED)
    assert not window.has_room(*need)
    assert not window.try_acquire(*need)
    assert not window.ever_fits(need)
    assert window.taken == NO_CREDIT


def test_all_of_it_fits() -> None:
    window = CreditWindow(GRANTED)
    assert window.ever_fits(GRANTED)
    assert window.try_acquire(*GRANTED)
    assert window.ever_fits(GRANTED)
    assert not window.has_room(1, 0, 0)
    assert window.has_room(0, 0, 0)


@pytest.mark.parametrize("surplus", [Credit(1, 0, 0), Credit(0, 1, 0), Credit(0, 0, 1)])
def test_more_than_was_taken_cannot_come_back(surplus: Credit) -> None:
    window = CreditWindow(GRANTED)
    window.try_acquire(1, 1, 1)
    window.restore(1, 1, 1)
    with pytest.raises(CreditBug, match="but only 10 chunks, 20 events, 30 bytes were granted"):
        window.restore(*surplus)


def test_a_grant_widens() -> None:
    window = CreditWindow(GRANTED)
    window.try_acquire(10, 0, 0)
    window.grant(Credit(1, 2, 3))
    assert window.granted == Credit(11, 22, 33)
    assert window.available == Credit(1, 22, 33)


amounts = st.builds(Credit, st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
steps = st.lists(st.tuples(st.sampled_from(["take", "give", "grant"]), amounts), max_size=40)


@given(amounts, steps)
def test_the_window_is_what_is_held(granted: Credit, what: list[tuple[str, Credit]]) -> None:
    window = CreditWindow(granted)
    held: list[Credit] = []
    for step, amount in what:
        if step == "grant":
            window.grant(amount)
        elif step == "give" and held:
            window.restore(*held.pop(0))
        elif step == "take":
            fits = all(need <= left for need, left in zip(amount, window.available, strict=True))
            assert window.has_room(*amount) is fits
            assert window.try_acquire(*amount) is fits
            if fits:
                held.append(amount)
        assert window.taken == tuple(map(sum, zip(NO_CREDIT, *held, strict=True)))
        assert all(0 <= left <= most for left, most in zip(window.available, window.granted,
                                                             strict=True))  # fmt: skip
