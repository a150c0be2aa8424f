"""Pauses double up to a ceiling, and are drawn evenly below it."""

from __future__ import annotations

import pytest

from penstock.host.backoff import Backoff


def test_ceilings_double() -> None:
    ceilings = [Backoff().pause_ms(failures, chance=1.0) for failures in range(1, 10)]
    assert ceilings == [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]


@pytest.mark.parametrize("failures", [17, 64, 10**6])
def test_the_ceiling_holds_forever(failures: int) -> None:
    assert Backoff().pause_ms(failures, chance=1.0) == 5_000


def test_full_jitter() -> None:
    backoff = Backoff(first_ms=100, ceiling_ms=1_000)
    assert backoff.pause_ms(2, chance=0.25) == 50
    assert backoff.pause_ms(1, chance=0.0) == 1
    assert backoff.pause_ms(0, chance=0.5) == 50
