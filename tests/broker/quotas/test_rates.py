"""Rates over windows and buckets of tokens, against sums by hand."""

from __future__ import annotations

import random

import pytest

from penstock.broker.quotas.table import TokenBucket, WindowedRate, Windows

ELEVEN = Windows(samples=11, window_ms=1000)


def test_nothing_used_is_no_rate() -> None:
    rate = WindowedRate(5, ELEVEN)
    assert (rate.rate(0), rate.wait_ms(0)) == (0, 0)


def test_until_all_windows_but_one_have_passed_a_rate_is_over_as_many() -> None:
    rate = WindowedRate(1000, ELEVEN)
    rate.record(5000, 500)
    assert rate.rate(500) == 500
    assert rate.rate(700) == pytest.approx(5000 / 10.2)
    rate.record(10_000, 700)
    assert rate.wait_ms(700) == pytest.approx((15_000 / 10.2 - 1000) / 1000 * 10_200)


def test_a_client_that_waits_is_at_the_quota() -> None:
    rate = WindowedRate(1000, ELEVEN)
    for now_ms in range(0, 9000, 300):
        rate.record(700, now_ms)
    wait_ms = rate.wait_ms(9000)
    assert wait_ms > 0
    total = 30 * 700
    assert total / (9000 + wait_ms + 1000) * 1000 <= 1000 * 1.001


def test_a_rate_is_over_what_is_not_older_than_all_windows() -> None:
    rate = WindowedRate(1, ELEVEN)
    rate.record(100, 0)
    assert rate.rate(10_999) == pytest.approx(100 / 10.999)
    assert rate.rate(11_000) == 0
    rate.record(7, 50_000)
    assert rate.rate(50_000) == pytest.approx(0.7)


def test_windows_stand_at_equal_distances() -> None:
    """A window that began late does not reach into the next."""
    rate = WindowedRate(1, ELEVEN)
    rate.record(1, 0)
    rate.record(1, 2900)
    rate.record(1, 3050)
    assert [window[0] for window in rate._windows] == [0, 2000, 3000]


def test_what_was_taken_back_was_not_used() -> None:
    rate = WindowedRate(1, ELEVEN)
    rate.record(100, 5)
    rate.record(-100, 6)
    assert rate.wait_ms(7) == 0


@pytest.mark.parametrize("samples", [2, 11])
@pytest.mark.parametrize(("largest", "above"), [(300, 1.05), (3000, 1.12)])
@pytest.mark.parametrize("seed", range(10))
def test_a_client_that_waits_keeps_its_quota(
    samples: int, largest: int, above: float, seed: int
) -> None:
    """In the long run, over sizes and pauses; what is worth seconds at once comes some above it, as
    a rate that is over few windows is taken to be over more."""
    dice = random.Random(seed)
    rate = WindowedRate(1000, Windows(samples=samples, window_ms=1000))
    now_ms, used = 0.0, 0
    while now_ms < 300_000:
        amount = dice.randrange(1, largest)
        rate.record(amount, now_ms)
        used += amount
        assert len(rate._windows) <= samples + 1
        now_ms += rate.wait_ms(now_ms) + dice.random()
    assert 0.95 <= used / now_ms <= above


def test_a_bucket_is_full_and_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(2, ELEVEN)
    assert bucket.wait_ms(0) == 0
    bucket.record(22, 0)
    assert bucket.wait_ms(0) == 0
    bucket.record(10, 0)
    assert bucket.wait_ms(0) == 5000
    assert bucket.wait_ms(4000) == 1000
    assert bucket.wait_ms(5000) == 0


def test_a_bucket_takes_no_more_than_its_windows() -> None:
    bucket = TokenBucket(2, ELEVEN)
    bucket.record(1, 0)
    bucket.record(22 + 1, 1_000_000)
    assert bucket.wait_ms(1_000_000) == 500


def test_what_was_used_of_a_bucket() -> None:
    bucket = TokenBucket(2, ELEVEN)
    assert bucket.rate(0) == 0
    bucket.record(22, 0)
    assert bucket.rate(0) == 2
    bucket.record(22, 0)
    assert bucket.rate(0) == 4
