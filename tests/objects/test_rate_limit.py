"""A token bucket: bursts, the rate in the long run, clocks that stand still; limits that yield."""

from __future__ import annotations

import pytest

from penstock.objects.rate_limit import (
    ADJUSTMENT_BEATS,
    FIRST_BEATS,
    IDLE_BEATS_MAX,
    LATE_SECONDS_MAX,
    YIELDING_PER_SECOND_FIRST,
    YIELDING_PER_SECOND_MIN,
    TokenBucket,
    YieldingLimit,
)


def test_a_burst_of_the_capacity_does_not_wait() -> None:
    bucket = TokenBucket(200, now=10.0)
    assert [bucket.take(10.0) for _ in range(200)] == [0.0] * 200
    assert bucket.take(10.0) == pytest.approx(1 / 200)
    assert bucket.take(10.0) == pytest.approx(2 / 200)


def test_tokens_come_back_at_the_rate_and_up_to_the_capacity() -> None:
    bucket = TokenBucket(10, now=0.0)
    for _ in range(10):
        bucket.take(0.0)
    assert bucket.take(0.5) == 0.0
    assert [bucket.take(1000.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1000.0) == pytest.approx(0.1)


def test_takers_that_wait_keep_to_the_rate() -> None:
    bucket = TokenBucket(50, now=0.0)
    now, taken = 0.0, 0
    while now < 20.0:
        now += bucket.take(now)
        taken += 1
    assert taken == pytest.approx(50 + 20 * 50, abs=2)


def test_a_stopped_or_reversed_clock_gives_no_tokens() -> None:
    bucket = TokenBucket(1, now=5.0)
    assert bucket.take(5.0) == 0.0
    assert bucket.take(1.0) == 1.0
    assert bucket.take(5.0) == 2.0


def test_a_yielding_limit_falls_while_others_wait_and_has_a_floor() -> None:
    limit = YieldingLimit()
    limit.adjust(shared=True, late=True)
    assert limit.per_second == YIELDING_PER_SECOND_FIRST / 2
    for _ in range(20):
        limit.adjust(shared=True, late=True)
    assert limit.take(0.0, YIELDING_PER_SECOND_MIN) == 0.0
    assert limit.take(0.0, 1) == pytest.approx(1.0)


def test_a_yielding_limit_rises_again_once_nobody_waits() -> None:
    limit = YieldingLimit()
    limit.adjust(shared=True, late=True)
    before = limit.per_second
    limit.adjust(shared=True, late=False)
    assert before < limit.per_second < 2 * before
    limit.adjust(shared=False, late=True)
    limit.take(0.0, 1 << 30)
    assert limit.take(0.0, 1) < 0.001


def test_a_yielding_limit_is_adjusted_by_the_latest_of_some_beats() -> None:
    limit = YieldingLimit(uses=7)
    for _ in range(FIRST_BEATS):
        assert limit.beat(7, 0.0)
    assert limit.lifted
    for late in [2 * LATE_SECONDS_MAX] + [0.0] * (ADJUSTMENT_BEATS - 1):
        assert limit.beat(8, late)
    assert limit.per_second == YIELDING_PER_SECOND_FIRST / 2
    for _ in range(ADJUSTMENT_BEATS):
        assert limit.beat(9, LATE_SECONDS_MAX)
    assert YIELDING_PER_SECOND_FIRST / 2 < limit.per_second < YIELDING_PER_SECOND_FIRST


def test_beats_end_some_time_after_the_last_read() -> None:
    limit = YieldingLimit()
    for _ in range(2):
        limit.take(0.0, 1)
        assert [limit.beat(0, 0.0) for _ in range(IDLE_BEATS_MAX)] == [True] * IDLE_BEATS_MAX
    assert not limit.beat(0, 0.0)
