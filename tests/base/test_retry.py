"""Pauses double up to a ceiling and are drawn below it; attempts and time are bounded."""

from __future__ import annotations

import pytest

from penstock.base.retry import Backoff, RetryPolicy

BACKOFF = Backoff(first_ms=50, ceiling_ms=5_000)


def test_ceilings_double() -> None:
    ceilings = [BACKOFF.pause_ms(failures) for failures in range(1, 10)]
    assert ceilings == [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert BACKOFF.pause_seconds(2) == 0.1


@pytest.mark.parametrize("failures", [17, 64, 10**6])
def test_the_ceiling_holds_forever(failures: int) -> None:
    assert BACKOFF.pause_ms(failures) == 5_000


def test_full_jitter() -> None:
    backoff = Backoff(first_ms=100, ceiling_ms=1_000)
    assert backoff.pause_ms(2, chance=0.25) == 50
    assert backoff.pause_ms(1, chance=0.0) == 1
    assert backoff.pause_ms(0, chance=0.5) == 50


def test_a_part_that_is_not_left_to_chance() -> None:
    backoff = Backoff(first_ms=100, steady=0.5)
    assert [backoff.pause_ms(2, chance=chance) for chance in (0.0, 0.5, 1.0)] == [100, 150, 200]


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_attempts_and_time_are_bounded(chance: float) -> None:
    backoff = Backoff(first_ms=20, ceiling_ms=100)
    policy = RetryPolicy(backoff=backoff, attempts_max=10, timeout_ms=10_000)
    pauses = [policy.pause_seconds(failures, chance=chance) for failures in range(1, 10)]
    assert pauses == [backoff.pause_seconds(failures, chance=chance) for failures in range(1, 10)]
    assert policy.pause_seconds(10, chance=chance) is None
    assert policy.pause_seconds(1, elapsed_ms=10_000, chance=chance) is None
    last = policy.pause_seconds(9, elapsed_ms=9_999, chance=chance)
    assert last is not None
    assert last <= 0.001


def test_without_a_time_only_attempts_are_bounded() -> None:
    policy = RetryPolicy(backoff=BACKOFF, attempts_max=10**6)
    assert policy.pause_seconds(10**5, chance=1.0, elapsed_ms=1e12) == 5.0
