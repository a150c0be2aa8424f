"""Throttle of compaction, shared by all its threads."""

from __future__ import annotations

import pytest

from penstock.base.settings import LONG_MAX
from penstock.storage.compaction.cleaner import Throttle
from penstock.storage.files.errors import CompactionStopped
from tests.storage.batches import FakeClock


class Waits:
    """Passes the time that it is asked to wait."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.seconds = 0.0
        self.ended = False

    def __call__(self, seconds: float) -> bool:
        self.seconds += seconds
        self.clock.ms += round(seconds * 1000)
        return self.ended


def test_a_pass_keeps_to_the_rate() -> None:
    clock = FakeClock()
    waits, throttle = Waits(clock), Throttle(clock, 1_000_000)
    for _ in range(100):
        throttle.spend(waits, 100_000)
    assert waits.seconds == pytest.approx(10.0, abs=0.2)


def test_without_a_limit_nothing_is_waited_for() -> None:
    clock = FakeClock()
    waits, throttle = Waits(clock), Throttle(clock, LONG_MAX)
    throttle.spend(waits, 1 << 40)
    assert waits.seconds == 0.0


def test_a_pass_that_is_to_end_ends() -> None:
    clock = FakeClock()
    waits, throttle = Waits(clock), Throttle(clock, LONG_MAX)
    waits.ended = True
    with pytest.raises(CompactionStopped):
        throttle.spend(waits, 1)
